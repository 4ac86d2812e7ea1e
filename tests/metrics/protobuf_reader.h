// Protocol-buffer messages taken apart, for tests of what the sinks write.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string_view>
#include <vector>

namespace megalith::test {

// Reads little-endian numbers and varints; an end before its time is a failed test.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}
  bool is_done() const { return rest_.empty(); }
  std::string_view take(size_t size) {
    if (size > rest_.size()) throw std::runtime_error("cut short");
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }
  uint64_t fixed(size_t size) {
    uint64_t value = 0;
    const std::string_view bytes = take(size);
    for (size_t i = 0; i < size; ++i) value |= uint64_t{static_cast<uint8_t>(bytes[i])} << (8 * i);
    return value;
  }
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const uint64_t byte = fixed(1);
      value |= (byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
  }

 private:
  std::string_view rest_;
};

struct Field {
  uint64_t number = 0;
  uint64_t value = 0;      // of a number, as stored
  std::string_view bytes;  // of a string or a message
};

inline std::vector<Field> fields_of(std::string_view message) {
  std::vector<Field> fields;
  for (Reader reader(message); !reader.is_done();) {
    const uint64_t key = reader.varint();
    Field field{key >> 3, 0, {}};
    if ((key & 7) == 0)
      field.value = reader.varint();
    else if ((key & 7) == 1)
      field.value = reader.fixed(8);
    else if ((key & 7) == 2)
      field.bytes = reader.take(reader.varint());
    else if ((key & 7) == 5)
      field.value = reader.fixed(4);
    else
      throw std::runtime_error("no such wire type");
    fields.push_back(field);
  }
  return fields;
}

}  // namespace megalith::test
