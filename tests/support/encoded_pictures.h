// Pictures as files of kinds that the program only reads.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>

#include <jpeglib.h>
#include <webp/encode.h>

#include "image/picture.h"

namespace megalith::test {

inline std::string as_jpeg(const Picture& picture) {
  jpeg_compress_struct library{};
  jpeg_error_mgr errors{};
  library.err = jpeg_std_error(&errors);
  jpeg_create_compress(&library);
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&library, &bytes, &size);
  library.image_width = static_cast<JDIMENSION>(picture.width);
  library.image_height = static_cast<JDIMENSION>(picture.height);
  library.input_components = 3;
  library.in_color_space = JCS_RGB;
  jpeg_set_defaults(&library);
  jpeg_start_compress(&library, TRUE);
  for (int64_t y = 0; y < picture.height; ++y) {
    JSAMPROW row = const_cast<JSAMPROW>(picture.row(y));
    jpeg_write_scanlines(&library, &row, 1);
  }
  jpeg_finish_compress(&library);
  jpeg_destroy_compress(&library);
  const std::string text(reinterpret_cast<char*>(bytes), size);
  std::free(bytes);
  return text;
}

inline std::string as_webp(const Picture& picture) {
  uint8_t* bytes = nullptr;
  const int width = static_cast<int>(picture.width), height = static_cast<int>(picture.height);
  const size_t size = WebPEncodeLosslessRGB(picture.rgb.data(), width, height, 3 * width, &bytes);
  const std::string text(reinterpret_cast<char*>(bytes), size);
  WebPFree(bytes);
  return text;
}

}  // namespace megalith::test
