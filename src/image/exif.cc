// Every offset and length is checked before reading.
#include "image/exif.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"

namespace megalith {
namespace {

constexpr int kUpright = 1;

// The caller checks bounds.
uint32_t number_at(std::span<const char> bytes, size_t at, size_t count, bool is_big_endian) {
  uint32_t value = 0;
  for (size_t i = 0; i < count; ++i) {
    const auto byte = static_cast<uint8_t>(bytes[at + (is_big_endian ? i : count - 1 - i)]);
    value = (value << 8) | byte;
  }
  return value;
}

bool has_text(std::span<const char> bytes, size_t at, std::string_view text) {
  return at <= bytes.size() && text.size() <= bytes.size() - at &&
         std::memcmp(bytes.data() + at, text.data(), text.size()) == 0;
}

// Some writers add JPEG's marker in other files, too.
int orientation_of_exif(std::span<const char> exif) {
  constexpr std::string_view kMark("Exif\0\0", 6);
  return tiff_orientation(has_text(exif, 0, kMark) ? exif.subspan(kMark.size()) : exif);
}

}  // namespace

int tiff_orientation(std::span<const char> tiff) {
  if (tiff.size() < 8) return kUpright;
  const bool is_big = has_text(tiff, 0, "MM");
  if ((!is_big && !has_text(tiff, 0, "II")) || number_at(tiff, 2, 2, is_big) != 42) return kUpright;
  const size_t directory = number_at(tiff, 4, 4, is_big);
  if (directory > tiff.size() || tiff.size() - directory < 2) return kUpright;
  const size_t entries = number_at(tiff, directory, 2, is_big);
  for (size_t i = 0; i < entries; ++i) {
    const size_t at = directory + 2 + 12 * i;
    if (at + 12 > tiff.size()) break;
    if (number_at(tiff, at, 2, is_big) != 0x0112) continue;
    constexpr uint32_t kShort = 3, kLong = 4;
    const uint32_t type = number_at(tiff, at + 2, 2, is_big);
    if (type != kShort && type != kLong) break;
    const uint32_t value = number_at(tiff, at + 8, type == kShort ? 2 : 4, is_big);
    return value >= 1 && value <= 8 ? static_cast<int>(value) : kUpright;
  }
  return kUpright;
}

int jpeg_orientation(std::span<const char> bytes) {
  size_t at = 2;  // after the start of the image
  while (at + 4 <= bytes.size() && static_cast<uint8_t>(bytes[at]) == 0xff) {
    const auto marker = static_cast<uint8_t>(bytes[at + 1]);
    if (marker == 0xff) {  // a filling byte
      ++at;
      continue;
    }
    if (marker == 0xda || marker == 0xd9) break;  // pixels, or the end
    const size_t length = number_at(bytes, at + 2, 2, true);
    if (length < 2 || length > bytes.size() - at - 2) break;
    constexpr uint8_t kApp1 = 0xe1;
    constexpr std::string_view kMark("Exif\0\0", 6);
    if (marker == kApp1 && length >= 2 + kMark.size() && has_text(bytes, at + 4, kMark)) {
      return tiff_orientation(bytes.subspan(at + 4 + kMark.size(), length - 2 - kMark.size()));
    }
    at += 2 + length;
  }
  return kUpright;
}

int png_orientation(std::span<const char> bytes) {
  size_t at = 8;
  while (at + 12 <= bytes.size()) {
    const size_t length = number_at(bytes, at, 4, true);
    if (length > bytes.size() - at - 12) break;
    if (has_text(bytes, at + 4, "eXIf")) return orientation_of_exif(bytes.subspan(at + 8, length));
    at += 12 + length;
  }
  return kUpright;
}

int webp_orientation(std::span<const char> bytes) {
  size_t at = 12;
  while (at + 8 <= bytes.size()) {
    const size_t length = number_at(bytes, at + 4, 4, false);
    if (length > bytes.size() - at - 8) break;
    if (has_text(bytes, at, "EXIF")) return orientation_of_exif(bytes.subspan(at + 8, length));
    at += 8 + length + length % 2;
  }
  return kUpright;
}

Picture turned_upright(Picture picture, int orientation) {
  MEGALITH_CHECK(orientation >= 1 && orientation <= 8, "orientation {}", orientation);
  if (orientation == kUpright) return picture;
  const int64_t w = picture.width, h = picture.height;
  const bool swaps = orientation >= 5;
  Picture upright{swaps ? h : w, swaps ? w : h, std::vector<uint8_t>(picture.rgb.size())};
  for (int64_t y = 0; y < upright.height; ++y) {
    for (int64_t x = 0; x < upright.width; ++x) {
      // The stored position.
      int64_t from_x = swaps ? y : x, from_y = swaps ? x : y;
      if (orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8) from_x = w - 1 - from_x;
      if (orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7) from_y = h - 1 - from_y;
      std::copy_n(picture.row(from_y) + 3 * from_x, 3, upright.row(y) + 3 * x);
    }
  }
  return upright;
}

}  // namespace megalith
