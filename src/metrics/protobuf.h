// Appends protocol-buffer fields to a message's bytes. LibTorch hides its protobuf library, and the sinks need no more.
//
// Source: protobuf.dev/programming-guides/encoding.
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

// int32, int64, uint64, bool and enums. Negative numbers as 64-bit two's complement.
void put_number(std::string& message, uint64_t field, uint64_t value);
// string, bytes and nested messages.
void put_bytes(std::string& message, uint64_t field, std::string_view bytes);
void put_double(std::string& message, uint64_t field, double value);
void put_float(std::string& message, uint64_t field, float value);

}  // namespace megalith
