#include "core/sha256.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace megalith {
namespace {

constexpr std::array<uint32_t, 64> kSha256Constants = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t big_endian_word(const uint8_t* bytes) {
  return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | uint32_t{bytes[3]};
}

std::string words_as_hex(std::span<const uint32_t> words) {
  std::string text;
  for (const uint32_t word : words) text += fmt::format("{:08x}", word);
  return text;
}

}  // namespace

void ShaBlocks::update(std::span<const std::byte> bytes) {
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  size_t left = bytes.size();
  num_bytes_ += left;
  while (left > 0) {
    if (used_ == 0 && left >= block_.size()) {
      compress(data);
      data += block_.size();
      left -= block_.size();
      continue;
    }
    const size_t taken = std::min(left, block_.size() - used_);
    std::memcpy(block_.data() + used_, data, taken);
    used_ += taken;
    data += taken;
    left -= taken;
    if (used_ == block_.size()) {
      compress(block_.data());
      used_ = 0;
    }
  }
}

void ShaBlocks::pad() {
  const uint64_t num_bits = num_bytes_ * 8;
  block_[used_++] = 0x80;
  if (used_ > 56) {
    std::fill(block_.begin() + static_cast<std::ptrdiff_t>(used_), block_.end(), uint8_t{0});
    compress(block_.data());
    used_ = 0;
  }
  std::fill(block_.begin() + static_cast<std::ptrdiff_t>(used_), block_.end(), uint8_t{0});
  for (size_t i = 0; i < 8; ++i) block_[56 + i] = static_cast<uint8_t>(num_bits >> (56 - 8 * i));
  compress(block_.data());
}

std::string Sha256::hex() {
  pad();
  return words_as_hex(state_);
}

std::string Sha256::bytes() {
  pad();
  std::string text;
  for (const uint32_t word : state_) {
    for (const int shift : {24, 16, 8, 0}) text += static_cast<char>(word >> shift & 0xff);
  }
  return text;
}

void Sha256::compress(const uint8_t* block) {
  std::array<uint32_t, 64> w;
  for (size_t i = 0; i < 16; ++i) w[i] = big_endian_word(block + 4 * i);
  for (size_t i = 16; i < 64; ++i) {
    const uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
    const uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (size_t i = 0; i < 64; ++i) {
    const uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kSha256Constants[i] + w[i];
    const uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g;
    g = f;
    f = e;
    e = d + t1;
    d = c;
    c = b;
    b = a;
    a = t1 + t2;
  }
  const std::array<uint32_t, 8> added = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < 8; ++i) state_[i] += added[i];
}

std::string hmac_sha256(std::string_view key, std::string_view text) {
  constexpr size_t kBlock = 64;
  std::string inner(key);
  if (key.size() > kBlock) {
    Sha256 hash;
    hash.update(key);
    inner = hash.bytes();
  }
  inner.resize(kBlock, '\0');
  std::string outer = inner;
  for (char& byte : inner) byte = static_cast<char>(byte ^ 0x36);
  for (char& byte : outer) byte = static_cast<char>(byte ^ 0x5c);
  Sha256 first, second;
  first.update(inner);
  first.update(text);
  second.update(outer);
  second.update(first.bytes());
  return second.hex();
}

std::string Sha1::hex() {
  pad();
  return words_as_hex(state_);
}

void Sha1::compress(const uint8_t* block) {
  std::array<uint32_t, 80> w;
  for (size_t i = 0; i < 16; ++i) w[i] = big_endian_word(block + 4 * i);
  for (size_t i = 16; i < 80; ++i) w[i] = std::rotl(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
  auto [a, b, c, d, e] = state_;
  for (size_t i = 0; i < 80; ++i) {
    const uint32_t f = i < 20 ? (b & c) | (~b & d) : i < 40 || i >= 60 ? b ^ c ^ d : (b & c) | (b & d) | (c & d);
    const uint32_t k = i < 20 ? 0x5a827999 : i < 40 ? 0x6ed9eba1 : i < 60 ? 0x8f1bbcdc : 0xca62c1d6;
    const uint32_t t = std::rotl(a, 5) + f + e + k + w[i];
    e = d;
    d = c;
    c = std::rotl(b, 30);
    b = a;
    a = t;
  }
  const std::array<uint32_t, 5> added = {a, b, c, d, e};
  for (size_t i = 0; i < 5; ++i) state_[i] += added[i];
}

}  // namespace megalith
