// Appends protocol-buffer fields to a message. (LibTorch hides its protobuf library.) Source:
// protobuf.dev/programming-guides/encoding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace megalith {

template <typename T>
void put_little_endian(std::string& out, T bits) {
  for (size_t i = 0; i < sizeof(T); ++i) out.push_back(static_cast<char>(bits >> (8 * i) & 0xff));
}

// int32, int64, uint64, bool and enums; negative numbers as 64-bit two's complement.
void put_number(std::string& message, uint64_t field, uint64_t value);
// string, bytes and nested messages.
void put_bytes(std::string& message, uint64_t field, std::string_view bytes);
void put_double(std::string& message, uint64_t field, double value);
void put_float(std::string& message, uint64_t field, float value);

}  // namespace megalith
