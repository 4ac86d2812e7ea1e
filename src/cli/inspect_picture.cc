// See inspect_picture.h.
#include "cli/inspect_picture.h"

#include <fmt/format.h>

#include "cli/print.h"
#include "core/error.h"
#include "core/file.h"
#include "core/input_file.h"
#include "core/output_file.h"
#include "image/png.h"
#include "image/resize.h"
#include "kinds/flow/picture_source.h"

namespace megalith {
namespace {

struct PictureInspection {
  std::optional<int64_t> image_size;
  ResizeFilter resize_filter = ResizeFilter::kLanczos;
  std::optional<std::string> output;
  bool overwrite = false;

  void visit(OptionVisitor& v) {
    v.group("Inspection");
    v.field("image_size", image_size,
            "Make the short side as long, and cut the square in the middle out, as prepare flux --center_crop does.")
        .unit("pixels")
        .within(1, 8192);
    v.choice("resize_filter", resize_filter, {"lanczos", "bicubic", "bilinear"}, "How it is made smaller.");
    v.field("output", output, "A PNG file of what is seen.");
    v.field("overwrite", overwrite, "Replace a file that is there.");
  }
};

std::string_view name_of_kind(PictureKind kind) {
  return kind == PictureKind::kJpeg ? "JPEG" : kind == PictureKind::kPng ? "PNG" : "WebP";
}

}  // namespace

int inspect_picture(CommandContext& context) {
  PictureInspection options;
  OptionSet set(options);
  const auto words =
      context.read_words(set, "usage: megalith inspect picture FILE [--image_size N] [--output FILE.png]");
  if (!words) return kExitSuccess;
  if (words->size() != 1) {
    throw UserError(words->empty() ? "no picture given" : "several pictures given", "name one: inspect picture FILE");
  }
  if (options.output) {
    if (auto taken = check_replaceable("output", *options.output, {}, options.overwrite)) throw std::move(*taken);
  }
  const std::string& path = words->front();
  if (file_bytes(path) > kMaxPictureBytes) throw UserError(fmt::format("{} is too large for a picture", path));
  const std::string bytes = read_beginning(path, static_cast<size_t>(kMaxPictureBytes));
  Picture picture = decode_picture(bytes, path);
  print_out("{}: {}, {} × {} pixels\n", path, name_of_kind(kind_of_picture(bytes)), picture.width, picture.height);
  if (options.image_size) {
    picture = resize_and_crop(picture, *options.image_size, {.is_centred = true}, options.resize_filter);
  }
  if (options.output) {
    write_file_atomic(*options.output, encode_png(picture));
    print_out("{}: {} × {} pixels\n", *options.output, picture.width, picture.height);
  }
  return kExitSuccess;
}

CommandOptions inspect_picture_options() { return options_of<PictureInspection>("inspect picture"); }

}  // namespace megalith
