#include "gguf/quantization.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/error.h"

namespace megalith {
namespace {

constexpr size_t kSuperBlock = 256;
constexpr float kNothing = 1e-15F;  // below it a run counts as zero

struct Block8 {  // Q8_0
  c10::Half scale;
  int8_t numbers[32];
};
struct Block5 {  // Q5_0
  c10::Half scale;
  uint8_t high[4], low[16];  // fifth bits; low nibbles of values i and i + 16
};
struct Block5WithLeast {  // Q5_1
  c10::Half scale, least;
  uint8_t high[4], low[16];
};
struct Block4K {
  c10::Half scale, least;
  uint8_t scales[12], low[128];
};
struct Block5K {
  c10::Half scale, least;
  uint8_t scales[12], high[32], low[128];
};
struct Block6K {
  uint8_t low[128], high[64];
  int8_t scales[16];
  c10::Half scale;
};
static_assert(sizeof(Block8) == 34 && sizeof(Block5) == 22 && sizeof(Block5WithLeast) == 24 &&
              sizeof(Block4K) == 144 && sizeof(Block5K) == 176 && sizeof(Block6K) == 210);

// Ties to even, as ggml's.
int nearest(float value) { return static_cast<int>(std::nearbyint(value)); }

int clamped(float value, int least, int most) { return std::clamp(nearest(value), least, most); }

void store(Block8& block, const float* x) {
  float largest = 0;
  for (int i = 0; i < 32; ++i) largest = std::max(largest, std::abs(x[i]));
  const float scale = largest / 127, inverse = scale != 0 ? 1 / scale : 0;
  block.scale = scale;
  for (int i = 0; i < 32; ++i) block.numbers[i] = static_cast<int8_t>(std::round(x[i] * inverse));
}

// 5-bit numbers in the order of Q5_0 and Q5_1.
template <typename Block>
void store_numbers(Block& block, const uint8_t (&numbers)[32]) {
  uint32_t high = 0;
  for (uint32_t i = 0; i < 16; ++i) {
    block.low[i] = static_cast<uint8_t>((numbers[i] & 15) | (numbers[i + 16] & 15) << 4);
    high |= static_cast<uint32_t>(numbers[i] >> 4) << i | static_cast<uint32_t>(numbers[i + 16] >> 4) << (i + 16);
  }
  std::memcpy(block.high, &high, sizeof(high));
}

void store(Block5& block, const float* x) {
  const float extreme = *std::max_element(x, x + 32, [](float a, float b) { return std::abs(a) < std::abs(b); });
  const float scale = extreme / -16, inverse = scale != 0 ? 1 / scale : 0;
  block.scale = scale;
  uint8_t numbers[32];
  for (int i = 0; i < 32; ++i) {
    numbers[i] = static_cast<uint8_t>(std::min(31, static_cast<int>(x[i] * inverse + 16.5F)));
  }
  store_numbers(block, numbers);
}

void store(Block5WithLeast& block, const float* x) {
  const auto [least, most] = std::minmax_element(x, x + 32);
  const float scale = (*most - *least) / 31, inverse = scale != 0 ? 1 / scale : 0;
  block.scale = scale;
  block.least = *least;
  uint8_t numbers[32];
  for (int i = 0; i < 32; ++i) numbers[i] = static_cast<uint8_t>((x[i] - *least) * inverse + 0.5F);
  store_numbers(block, numbers);
}

struct Line {  // x = scale * number - offset
  float scale = 0, offset = 0;
};

// The line of a run of 32 values with numbers 0 … most. Tries scales around the run's range, each with the least
// squares over its numbers, weighted by the values' size.
Line fit_line(const float* x, int most, float first_step, int num_steps) {
  constexpr int kRun = 32;
  float squares = 0;
  for (int i = 0; i < kRun; ++i) squares += x[i] * x[i];
  const float typical = std::sqrt(squares / kRun);
  float weights[kRun], sum_w = 0, sum_x = 0, low = x[0], high = x[0];
  for (int i = 0; i < kRun; ++i) {
    weights[i] = typical + std::abs(x[i]);
    sum_w += weights[i];
    sum_x += weights[i] * x[i];
    low = std::min(low, x[i]);
    high = std::max(high, x[i]);
  }
  low = std::min(low, 0.0F);
  if (high == low) return {0, -low};

  // Later candidates are counted from the best line's beginning so far.
  float best_error = std::numeric_limits<float>::infinity(), scale = 1, base = low;
  int numbers[kRun];
  const auto try_line = [&](float slope, float begin) {
    float error = 0;
    for (int i = 0; i < kRun; ++i) {
      const float difference = slope * static_cast<float>(numbers[i]) + begin - x[i];
      error += weights[i] * (difference * difference);
    }
    if (error >= best_error) return;
    best_error = error;
    scale = slope;
    base = begin;
  };
  const auto number_by = [&](float inverse) {
    for (int i = 0; i < kRun; ++i) numbers[i] = clamped(inverse * (x[i] - base), 0, most);
  };
  const float plain = static_cast<float>(most) / (high - low);
  number_by(plain);
  try_line(1 / plain, low);
  for (int step = 0; step <= num_steps; ++step) {
    number_by((first_step + 0.1F * static_cast<float>(step) + static_cast<float>(most)) / (high - base));
    float sum_l = 0, sum_l2 = 0, sum_xl = 0;
    for (int i = 0; i < kRun; ++i) {
      const auto l = static_cast<float>(numbers[i]);
      sum_l += weights[i] * l;
      sum_l2 += weights[i] * l * l;
      sum_xl += weights[i] * l * x[i];
    }
    const float determinant = sum_w * sum_l2 - sum_l * sum_l;
    if (determinant <= 0) continue;
    const float begin = (sum_l2 * sum_x - sum_l * sum_xl) / determinant;
    if (begin > 0) {
      try_line(sum_xl / sum_l2, 0);
    } else {
      try_line((sum_w * sum_xl - sum_x * sum_l) / determinant, begin);
    }
  }
  return {scale, -base};
}

// Shared by Q4_K and Q5_K: eight lines in 6 bits each, under two common scales; returns numbers 0 … most.
template <typename Block>
std::array<uint8_t, kSuperBlock> store_lines(Block& block, const float* x, int most, float first_step, int num_steps) {
  std::array<Line, 8> lines;
  float largest_scale = 0, largest_offset = 0;
  for (size_t run = 0; run < 8; ++run) {
    lines[run] = fit_line(x + 32 * run, most, first_step, num_steps);
    largest_scale = std::max(largest_scale, lines[run].scale);
    largest_offset = std::max(largest_offset, lines[run].offset);
  }
  block.scale = largest_scale / 63;
  block.least = largest_offset / 63;
  const float to_scale = largest_scale > 0 ? 63 / largest_scale : 0;
  const float to_offset = largest_offset > 0 ? 63 / largest_offset : 0;
  std::array<uint8_t, kSuperBlock> numbers{};
  std::fill(std::begin(block.scales), std::end(block.scales), uint8_t{0});
  for (size_t run = 0; run < 8; ++run) {
    const int scale = clamped(to_scale * lines[run].scale, 0, 63);
    const int offset = clamped(to_offset * lines[run].offset, 0, 63);
    // Runs 4 … 7 have their low four bits in the last third, their high two above those of runs 0 … 3.
    if (run < 4) {
      block.scales[run] |= static_cast<uint8_t>(scale);
      block.scales[run + 4] |= static_cast<uint8_t>(offset);
    } else {
      block.scales[run + 4] = static_cast<uint8_t>((scale & 15) | (offset & 15) << 4);
      block.scales[run - 4] |= static_cast<uint8_t>(scale >> 4 << 6);
      block.scales[run] |= static_cast<uint8_t>(offset >> 4 << 6);
    }
    const float rounded = static_cast<float>(block.scale) * static_cast<float>(scale);
    const float begin = static_cast<float>(block.least) * static_cast<float>(offset);
    if (rounded == 0) continue;
    for (size_t i = 32 * run; i < 32 * run + 32; ++i)
      numbers[i] = static_cast<uint8_t>(clamped((x[i] + begin) / rounded, 0, most));
  }
  return numbers;
}

void store(Block4K& block, const float* x) {
  const auto numbers = store_lines(block, x, 15, -1.0F, 20);
  for (size_t i = 0; i < 128; ++i) {
    const size_t from = i / 32 * 64 + i % 32;
    block.low[i] = static_cast<uint8_t>(numbers[from] | numbers[from + 32] << 4);
  }
}

void store(Block5K& block, const float* x) {
  const auto numbers = store_lines(block, x, 31, -0.5F, 15);
  std::fill(std::begin(block.high), std::end(block.high), uint8_t{0});
  for (size_t i = 0; i < 128; ++i) {
    const size_t part = i / 32, from = part * 64 + i % 32;
    block.low[i] = static_cast<uint8_t>((numbers[from] & 15) | (numbers[from + 32] & 15) << 4);
    const int high = numbers[from] >> 4 | numbers[from + 32] >> 4 << 1;
    block.high[i % 32] |= static_cast<uint8_t>(high << (2 * part));
  }
}

// The scale of a run of 16 values with numbers -32 … 31: of the candidates around the extreme value's, the one of least
// squared error, weighted by the values' squares.
float fit_scale(const float* x) {
  constexpr int kRun = 16;
  const float extreme = *std::max_element(x, x + kRun, [](float a, float b) { return std::abs(a) < std::abs(b); });
  if (std::abs(extreme) < kNothing) return 0;
  float best = -std::numeric_limits<float>::infinity(), scale = 0;
  // The middle one first: it wins ties.
  for (const int step : {0, -9, -8, -7, -6, -5, -4, -3, -2, -1, 1, 2, 3, 4, 5, 6, 7, 8, 9}) {
    const float inverse = -(32 + 0.1F * static_cast<float>(step)) / extreme;
    float sum_xl = 0, sum_l2 = 0;
    for (int i = 0; i < kRun; ++i) {
      const auto l = static_cast<float>(clamped(inverse * x[i], -32, 31));
      const float weight = x[i] * x[i];
      sum_xl += weight * x[i] * l;
      sum_l2 += weight * l * l;
    }
    if (sum_l2 <= 0 || (std::isfinite(best) && sum_xl * sum_xl <= best * sum_l2)) continue;
    scale = sum_xl / sum_l2;
    best = scale * sum_xl;
  }
  return scale;
}

void store(Block6K& block, const float* x) {
  std::array<float, 16> scales;
  for (size_t run = 0; run < 16; ++run) scales[run] = fit_scale(x + 16 * run);
  const float largest = *std::max_element(scales.begin(), scales.end(),
                                          [](float a, float b) { return std::abs(a) < std::abs(b); });
  std::memset(static_cast<void*>(&block), 0, sizeof(block));
  if (std::abs(largest) < kNothing) return;
  const float inverse = -128 / largest;
  block.scale = 1 / inverse;
  std::array<uint8_t, kSuperBlock> numbers;
  for (size_t run = 0; run < 16; ++run) {
    block.scales[run] = static_cast<int8_t>(std::min(127, nearest(inverse * scales[run])));
    const float rounded = static_cast<float>(block.scale) * static_cast<float>(block.scales[run]);
    for (size_t i = 16 * run; i < 16 * run + 16; ++i)
      numbers[i] = static_cast<uint8_t>(rounded == 0 ? 32 : clamped(x[i] / rounded, -32, 31) + 32);
  }
  // Values i, i + 32, i + 64 and i + 96 of each half share their bytes.
  for (size_t i = 0; i < 64; ++i) {
    const size_t half = i / 32, l = i % 32;
    const uint8_t* from = numbers.data() + 128 * half + l;
    block.low[64 * half + l] = static_cast<uint8_t>((from[0] & 15) | (from[64] & 15) << 4);
    block.low[64 * half + l + 32] = static_cast<uint8_t>((from[32] & 15) | (from[96] & 15) << 4);
    block.high[32 * half + l] =
        static_cast<uint8_t>(from[0] >> 4 | from[32] >> 4 << 2 | from[64] >> 4 << 4 | from[96] >> 4 << 6);
  }
}

template <typename Block, size_t size>
void store_all(std::span<const float> values, std::byte* out) {
  for (size_t begin = 0; begin < values.size(); begin += size) {
    Block block;
    store(block, values.data() + begin);
    std::memcpy(out, &block, sizeof(block));
    out += sizeof(block);
  }
}

template <typename Number>
void round_all(std::span<const float> values, std::byte* out) {
  for (const float value : values) {
    const Number number(value);
    std::memcpy(out, &number, sizeof(number));
    out += sizeof(number);
  }
}

struct Form {
  GgufType type;
  int64_t block_size, block_bytes;
  void (*store)(std::span<const float> values, std::byte* out);
};
constexpr Form kForms[] = {
    {GgufType::kF32, 1, sizeof(float), round_all<float>},
    {GgufType::kF16, 1, sizeof(c10::Half), round_all<c10::Half>},
    {GgufType::kBf16, 1, sizeof(c10::BFloat16), round_all<c10::BFloat16>},
    {GgufType::kQ5_0, 32, sizeof(Block5), store_all<Block5, 32>},
    {GgufType::kQ5_1, 32, sizeof(Block5WithLeast), store_all<Block5WithLeast, 32>},
    {GgufType::kQ8_0, 32, sizeof(Block8), store_all<Block8, 32>},
    {GgufType::kQ4K, kSuperBlock, sizeof(Block4K), store_all<Block4K, kSuperBlock>},
    {GgufType::kQ5K, kSuperBlock, sizeof(Block5K), store_all<Block5K, kSuperBlock>},
    {GgufType::kQ6K, kSuperBlock, sizeof(Block6K), store_all<Block6K, kSuperBlock>},
};

const Form& form_of(GgufType type) {
  const auto* const found = std::ranges::find(kForms, type, &Form::type);
  MEGALITH_CHECK(found != std::end(kForms), "GGUF type {} has no form", static_cast<uint32_t>(type));
  return *found;
}

}  // namespace

int64_t block_size(GgufType type) { return form_of(type).block_size; }

int64_t block_bytes(GgufType type) { return form_of(type).block_bytes; }

void quantize(GgufType type, std::span<const float> values, std::span<std::byte> out) {
  const Form& form = form_of(type);
  const auto num_values = static_cast<int64_t>(values.size());
  MEGALITH_CHECK(static_cast<int64_t>(out.size()) == div_exact(num_values, form.block_size) * form.block_bytes,
                 "{} bytes for {} values", out.size(), num_values);
  form.store(values, out.data());
}

}  // namespace megalith
