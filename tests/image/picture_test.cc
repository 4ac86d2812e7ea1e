// Pictures: what decoders refuse, orientation, sizes, and the way there and back. Pillow judges the pixels themselves
// in tests/oracle/pictures_test.py.
#include "image/picture.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <numeric>

#include "core/error.h"
#include "image/exif.h"
#include "image/pixels.h"
#include "image/png.h"
#include "image/resize.h"
#include "support/encoded_pictures.h"

namespace megalith {
namespace {

using test::as_jpeg;
using test::as_webp;

Picture pattern(int64_t width, int64_t height) {
  Picture picture = make_picture(width, height, "pattern");
  for (size_t i = 0; i < picture.rgb.size(); ++i) picture.rgb[i] = static_cast<uint8_t>(i * 37 + i / 7 * 11);
  return picture;
}

// TIFF data that hold nothing but an orientation.
std::string tiff_of(int orientation, bool is_big_endian) {
  const auto number = [&](uint32_t value, int count) {
    std::string text;
    for (int i = 0; i < count; ++i) {
      const int shift = 8 * (is_big_endian ? count - 1 - i : i);
      text.push_back(static_cast<char>(value >> shift));
    }
    return text;
  };
  return (is_big_endian ? "MM" : "II") + number(42, 2) + number(8, 4) + number(1, 2) + number(0x0112, 2) +
         number(3, 2) + number(1, 4) + number(static_cast<uint32_t>(orientation), 2) + number(0, 2) + number(0, 4);
}

std::string with_exif(const std::string& jpeg, const std::string& tiff) {
  const std::string data = std::string("Exif\0\0", 6) + tiff;
  const size_t length = data.size() + 2;
  return jpeg.substr(0, 2) + "\xff\xe1" + static_cast<char>(length >> 8) + static_cast<char>(length) + data +
         jpeg.substr(2);
}

std::string refusal_of_picture(const std::string& bytes) {
  try {
    decode_picture(bytes, "a.jpg");
  } catch (const UserError& error) {
    return error.message();
  }
  return "accepted";
}

TEST(Picture, PngIsReadAsItWasWritten) {
  for (const auto& [width, height] : {std::pair{1, 1}, {7, 3}, {64, 65}}) {
    const Picture picture = pattern(width, height);
    const Picture read = decode_picture(encode_png(picture), "a.png");
    EXPECT_EQ(read.width, width);
    EXPECT_EQ(read.height, height);
    EXPECT_EQ(read.rgb, picture.rgb);
  }
}

TEST(Picture, LosslessWebpIsReadAsItWasWritten) {
  const Picture picture = pattern(9, 5);
  EXPECT_EQ(decode_picture(as_webp(picture), "a.webp").rgb, picture.rgb);
}

TEST(Picture, WhatIsCutAnywhereIsRefused) {
  const Picture picture = pattern(33, 21);
  for (const std::string& file : {as_jpeg(picture), encode_png(picture), as_webp(picture)}) {
    ASSERT_EQ(refusal_of_picture(file), "accepted");
    // The last bytes of a JPEG are the mark of its end, those of a PNG a checksum, and a WebP may end with filling.
    for (size_t size = 12; size + 12 < file.size(); size += 7) {
      const std::string message = refusal_of_picture(file.substr(0, size));
      EXPECT_NE(message.find("a.jpg is a damaged"), std::string::npos) << size << " bytes: " << message;
    }
  }
}

TEST(Picture, OtherKindsAndEmptyFilesAreRefused) {
  EXPECT_EQ(refusal_of_picture(""), "a.jpg is empty");
  EXPECT_EQ(refusal_of_picture("GIF89a, and more"), "a.jpg is no JPEG, PNG or WebP: it begins with \"GIF89a, \"");
}

TEST(Picture, AFileThatClaimsManyPixelsIsRefusedBeforeMemoryIsTaken) {
  // A JPEG's header has no checksum; its largest side is 65500.
  std::string jpeg = as_jpeg(pattern(2, 2));
  const size_t frame = jpeg.find("\xff\xc0");
  ASSERT_NE(frame, std::string::npos);
  for (size_t i = 5; i < 9; ++i) jpeg[frame + i] = static_cast<char>(i % 2 == 1 ? 0xff : 0xdc);
  EXPECT_EQ(refusal_of_picture(jpeg), "a.jpg has 65500 × 65500 pixels, and at most 178956970 are decoded");
}

TEST(Picture, OrientationTurnsAPictureUpright) {
  // Six pixels, by their red: stored as rows 0 1 2 / 3 4 5.
  Picture stored{3, 2, std::vector<uint8_t>(18)};
  for (size_t i = 0; i < 6; ++i) stored.rgb[3 * i] = static_cast<uint8_t>(i);
  const std::vector<std::vector<int>> upright = {{0, 1, 2, 3, 4, 5}, {2, 1, 0, 5, 4, 3}, {5, 4, 3, 2, 1, 0},
                                                 {3, 4, 5, 0, 1, 2}, {0, 3, 1, 4, 2, 5}, {3, 0, 4, 1, 5, 2},
                                                 {5, 2, 4, 1, 3, 0}, {2, 5, 1, 4, 0, 3}};
  for (int orientation = 1; orientation <= 8; ++orientation) {
    const Picture turned = turned_upright(stored, orientation);
    EXPECT_EQ(turned.width, orientation >= 5 ? 2 : 3) << orientation;
    std::vector<int> reds;
    for (size_t i = 0; i < 6; ++i) reds.push_back(turned.rgb[3 * i]);
    EXPECT_EQ(reds, upright[static_cast<size_t>(orientation - 1)]) << orientation;
  }
}

TEST(Picture, OrientationIsFoundInEitherOrderOfBytes) {
  const std::string jpeg = as_jpeg(pattern(24, 16));
  for (const bool is_big : {false, true}) {
    for (int orientation = 1; orientation <= 8; ++orientation) {
      EXPECT_EQ(tiff_orientation(tiff_of(orientation, is_big)), orientation);
      const Picture picture = decode_picture(with_exif(jpeg, tiff_of(orientation, is_big)), "a.jpg");
      EXPECT_EQ(picture.width, orientation >= 5 ? 16 : 24);
    }
  }
}

TEST(Picture, OrientationThatMakesNoSenseIsUpright) {
  const std::string good = tiff_of(6, false);
  EXPECT_EQ(tiff_orientation(tiff_of(0, false)), 1);
  EXPECT_EQ(tiff_orientation(tiff_of(9, true)), 1);
  for (size_t size = 0; size + 6 < good.size(); ++size) EXPECT_EQ(tiff_orientation(good.substr(0, size)), 1) << size;
  std::string far = good;
  far[4] = far[5] = far[6] = far[7] = '\xff';
  EXPECT_EQ(tiff_orientation(far), 1);
}

TEST(Resize, OneColourStaysAndTheSameSizeIsTheSamePicture) {
  Picture grey = make_picture(50, 31, "grey");
  std::fill(grey.rgb.begin(), grey.rgb.end(), uint8_t{201});
  for (const ResizeFilter filter : {ResizeFilter::kLanczos, ResizeFilter::kBicubic, ResizeFilter::kBilinear}) {
    const Picture small = resize(grey, 17, 40, filter);
    EXPECT_EQ(small.rgb, std::vector<uint8_t>(17 * 40 * 3, 201));
    const Picture picture = pattern(13, 8);
    EXPECT_EQ(resize(picture, 13, 8, filter).rgb, picture.rgb);
  }
}

TEST(Resize, BilinearHalvesByTheTriangle) {
  // Weights of the triangle of width 4 around the middle of two pixels are 1 3 3 1 of 8; beyond the sides there is
  // nothing, so the first one has 3 3 1 of 7.
  Picture row = make_picture(4, 1, "row");
  for (size_t i = 0; i < 12; ++i) row.rgb[i] = static_cast<uint8_t>(i / 3 * 70);
  const Picture half = resize(row, 2, 1, ResizeFilter::kBilinear);
  EXPECT_EQ(half.rgb[0], 50);   // (0·3 + 70·3 + 140·1) / 7
  EXPECT_EQ(half.rgb[3], 160);  // (70·1 + 140·3 + 210·3) / 7
}

TEST(Resize, ASquareIsCutWhereItIsAsked) {
  const Picture wide = pattern(40, 16);
  const auto column = [&](const CropPlace& place) {
    const Picture square = resize_and_crop(wide, 16, place);
    EXPECT_EQ(square.width, 16);
    EXPECT_EQ(square.height, 16);
    for (int64_t x = 0; x <= 24; ++x) {
      if (crop(wide, x, 0, 16, 16).rgb == square.rgb) return x;
    }
    return int64_t{-1};
  };
  EXPECT_EQ(column({.is_centred = true}), 12);
  EXPECT_EQ(column({.is_centred = false, .along = 0}), 0);
  EXPECT_EQ(column({.is_centred = false, .along = 0.99999}), 24);
  EXPECT_EQ(resize_and_crop(pattern(30, 90), 15, {}).height, 15);
}

TEST(Pixels, AreMinusOneToOneAndComeBack) {
  Picture picture = make_picture(16, 16, "all bytes");
  for (size_t i = 0; i < picture.rgb.size(); ++i) picture.rgb[i] = static_cast<uint8_t>(i);
  const at::Tensor pixels = to_pixels(picture);
  EXPECT_EQ(pixels.sizes(), (std::vector<int64_t>{3, 16, 16}));
  EXPECT_EQ(pixels.min().item<float>(), -1.0f);
  EXPECT_EQ(pixels.max().item<float>(), 1.0f);
  EXPECT_EQ(pixels[1][0][0].item<float>(), 1.0f / 255 * 2 - 1);
  EXPECT_EQ(from_pixels(pixels).rgb, picture.rgb);
  EXPECT_EQ(from_pixels(at::full({3, 1, 1}, 7.0)).rgb, std::vector<uint8_t>(3, 255));
  EXPECT_EQ(from_pixels(at::full({3, 1, 1}, -7.0, at::kBFloat16)).rgb, std::vector<uint8_t>(3, 0));
}

}  // namespace
}  // namespace megalith
