// Philox4x32-10: random numbers as a function of key and position, without state.
//
// Draws depend on (seed, canonical name, global index), never on rank: one seed gives one model under every layout, and
// resuming replays nothing.
//
//   key      64 bits, from make_philox_key(seed, name)
//   counter  low 64 bits: a block of four elements (index / 4); high 64: a stream (0 for weights; a sample's global
//            position for dropout)
//
// Element i is word i % 4 of block i / 4. GPU kernels repeat the rounds and are compared with this file. Source: Salmon
// et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <string_view>

namespace megalith {

using PhiloxBlock = std::array<uint32_t, 4>;

struct PhiloxCounter {
  uint64_t low = 0;
  uint64_t high = 0;
};

constexpr PhiloxBlock philox(uint64_t key, PhiloxCounter counter) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  auto c0 = static_cast<uint32_t>(counter.low), c1 = static_cast<uint32_t>(counter.low >> 32);
  auto c2 = static_cast<uint32_t>(counter.high), c3 = static_cast<uint32_t>(counter.high >> 32);
  auto k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = kMultiplier0 * c0, product1 = kMultiplier1 * c2;
    const auto high0 = static_cast<uint32_t>(product0 >> 32), low0 = static_cast<uint32_t>(product0);
    const auto high1 = static_cast<uint32_t>(product1 >> 32), low1 = static_cast<uint32_t>(product1);
    c0 = high1 ^ c1 ^ k0;
    c1 = low1;
    c2 = high0 ^ c3 ^ k1;
    c3 = low0;
    k0 += kWeyl0;
    k1 += kWeyl1;
  }
  return {c0, c1, c2, c3};
}

// SplitMix64's finaliser, a bijection.
constexpr uint64_t mix_bits(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

// `name`: a canonical parameter name, "dropout.model.layers.3.mlp". FNV-1a, mixed with the seed: the same on every
// machine.
constexpr uint64_t make_philox_key(uint64_t seed, std::string_view name) {
  uint64_t hash = 0xCBF29CE484222325;
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001B3;
  return mix_bits(hash + mix_bits(seed + 0x9E3779B97F4A7C15));
}

constexpr uint32_t random_word_at(uint64_t key, uint64_t index, uint64_t stream = 0) {
  return philox(key, {index / 4, stream})[index % 4];
}

// In [0, 1), a multiple of 2^-32. As a float it may round to 1: use random_word_at() >> 8.
constexpr double uniform_from_word(uint32_t word) { return word * 0x1p-32; }
constexpr double uniform_at(uint64_t key, uint64_t index, uint64_t stream = 0) {
  return uniform_from_word(random_word_at(key, index, stream));
}

// Box–Muller in double: words 0 and 1 give values 0 and 1, words 2 and 3 the others. |value| < 6.77, from 32 bits.
inline std::array<double, 4> normals_of_block(uint64_t key, uint64_t block, uint64_t stream = 0) {
  const PhiloxBlock words = philox(key, {block, stream});
  std::array<double, 4> values;
  for (int pair = 0; pair < 2; ++pair) {
    const double u = (words[2 * pair] + 0.5) * 0x1p-32;  // in (0, 1): finite logarithm
    const double angle = 2 * std::numbers::pi * uniform_from_word(words[2 * pair + 1]);
    const double radius = std::sqrt(-2 * std::log(u));
    values[2 * pair] = radius * std::cos(angle);
    values[2 * pair + 1] = radius * std::sin(angle);
  }
  return values;
}

inline double normal_at(uint64_t key, uint64_t index, uint64_t stream = 0) {
  return normals_of_block(key, index / 4, stream)[index % 4];
}

// normal_at(first), normal_at(first + 1), … at a quarter of the cost.
template <typename T>
void fill_normal(uint64_t key, uint64_t first, T* out, uint64_t count, uint64_t stream = 0) {
  for (uint64_t i = 0; i < count;) {
    const uint64_t index = first + i;
    const std::array<double, 4> values = normals_of_block(key, index / 4, stream);
    for (uint64_t lane = index % 4; lane < 4 && i < count; ++lane, ++i) out[i] = static_cast<T>(values[lane]);
  }
}

}  // namespace megalith
