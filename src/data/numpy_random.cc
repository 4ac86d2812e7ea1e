// NumPy's generators; see numpy_random.h.
#include "data/numpy_random.h"

#include <cmath>

#include "core/error.h"

namespace megalith {

NumpyRandomState::NumpyRandomState(uint32_t seed) {
  state_[0] = seed;
  for (uint32_t i = 1; i < kSize; ++i) state_[i] = 1812433253u * (state_[i - 1] ^ (state_[i - 1] >> 30)) + i;
}

void NumpyRandomState::refill() {
  constexpr size_t kShift = 397;
  const auto twisted = [](uint32_t here, uint32_t next, uint32_t far) {
    const uint32_t y = (here & 0x80000000u) | (next & 0x7fffffffu);
    return far ^ (y >> 1) ^ ((0u - (y & 1u)) & 0x9908b0dfu);
  };
  // Runs without wrap-around, which compilers vectorise.
  for (size_t i = 0; i < kSize - kShift; ++i) state_[i] = twisted(state_[i], state_[i + 1], state_[i + kShift]);
  for (size_t i = kSize - kShift; i + 1 < kSize; ++i) {
    state_[i] = twisted(state_[i], state_[i + 1], state_[i + kShift - kSize]);
  }
  state_[kSize - 1] = twisted(state_[kSize - 1], state_[0], state_[kShift - 1]);
  for (size_t i = 0; i < kSize; ++i) {
    uint32_t y = state_[i];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    drawn_[i] = y ^ (y >> 18);
  }
  position_ = 0;
}

void NumpyRandomState::draw_places(uint64_t max, std::span<uint32_t> places) {
  for (size_t i = 0; i < places.size();) {
    const uint64_t top = max - i;
    const uint64_t mask = ~uint64_t{0} >> std::countl_zero(top);
    // The mask holds until max falls below half of it. The next draw overwrites a rejected one, without a branch.
    const size_t end = i + static_cast<size_t>(std::min<uint64_t>(places.size() - i, top - (mask >> 1)));
    while (i < end) {
      if (position_ == kSize) refill();
      size_t position = position_;
      for (; position < kSize && i < end; ++position) {
        places[i] = drawn_[position] & static_cast<uint32_t>(mask);
        i += places[i] <= max - i ? 1 : 0;
      }
      position_ = position;
    }
  }
}

int64_t NumpyRandomState::geometric(double p) {
  MEGALITH_CHECK(p > 0 && p < 1.0 / 3, "geometric({}) is not supported", p);
  return static_cast<int64_t>(std::ceil(std::log1p(-random()) / std::log(1 - p)));
}

NumpyDefaultRng::NumpyDefaultRng(uint64_t seed) {
  // SeedSequence: mixes the seed's 32-bit words into a pool of four, which yields eight words.
  std::array<uint32_t, 4> pool = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32), 0, 0};
  uint32_t hash_constant = 0x43b0d7e5;
  const auto hash = [&](uint32_t value) {
    value ^= hash_constant;
    hash_constant *= 0x931e8875;
    value *= hash_constant;
    return value ^ (value >> 16);
  };
  const auto mix = [](uint32_t x, uint32_t y) {
    const uint32_t result = 0xca01f9dd * x - 0x4973f715 * y;
    return result ^ (result >> 16);
  };
  for (uint32_t& word : pool) word = hash(word);
  for (size_t source = 0; source < 4; ++source) {
    for (size_t target = 0; target < 4; ++target) {
      if (source != target) pool[target] = mix(pool[target], hash(pool[source]));
    }
  }
  std::array<uint64_t, 4> words{};
  uint32_t output_constant = 0x8b51f9dd;
  for (size_t k = 0; k < 8; ++k) {
    uint32_t value = pool[k % 4] ^ output_constant;
    output_constant *= 0x58f38ded;
    value *= output_constant;
    value ^= value >> 16;
    words[k / 2] |= static_cast<uint64_t>(value) << (k % 2 == 0 ? 0 : 32);
  }
  increment_ = ((static_cast<Word128>(words[2]) << 64 | words[3]) << 1) | 1;
  step();
  state_ += static_cast<Word128>(words[0]) << 64 | words[1];
  step();
}

void NumpyDefaultRng::step() {
  constexpr Word128 kMultiplier = static_cast<Word128>(0x2360ED051FC65DA4) << 64 | 0x4385DF649FCCF645;
  state_ = state_ * kMultiplier + increment_;
}

uint64_t NumpyDefaultRng::next_u64() {
  step();
  const auto folded = static_cast<uint64_t>(state_ >> 64) ^ static_cast<uint64_t>(state_);
  return std::rotr(folded, static_cast<int>(state_ >> 122));
}

uint32_t NumpyDefaultRng::next_u32() {
  if (has_spare_) {
    has_spare_ = false;
    return spare_;
  }
  const uint64_t word = next_u64();
  spare_ = static_cast<uint32_t>(word >> 32);
  has_spare_ = true;
  return static_cast<uint32_t>(word);
}

int64_t NumpyDefaultRng::integer(int64_t low, int64_t high) {
  const int64_t width = high - low;
  MEGALITH_CHECK(width > 0 && width <= INT64_C(0xffffffff), "integers({}, {}) is not supported", low, high);
  const auto count = static_cast<uint32_t>(width);
  const uint32_t threshold = (UINT32_MAX - count + 1) % count;  // 2^32 mod count
  uint64_t product = static_cast<uint64_t>(next_u32()) * count;
  while (static_cast<uint32_t>(product) < threshold) product = static_cast<uint64_t>(next_u32()) * count;
  return low + static_cast<int64_t>(product >> 32);
}

}  // namespace megalith
