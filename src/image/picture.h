// 8-bit RGB pictures, and their decoding.
//
// Files are untrusted: the kind is detected from the first bytes, the size is bounded before memory is taken, and
// damaged or truncated files are refused instead of filled with grey.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace megalith {

struct Picture {
  int64_t width = 0, height = 0;
  std::vector<uint8_t> rgb;  // height rows of width pixels of 3 bytes, the top row first

  const uint8_t* row(int64_t y) const { return rgb.data() + y * width * 3; }
  uint8_t* row(int64_t y) { return rgb.data() + y * width * 3; }
};

// Most pixels decoded: Pillow's limit for decompression bombs.
inline constexpr int64_t kMaxPicturePixels = 178'956'970;

enum class PictureKind { kUnknown, kJpeg, kPng, kWebp };
PictureKind kind_of_picture(std::span<const char> bytes);

// JPEG, PNG or WebP, like Pillow's open(…).convert("RGB") after ImageOps.exif_transpose: transparency is dropped, grey
// becomes RGB, EXIF orientation is applied, colour profiles are not.
//
// name  of the picture, for messages
// throws UserError: another kind, damaged or truncated, an animation, more than max_pixels
Picture decode_picture(std::span<const char> bytes, const std::string& name, int64_t max_pixels = kMaxPicturePixels);

// An empty picture. UserError, with the name, beyond max_pixels.
Picture make_picture(int64_t width, int64_t height, const std::string& name, int64_t max_pixels = kMaxPicturePixels);

}  // namespace megalith
