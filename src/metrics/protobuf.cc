#include "metrics/protobuf.h"

#include <bit>

namespace megalith {
namespace {

enum class Wire : uint64_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>((value & 0x7f) | 0x80));
  out.push_back(static_cast<char>(value));
}

void put_key(std::string& out, uint64_t field, Wire wire) { put_varint(out, field << 3 | static_cast<uint64_t>(wire)); }

}  // namespace

void put_number(std::string& message, uint64_t field, uint64_t value) {
  put_key(message, field, Wire::kVarint);
  put_varint(message, value);
}

void put_bytes(std::string& message, uint64_t field, std::string_view bytes) {
  put_key(message, field, Wire::kBytes);
  put_varint(message, bytes.size());
  message += bytes;
}

void put_double(std::string& message, uint64_t field, double value) {
  put_key(message, field, Wire::kFixed64);
  put_little_endian(message, std::bit_cast<uint64_t>(value));
}

void put_float(std::string& message, uint64_t field, float value) {
  put_key(message, field, Wire::kFixed32);
  put_little_endian(message, std::bit_cast<uint32_t>(value));
}

}  // namespace megalith
