#include "image/picture.h"

#include <algorithm>

#include "core/error.h"
#include "core/visible_text.h"
#include "image/codecs.h"
#include "image/exif.h"

namespace megalith {

PictureKind kind_of_picture(std::span<const char> bytes) {
  const std::string_view text(bytes.data(), bytes.size());
  if (text.starts_with("\xff\xd8\xff")) return PictureKind::kJpeg;
  if (text.starts_with("\x89PNG\r\n\x1a\n")) return PictureKind::kPng;
  if (text.size() >= 12 && text.starts_with("RIFF") && text.substr(8, 4) == "WEBP") return PictureKind::kWebp;
  return PictureKind::kUnknown;
}

Picture make_picture(int64_t width, int64_t height, const std::string& name, int64_t max_pixels) {
  if (width < 1 || height < 1 || width > max_pixels / height) {
    throw UserError(fmt::format("{} has {} × {} pixels, and at most {} are decoded", name, width, height, max_pixels),
                    "make the picture smaller, or take it out");
  }
  Picture picture{width, height, {}};
  picture.rgb.resize(static_cast<size_t>(width * height * 3));
  return picture;
}

Picture decode_picture(std::span<const char> bytes, const std::string& name, int64_t max_pixels) {
  switch (kind_of_picture(bytes)) {
    case PictureKind::kJpeg:
      return turned_upright(decode_jpeg(bytes, name, max_pixels), jpeg_orientation(bytes));
    case PictureKind::kPng:
      return turned_upright(decode_png(bytes, name, max_pixels), png_orientation(bytes));
    case PictureKind::kWebp:
      return turned_upright(decode_webp(bytes, name, max_pixels), webp_orientation(bytes));
    case PictureKind::kUnknown:
      break;
  }
  const std::string_view head(bytes.data(), std::min<size_t>(bytes.size(), 8));
  throw UserError(bytes.empty() ? fmt::format("{} is empty", name)
                                : fmt::format("{} is no JPEG, PNG or WebP: it begins with \"{}\"", name,
                                              visible_text(head)),
                  "convert it to one of these, or take it out");
}

}  // namespace megalith
