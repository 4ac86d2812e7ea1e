#include "metrics/tfrecord.h"

#include <array>
#include <bit>

#include "metrics/protobuf.h"

namespace megalith {
namespace {

constexpr std::array<uint32_t, 256> make_crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? 0x82f63b78u : 0u);  // reflected polynomial
    table[byte] = crc;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kCrcTable = make_crc_table();

std::string event_at(double wall_time_s) {
  std::string event;
  put_double(event, 1, wall_time_s);
  return event;
}

std::string summary_event(double wall_time_s, int64_t step, std::string_view summary) {
  std::string event = event_at(wall_time_s);
  put_number(event, 2, static_cast<uint64_t>(step));
  put_bytes(event, 5, summary);
  return event;
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t crc = 0xffffffffu;
  for (const char c : bytes) crc = kCrcTable[(crc ^ static_cast<uint8_t>(c)) & 0xff] ^ (crc >> 8);
  return ~crc;
}

uint32_t masked_crc32c(std::string_view bytes) { return std::rotr(crc32c(bytes), 15) + 0xa282ead8u; }

std::string tfrecord(std::string_view message) {
  std::string record;
  put_little_endian(record, uint64_t{message.size()});
  put_little_endian(record, masked_crc32c(record));
  record += message;
  put_little_endian(record, masked_crc32c(message));
  return record;
}

std::string version_event(double wall_time_s) {
  std::string event = event_at(wall_time_s);
  put_bytes(event, 3, "brain.Event:2");
  return event;
}

std::string scalar_event(double wall_time_s, int64_t step, const std::vector<std::pair<std::string, double>>& scalars) {
  std::string summary;
  for (const auto& [tag, number] : scalars) {
    std::string value;
    put_bytes(value, 1, tag);
    put_float(value, 2, static_cast<float>(number));
    put_bytes(summary, 1, value);
  }
  return summary_event(wall_time_s, step, summary);
}

std::string text_event(double wall_time_s, int64_t step, std::string_view tag, std::string_view text) {
  constexpr uint64_t kString = 7;  // DataType DT_STRING
  std::string dim, shape, tensor, plugin, metadata, value, summary;
  put_number(dim, 1, 1);
  put_bytes(shape, 2, dim);
  put_number(tensor, 1, kString);
  put_bytes(tensor, 2, shape);
  put_bytes(tensor, 8, text);
  put_bytes(plugin, 1, "text");
  put_bytes(metadata, 1, plugin);
  put_bytes(value, 1, std::string(tag) + "/text_summary");
  put_bytes(value, 8, tensor);
  put_bytes(value, 9, metadata);
  put_bytes(summary, 1, value);
  return summary_event(wall_time_s, step, summary);
}

std::string image_event(double wall_time_s, int64_t step, std::string_view tag, std::string_view png, int64_t height,
                        int64_t width) {
  constexpr uint64_t kRgb = 3;
  std::string image, value, summary;
  put_number(image, 1, static_cast<uint64_t>(height));
  put_number(image, 2, static_cast<uint64_t>(width));
  put_number(image, 3, kRgb);
  put_bytes(image, 4, png);
  put_bytes(value, 1, tag);
  put_bytes(value, 4, image);
  put_bytes(summary, 1, value);
  return summary_event(wall_time_s, step, summary);
}

}  // namespace megalith
