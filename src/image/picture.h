// 8-bit RGB pictures, and their decoding. Files are untrusted: the first bytes give the kind, the size is bounded
// before taking memory, damaged or truncated files are refused.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace megalith {

struct Picture {
  int64_t width = 0, height = 0;
  std::vector<uint8_t> rgb;  // height rows of width pixels of 3 bytes, top row first

  const uint8_t* row(int64_t y) const { return rgb.data() + y * width * 3; }
  uint8_t* row(int64_t y) { return rgb.data() + y * width * 3; }
};

// Pillow's limit against decompression bombs.
inline constexpr int64_t kMaxPicturePixels = 178'956'970;

enum class PictureKind { kUnknown, kJpeg, kPng, kWebp };
PictureKind kind_of_picture(std::span<const char> bytes);

// JPEG, PNG or WebP, as Pillow's open(…).convert("RGB") after ImageOps.exif_transpose: drops transparency, turns grey
// to RGB, applies EXIF orientation, ignores colour profiles. UserError: another kind, damaged or truncated, an
// animation, more than max_pixels.
//   name  for messages
Picture decode_picture(std::span<const char> bytes, const std::string& name, int64_t max_pixels = kMaxPicturePixels);

// UserError, with the name, beyond max_pixels.
Picture make_picture(int64_t width, int64_t height, const std::string& name, int64_t max_pixels = kMaxPicturePixels);

}  // namespace megalith
