#include "kinds/flow/picture_rows.h"

#include <fmt/ranges.h>

#include <array>
#include <nlohmann/json.hpp>

#include "core/base64.h"
#include "core/error.h"
#include "core/input_file.h"
#include "core/strings.h"
#include "tokenizer/utf8.h"

namespace megalith {
namespace {

constexpr std::array<std::string_view, 9> kImageKeys = {"image", "file_name", "image_path", "img", "path",
                                                        "file",  "jpg",       "png",        "webp"};
constexpr std::array<std::string_view, 6> kCaptionKeys = {"caption", "text", "prompt", "txt", "description", "label"};

std::string keys_text(const Json& row) {
  std::vector<std::string> names;
  for (const auto& [name, value] : row.items()) names.push_back(name);
  return names.empty() ? "no keys" : join(names, ", ");
}

const Json* member_of(const Json& row, const std::optional<std::string>& asked,
                      std::span<const std::string_view> usual) {
  const auto find = [&](std::string_view key) -> const Json* {
    const auto found = row.find(key);
    return found == row.end() || found->is_null() ? nullptr : &*found;
  };
  if (asked) return find(*asked);
  for (const std::string_view key : usual) {
    if (const Json* value = find(key)) return value;
  }
  return nullptr;
}

}  // namespace

void take_file(const std::filesystem::path& path, CaptionedPicture& picture) {
  try {
    const InputFile file(path);
    if (file.size() > static_cast<size_t>(kMaxPictureBytes)) {
      picture.fault = fmt::format("it has {}, and at most {} are read", format_bytes(static_cast<int64_t>(file.size())),
                                  format_bytes(kMaxPictureBytes));
      return;
    }
    picture.bytes = read_beginning(path, static_cast<size_t>(kMaxPictureBytes));
    if (picture.bytes.empty()) picture.fault = "it is empty";
  } catch (const UserError& error) {
    picture.fault = error.message();
  }
}

void take_caption(std::string_view text, CaptionedPicture& picture) {
  picture.caption = trim(text);
  if (picture.caption.starts_with("\xef\xbb\xbf")) picture.caption = trim(picture.caption.substr(3));
  if (picture.caption.empty() && picture.fault.empty()) {
    picture.lacks_caption = true;
    picture.fault = "its caption is empty";
  } else if (picture.fault.empty() && !is_valid_utf8(picture.caption)) {
    picture.lacks_caption = true;
    picture.fault = "its caption is no UTF-8";
  }
}

void take_caption(const Json& row, const PictureSourceOptions& options, CaptionedPicture& picture) {
  const Json* value = row.is_object() ? member_of(row, options.caption_key, kCaptionKeys) : nullptr;
  // Takes the first of several captions.
  if (value != nullptr && value->is_array() && !value->empty()) value = &value->front();
  const std::string* text = value == nullptr ? nullptr : try_text(*value);
  if (text != nullptr) return take_caption(*text, picture);
  if (!picture.fault.empty()) return;
  picture.lacks_caption = true;
  picture.fault = fmt::format("it has no caption: expected a text under {}, found {}",
                              options.caption_key.value_or(fmt::format("{}", fmt::join(kCaptionKeys, ", "))),
                              row.is_object() ? keys_text(row) : "no object");
}

CaptionedPicture picture_of_row(const Json& row, const std::filesystem::path& folder,
                                const PictureSourceOptions& options, std::string where) {
  CaptionedPicture picture;
  picture.where = std::move(where);
  if (!row.is_object()) {
    picture.fault = "it is no object";
    return picture;
  }
  const Json* image = member_of(row, options.image_key, kImageKeys);
  const Json* bytes = nullptr;
  if (image != nullptr && image->is_object()) {
    bytes = member_of(*image, "bytes", {});
    image = member_of(*image, "path", {});
  }
  if (const std::string* text = bytes == nullptr ? nullptr : try_text(*bytes)) {
    std::optional<std::string> decoded = decode_base64(*text);
    if (decoded) picture.bytes = std::move(*decoded);
    if (picture.bytes.empty()) picture.fault = "its bytes are no base64";
  } else if (const std::string* path = image == nullptr ? nullptr : try_text(*image)) {
    picture.where += fmt::format(" ({})", *path);
    take_file(folder / *path, picture);
  } else {
    picture.fault = fmt::format("it has no picture: expected a path or bytes under {}, found {}",
                                options.image_key.value_or(fmt::format("{}", fmt::join(kImageKeys, ", "))),
                                keys_text(row));
  }
  take_caption(row, options, picture);
  return picture;
}

}  // namespace megalith
