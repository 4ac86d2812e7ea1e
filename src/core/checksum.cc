#include "core/checksum.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <charconv>
#include <new>

namespace megalith {
namespace {

Checksum128 from_xxh(XXH128_hash_t hash) { return {.high = hash.high64, .low = hash.low64}; }

}  // namespace

std::string Checksum128::hex() const { return fmt::format("{:016x}{:016x}", high, low); }

std::optional<Checksum128> parse_checksum(std::string_view text) {
  if (text.size() != 32) return std::nullopt;
  Checksum128 sum;
  const char* middle = text.data() + 16;
  const auto high = std::from_chars(text.data(), middle, sum.high, 16);
  const auto low = std::from_chars(middle, middle + 16, sum.low, 16);
  if (high.ec != std::errc{} || high.ptr != middle || low.ec != std::errc{} || low.ptr != middle + 16)
    return std::nullopt;
  return sum;
}

uint64_t checksum64(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }
uint64_t checksum64(std::string_view text) { return XXH3_64bits(text.data(), text.size()); }
Checksum128 checksum128(std::span<const std::byte> bytes) { return from_xxh(XXH3_128bits(bytes.data(), bytes.size())); }
Checksum128 checksum128(std::string_view text) { return from_xxh(XXH3_128bits(text.data(), text.size())); }

// Opaque and over-aligned: xxHash allocates it. Serves both widths.
struct StreamingChecksum::State {
  State() : xxh(XXH3_createState()) {
    if (xxh == nullptr) throw std::bad_alloc();
    XXH3_128bits_reset(xxh);
  }
  ~State() { XXH3_freeState(xxh); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  XXH3_state_t* xxh;
};

StreamingChecksum::StreamingChecksum() : state_(std::make_unique<State>()) {}
StreamingChecksum::~StreamingChecksum() = default;
StreamingChecksum::StreamingChecksum(StreamingChecksum&&) noexcept = default;
StreamingChecksum& StreamingChecksum::operator=(StreamingChecksum&&) noexcept = default;

void StreamingChecksum::update(std::span<const std::byte> bytes) {
  XXH3_128bits_update(state_->xxh, bytes.data(), bytes.size());
}
void StreamingChecksum::update(std::string_view text) { update(std::as_bytes(std::span(text))); }

uint64_t StreamingChecksum::sum64() const { return XXH3_64bits_digest(state_->xxh); }
Checksum128 StreamingChecksum::sum128() const { return from_xxh(XXH3_128bits_digest(state_->xxh)); }

}  // namespace megalith
