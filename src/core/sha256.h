// SHA-256 and SHA-1, by which the hub names large and small files. SHA-1 does not protect against malice. Source: FIPS
// 180-4.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace megalith {

// Cuts a stream into padded 64-byte blocks.
class ShaBlocks {
 public:
  void update(std::span<const std::byte> bytes);
  void update(std::string_view text) { update(std::as_bytes(std::span(text))); }

 protected:
  ~ShaBlocks() = default;
  virtual void compress(const uint8_t* block) = 0;
  void pad();

 private:
  std::array<uint8_t, 64> block_{};
  size_t used_ = 0;
  uint64_t num_bytes_ = 0;
};

class Sha256 final : public ShaBlocks {
 public:
  // 64 lower-case digits; ends the stream.
  std::string hex();
  std::string bytes();

 private:
  void compress(const uint8_t* block) override;
  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
};

// 64 lower-case digits. Source: RFC 2104.
std::string hmac_sha256(std::string_view key, std::string_view text);

class Sha1 final : public ShaBlocks {
 public:
  // 40 lower-case digits; ends the stream.
  std::string hex();

 private:
  void compress(const uint8_t* block) override;
  std::array<uint32_t, 5> state_ = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0};
};

}  // namespace megalith
