// WebP through libwebp.
#include <webp/decode.h>

#include "core/error.h"
#include "image/codecs.h"

namespace megalith {
namespace {

std::string_view webp_reason(VP8StatusCode status) {
  switch (status) {
    case VP8_STATUS_NOT_ENOUGH_DATA:
    case VP8_STATUS_SUSPENDED:
      return "it ends too early";
    case VP8_STATUS_OUT_OF_MEMORY:
      return "there is not enough memory";
    default:
      return "its data are not valid";
  }
}

}  // namespace

Picture decode_webp(std::span<const char> bytes, const std::string& name, int64_t max_pixels) {
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  WebPDecoderConfig config;
  MEGALITH_CHECK(WebPInitDecoderConfig(&config) != 0, "libwebp has another version than its headers");
  VP8StatusCode status = WebPGetFeatures(data, bytes.size(), &config.input);
  if (status != VP8_STATUS_OK) fail_damaged_picture(name, "WebP", webp_reason(status));
  if (config.input.has_animation != 0) {
    throw UserError(fmt::format("{} is an animated WebP", name), "convert one of its pictures, or take it out");
  }
  Picture picture = make_picture(config.input.width, config.input.height, name, max_pixels);
  config.output.colorspace = MODE_RGB;
  config.output.is_external_memory = 1;
  config.output.u.RGBA.rgba = picture.rgb.data();
  config.output.u.RGBA.stride = static_cast<int>(picture.width * 3);
  config.output.u.RGBA.size = picture.rgb.size();
  status = WebPDecode(data, bytes.size(), &config);
  WebPFreeDecBuffer(&config.output);
  if (status != VP8_STATUS_OK) fail_damaged_picture(name, "WebP", webp_reason(status));
  return picture;
}

}  // namespace megalith
