// PNG through libpng, which reports errors by longjmp: objects with destructors live outside its callers, as in
// jpeg.cc.
#include "image/png.h"

#include <png.h>

#include <algorithm>
#include <csetjmp>
#include <cstring>

#include "core/error.h"
#include "image/codecs.h"

namespace megalith {
namespace {

struct PngJob {
  png_structp library = nullptr;
  png_infop info = nullptr;
  std::span<const char> input;
  std::string* output = nullptr;
  char message[160] = {};
};

[[noreturn]] void leave_png(png_structp library, png_const_charp message) {
  auto* job = static_cast<PngJob*>(png_get_error_ptr(library));
  std::strncpy(job->message, message, sizeof(job->message) - 1);
  png_longjmp(library, 1);
}

void ignore_png_warning(png_structp /*library*/, png_const_charp /*message*/) {}

void read_png_bytes(png_structp library, png_bytep out, size_t count) {
  auto* job = static_cast<PngJob*>(png_get_io_ptr(library));
  if (count > job->input.size()) png_error(library, "it ends too early");
  std::memcpy(out, job->input.data(), count);
  job->input = job->input.subspan(count);
}

void write_png_bytes(png_structp library, png_bytep bytes, size_t count) {
  static_cast<PngJob*>(png_get_io_ptr(library))->output->append(reinterpret_cast<const char*>(bytes), count);
}

void flush_png_bytes(png_structp /*library*/) {}

// Up to the pixels; asks for 8-bit RGB.
bool open_png(PngJob& job) {
  if (setjmp(png_jmpbuf(job.library)) != 0) return false;
  png_set_read_fn(job.library, &job, read_png_bytes);
  // decode_png() bounds them, with our message.
  png_set_user_limits(job.library, 0x7fffffff, 0x7fffffff);
  png_read_info(job.library, job.info);
  png_set_strip_16(job.library);
  png_set_expand(job.library);
  png_set_strip_alpha(job.library);
  png_set_gray_to_rgb(job.library);
  png_set_interlace_handling(job.library);
  return true;
}

bool read_png_rows(PngJob& job, png_bytep* rows) {
  if (setjmp(png_jmpbuf(job.library)) != 0) return false;
  png_read_update_info(job.library, job.info);
  png_read_image(job.library, rows);
  png_read_end(job.library, nullptr);
  return true;
}

bool write_png(PngJob& job, png_uint_32 width, png_uint_32 height, png_bytep* rows) {
  if (setjmp(png_jmpbuf(job.library)) != 0) return false;
  png_set_write_fn(job.library, &job, write_png_bytes, flush_png_bytes);
  png_set_IHDR(job.library, job.info, width, height, 8, PNG_COLOR_TYPE_RGB, PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  png_write_info(job.library, job.info);
  png_write_image(job.library, rows);
  png_write_end(job.library, nullptr);
  return true;
}

std::vector<png_bytep> rows_of(Picture& picture) {
  std::vector<png_bytep> rows;
  for (int64_t y = 0; y < picture.height; ++y) rows.push_back(picture.row(y));
  return rows;
}

}  // namespace

Picture decode_png(std::span<const char> bytes, const std::string& name, int64_t max_pixels) {
  PngJob job;
  job.input = bytes;
  job.library = png_create_read_struct(PNG_LIBPNG_VER_STRING, &job, leave_png, ignore_png_warning);
  MEGALITH_CHECK(job.library != nullptr, "libpng gives no reader");
  struct Destroyer {
    PngJob& job;
    ~Destroyer() { png_destroy_read_struct(&job.library, &job.info, nullptr); }
  } destroyer{job};
  job.info = png_create_info_struct(job.library);
  MEGALITH_CHECK(job.info != nullptr, "libpng gives no memory");
  const auto damaged = [&] { fail_damaged_picture(name, "PNG", job.message); };

  if (!open_png(job)) damaged();
  Picture picture =
      make_picture(png_get_image_width(job.library, job.info), png_get_image_height(job.library, job.info), name,
                   max_pixels);
  std::vector<png_bytep> rows = rows_of(picture);
  if (!read_png_rows(job, rows.data())) damaged();
  return picture;
}

std::string encode_png(const Picture& picture) {
  MEGALITH_CHECK(std::ssize(picture.rgb) == picture.width * picture.height * 3, "{} bytes for {} × {} pixels",
                 picture.rgb.size(), picture.width, picture.height);
  std::string file;
  PngJob job;
  job.output = &file;
  job.library = png_create_write_struct(PNG_LIBPNG_VER_STRING, &job, leave_png, ignore_png_warning);
  MEGALITH_CHECK(job.library != nullptr, "libpng gives no writer");
  struct Destroyer {
    PngJob& job;
    ~Destroyer() { png_destroy_write_struct(&job.library, &job.info); }
  } destroyer{job};
  job.info = png_create_info_struct(job.library);
  MEGALITH_CHECK(job.info != nullptr, "libpng gives no memory");
  Picture copy = picture;  // libpng takes non-const pointers
  std::vector<png_bytep> rows = rows_of(copy);
  const bool is_written =
      write_png(job, narrow<png_uint_32>(picture.width), narrow<png_uint_32>(picture.height), rows.data());
  MEGALITH_CHECK(is_written, "libpng: {}", job.message);
  return file;
}

}  // namespace megalith
