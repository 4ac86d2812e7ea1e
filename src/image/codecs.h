// Decoders that decode_picture() calls.
#pragma once

#include "image/picture.h"

namespace megalith {

// libjpeg-turbo with the accurate integer transform and smooth chroma, as Pillow. CMYK becomes RGB.
Picture decode_jpeg(std::span<const char> bytes, const std::string& name, int64_t max_pixels);
// libpng; 16-bit values keep their high byte.
Picture decode_png(std::span<const char> bytes, const std::string& name, int64_t max_pixels);
// libwebp, lossy and lossless.
Picture decode_webp(std::span<const char> bytes, const std::string& name, int64_t max_pixels);

// UserError "NAME is a damaged KIND: REASON".
[[noreturn]] void fail_damaged_picture(const std::string& name, std::string_view kind, std::string_view reason);

}  // namespace megalith
