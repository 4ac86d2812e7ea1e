// XXH3 checksums: against damage, not malice.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace megalith {

struct Checksum128 {
  uint64_t high = 0;
  uint64_t low = 0;
  auto operator<=>(const Checksum128&) const = default;
  std::string hex() const;  // 32 lower-case digits, most significant first, like `xxhsum -H128`
};

// Null unless the text is 32 hexadecimal digits.
std::optional<Checksum128> parse_checksum(std::string_view text);

uint64_t checksum64(std::span<const std::byte> bytes);
uint64_t checksum64(std::string_view text);
Checksum128 checksum128(std::span<const std::byte> bytes);
Checksum128 checksum128(std::string_view text);

class StreamingChecksum {
 public:
  StreamingChecksum();
  ~StreamingChecksum();
  StreamingChecksum(StreamingChecksum&&) noexcept;
  StreamingChecksum& operator=(StreamingChecksum&&) noexcept;

  void update(std::span<const std::byte> bytes);
  void update(std::string_view text);
  // More may follow.
  uint64_t sum64() const;
  Checksum128 sum128() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace megalith
