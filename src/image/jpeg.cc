// JPEG through libjpeg-turbo, which reports errors by longjmp: nothing with a destructor may live between setjmp() and
// its calls, so these functions use a plain struct that decode_jpeg() owns.
#include <csetjmp>
#include <cstdio>  // jpeglib.h needs it

#include <jerror.h>
#include <jpeglib.h>

#include "core/error.h"
#include "core/visible_text.h"
#include "image/codecs.h"

namespace megalith {
namespace {

struct JpegReader {
  jpeg_decompress_struct library;
  jpeg_error_mgr errors;
  std::jmp_buf on_error;
  char message[JMSG_LENGTH_MAX];
};

[[noreturn]] void leave_jpeg(j_common_ptr library) {
  auto* reader = static_cast<JpegReader*>(library->client_data);
  library->err->format_message(library, reader->message);
  std::longjmp(reader->on_error, 1);
}

// Tolerates warnings, as Pillow, but not premature end of data, which leaves rows grey.
void hear_jpeg_warning(j_common_ptr library, int level) {
  const int code = library->err->msg_code;
  if (level < 0 && (code == JWRN_JPEG_EOF || code == JWRN_HIT_MARKER)) leave_jpeg(library);
}

bool open_jpeg(JpegReader& reader, std::span<const char> bytes) {
  if (setjmp(reader.on_error) != 0) return false;
  jpeg_create_decompress(&reader.library);
  jpeg_mem_src(&reader.library, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
  jpeg_read_header(&reader.library, TRUE);
  const J_COLOR_SPACE space = reader.library.jpeg_color_space;
  reader.library.out_color_space = space == JCS_CMYK || space == JCS_YCCK ? JCS_CMYK : JCS_RGB;
  reader.library.dct_method = JDCT_ISLOW;
  return true;
}

// rows  of width · components bytes; row i at out + i · stride
bool read_jpeg_rows(JpegReader& reader, uint8_t* out, size_t stride) {
  if (setjmp(reader.on_error) != 0) return false;
  jpeg_start_decompress(&reader.library);
  while (reader.library.output_scanline < reader.library.output_height) {
    JSAMPROW row = out + reader.library.output_scanline * stride;
    jpeg_read_scanlines(&reader.library, &row, 1);
  }
  jpeg_finish_decompress(&reader.library);
  return true;
}

// As Pillow: v = (255 - ink) (255 - black) / 255. Adobe's files hold 255 - ink.
void inks_to_rgb(const uint8_t* cmyk, uint8_t* rgb, size_t pixels, bool is_inverted) {
  for (size_t i = 0; i < pixels; ++i) {
    const int flip = is_inverted ? 0 : 255;
    const int black = cmyk[4 * i + 3] ^ flip;
    for (size_t c = 0; c < 3; ++c) {
      const int product = (cmyk[4 * i + c] ^ flip) * black;
      rgb[3 * i + c] = static_cast<uint8_t>((product + 127) / 255);
    }
  }
}

}  // namespace

Picture decode_jpeg(std::span<const char> bytes, const std::string& name, int64_t max_pixels) {
  JpegReader reader{};
  reader.library.err = jpeg_std_error(&reader.errors);
  reader.errors.error_exit = leave_jpeg;
  reader.errors.emit_message = hear_jpeg_warning;
  reader.library.client_data = &reader;
  struct Destroyer {
    jpeg_decompress_struct& library;
    ~Destroyer() { jpeg_destroy_decompress(&library); }
  } destroyer{reader.library};
  const auto damaged = [&] { fail_damaged_picture(name, "JPEG", reader.message); };

  if (!open_jpeg(reader, bytes)) damaged();
  Picture picture = make_picture(reader.library.image_width, reader.library.image_height, name, max_pixels);
  const auto width = static_cast<size_t>(picture.width);
  if (reader.library.out_color_space == JCS_RGB) {
    if (!read_jpeg_rows(reader, picture.rgb.data(), width * 3)) damaged();
    return picture;
  }
  std::vector<uint8_t> inks(width * static_cast<size_t>(picture.height) * 4);
  if (!read_jpeg_rows(reader, inks.data(), width * 4)) damaged();
  inks_to_rgb(inks.data(), picture.rgb.data(), inks.size() / 4, reader.library.saw_Adobe_marker != 0);
  return picture;
}

void fail_damaged_picture(const std::string& name, std::string_view kind, std::string_view reason) {
  throw UserError(fmt::format("{} is a damaged {}: {}", name, kind, visible_text(reason)),
                  "it was probably cut while copying: fetch it again, or take it out");
}

}  // namespace megalith
