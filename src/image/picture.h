// Pictures: eight bits of red, green and blue a pixel, and how they come out of files.
//
// A file comes from outside: its kind is told by its first bytes, its size is bounded before memory is taken, and what
// is damaged or cut short is refused instead of being filled with grey.
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

// Pixels of the largest picture that is decoded: where Pillow refuses a file as a decompression bomb.
inline constexpr int64_t kMaxPicturePixels = 178'956'970;

enum class PictureKind { kUnknown, kJpeg, kPng, kWebp };
PictureKind kind_of_picture(std::span<const char> bytes);

// JPEG, PNG or WebP, as Pillow's open(…).convert("RGB") after ImageOps.exif_transpose has it: transparency is dropped,
// grey becomes three equal channels, the orientation of EXIF is applied. Colour profiles are not.
//
// name  of the picture, for messages
// throws UserError: another kind, damaged or cut short, an animation, more than max_pixels
Picture decode_picture(std::span<const char> bytes, const std::string& name, int64_t max_pixels = kMaxPicturePixels);

// An empty picture of this size. UserError, with the name, for one of more than max_pixels.
Picture make_picture(int64_t width, int64_t height, const std::string& name, int64_t max_pixels = kMaxPicturePixels);

}  // namespace megalith
