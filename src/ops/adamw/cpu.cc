// One pass. Narrow states are converted a few hundred elements at a time, in the first cache.
#include <ATen/Parallel.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "ops/adamw/kernel.h"
#include "ops/cpu/lanes.h"
#include "ops/cpu/philox_lanes.h"

namespace megalith::ops::cpu::CPU_CAPABILITY {
namespace {

template <typename Model, typename Moment>
void update(const AdamwPiece& piece, const AdamwStep& step) {
  using W = Wide<Moment>;
  using L = Lanes<Moment>;
  auto* model = static_cast<Model*>(piece.model);
  auto* master = static_cast<W*>(piece.master);
  const auto* grad = static_cast<const W*>(piece.grad);
  auto* exp_avg = static_cast<Moment*>(piece.exp_avg);
  auto* exp_avg_sq = static_cast<Moment*>(piece.exp_avg_sq);
  // double, rounded once, like torch's
  const L grad_scale(static_cast<W>(step.grad_scale)), decay(static_cast<W>(1 - piece.lr * piece.weight_decay));
  const L new1(static_cast<W>(1 - step.beta1)), old2(static_cast<W>(step.beta2)), new2(static_cast<W>(1 - step.beta2));
  const L root2(static_cast<W>(std::sqrt(step.correction2))), eps(static_cast<W>(step.eps));
  const L step_size(static_cast<W>(-piece.lr / step.correction1));
  for_each_lanes<W>(piece.count, [&](int64_t i, auto count) {
    const L g = load(grad + i, count) * grad_scale;
    L m = load(exp_avg + i, count), v = load(exp_avg_sq + i, count);
    m = at::vec::fmadd(g - m, new1, m);
    v = at::vec::fmadd(v, old2, g * g * new2);
    const L w = at::vec::fmadd(step_size, m / (v.sqrt() / root2 + eps), load(master + i, count) * decay);
    store(exp_avg + i, m, count);
    store(exp_avg_sq + i, v, count);
    store(master + i, w, count);
    if (model != nullptr) store(model + i, w, count);
  });
}

// bf16 as bits, for compilers to vectorise.

constexpr uint32_t kSignBit = 0x80000000, kInfinityBits = 0x7F800000;

inline uint32_t float_bits(float value) { return std::bit_cast<uint32_t>(value); }
inline float from_bf16_bits(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

// Before truncation: rounds to nearest, ties to even.
inline uint32_t half_of(uint32_t bits) { return 0x7FFF + ((bits >> 16) & 1); }
inline uint16_t narrowed(uint32_t bits, uint32_t addend) {
  return (bits & ~kSignBit) > kInfinityBits ? uint16_t{0x7FC0} : static_cast<uint16_t>((bits + addend) >> 16);
}

constexpr int64_t kAdamwChunk = 256;

// 32 and 16 random bits of an element's two words.
struct Draws {
  uint32_t first[kAdamwChunk], second[kAdamwChunk];
};

constexpr int kDrawnBlocks = 64;

// Neighbours [from, from + count) share a Philox block in pairs.
void draw_neighbours(uint64_t key, uint64_t number, int64_t from, int64_t count, uint32_t* first, uint32_t* second) {
  uint64_t low[kDrawnBlocks], high[kDrawnBlocks];
  uint32_t words[4][kDrawnBlocks];
  std::fill(high, high + kDrawnBlocks, number);
  for (int64_t block = from / 2; 2 * block < from + count; block += kDrawnBlocks) {
    for (int i = 0; i < kDrawnBlocks; ++i) low[i] = static_cast<uint64_t>(block + i);
    philox_lanes(key, low, high, words);
    const int64_t begin = std::max(from, 2 * block), end = std::min(from + count, 2 * (block + kDrawnBlocks));
    for (int64_t e = begin; e < end; ++e) {
      const int64_t lane = e / 2 - block;
      first[e - from] = words[2 * (e % 2)][lane];
      second[e - from] = words[2 * (e % 2) + 1][lane];
    }
  }
}

// Elements `stride` apart have a block each.
void draw_apart(uint64_t key, uint64_t number, int64_t from, int64_t stride, int64_t count, uint32_t* first,
                uint32_t* second) {
  uint64_t low[kDrawnBlocks], high[kDrawnBlocks];
  uint32_t words[4][kDrawnBlocks];
  std::fill(high, high + kDrawnBlocks, number);
  for (int64_t begin = 0; begin < count; begin += kDrawnBlocks) {
    for (int i = 0; i < kDrawnBlocks; ++i) low[i] = static_cast<uint64_t>(from + (begin + i) * stride) / 2;
    philox_lanes(key, low, high, words);
    for (int64_t i = 0; i < std::min<int64_t>(kDrawnBlocks, count - begin); ++i) {
      const int64_t lane = 2 * ((from + (begin + i) * stride) % 2);
      first[begin + i] = words[lane][i];
      second[begin + i] = words[lane + 1][i];
    }
  }
}

void draw(const DrawnRun& run, uint64_t number, int64_t from, int64_t count, Draws& draws) {
  for (int64_t done = 0; done < count;) {
    const int64_t row = (from + done) / run.columns, column = (from + done) % run.columns;
    const int64_t in_row = std::min(count - done, run.columns - column);
    const int64_t element = run.first + row * run.row_stride + column * run.column_stride;
    if (run.column_stride == 1) {
      draw_neighbours(run.key, number, element, in_row, draws.first + done, draws.second + done);
    } else {
      draw_apart(run.key, number, element, run.column_stride, in_row, draws.first + done, draws.second + done);
    }
    done += in_row;
  }
}

struct WideChunk {
  float grad[kAdamwChunk], master[kAdamwChunk], exp_avg[kAdamwChunk], exp_avg_sq[kAdamwChunk];
};

template <typename Moment>
void load_moments(const AdamwPiece& piece, int64_t count, WideChunk& wide) {
  const auto* exp_avg = static_cast<const Moment*>(piece.exp_avg);
  const auto* exp_avg_sq = static_cast<const Moment*>(piece.exp_avg_sq);
  for (int64_t i = 0; i < count; ++i) {
    wide.exp_avg[i] = static_cast<float>(exp_avg[i]);
    wide.exp_avg_sq[i] = static_cast<float>(exp_avg_sq[i]);
  }
}

// After load_moments: moves the tie's mark from exp_avg_sq.
void load_remainders(const AdamwPiece& piece, int64_t count, WideChunk& wide) {
  const auto* weight = static_cast<const uint16_t*>(piece.model);
  const auto* remainder = static_cast<const int16_t*>(piece.master);
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t v = float_bits(wide.exp_avg_sq[i]);
    const uint32_t master =
        (uint32_t{weight[i]} << 16) + static_cast<uint32_t>(int32_t{remainder[i]}) + ((v >> 31) << 16);
    wide.master[i] = std::bit_cast<float>(master);
    wide.exp_avg_sq[i] = std::bit_cast<float>(v & ~kSignBit);
  }
}

void store_remainders(const AdamwPiece& piece, int64_t count, WideChunk& wide) {
  auto* weight = static_cast<uint16_t*>(piece.model);
  auto* remainder = static_cast<int16_t*>(piece.master);
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = float_bits(wide.master[i]);
    const uint16_t nearest = narrowed(bits, half_of(bits));
    const uint32_t rest = (bits & ~kSignBit) > kInfinityBits ? 0 : bits - (uint32_t{nearest} << 16);
    weight[i] = nearest;
    remainder[i] = static_cast<int16_t>(static_cast<uint16_t>(rest));
    const uint32_t mark = rest == 0x8000 ? kSignBit : 0;
    wide.exp_avg_sq[i] = std::bit_cast<float>(float_bits(wide.exp_avg_sq[i]) | mark);
  }
}

void load_weights(const AdamwPiece& piece, int64_t count, WideChunk& wide) {
  const auto* weight = static_cast<const uint16_t*>(piece.model);
  for (int64_t i = 0; i < count; ++i) wide.master[i] = from_bf16_bits(weight[i]);
}

void store_weights(const AdamwPiece& piece, int64_t count, const WideChunk& wide, const Draws& draws) {
  auto* weight = static_cast<uint16_t*>(piece.model);
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = float_bits(wide.master[i]);
    weight[i] = narrowed(bits, piece.is_stochastic ? draws.first[i] & 0xFFFF : half_of(bits));
  }
}

void store_moments(const AdamwPiece& piece, int64_t count, const WideChunk& wide, const Draws& draws) {
  if (piece.moment_dtype == Dtype::kFloat32) {
    std::copy_n(wide.exp_avg, count, static_cast<float*>(piece.exp_avg));
    std::copy_n(wide.exp_avg_sq, count, static_cast<float*>(piece.exp_avg_sq));
    return;
  }
  auto* exp_avg = static_cast<uint16_t*>(piece.exp_avg);
  auto* exp_avg_sq = static_cast<uint16_t*>(piece.exp_avg_sq);
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t m = float_bits(wide.exp_avg[i]), v = float_bits(wide.exp_avg_sq[i]);
    exp_avg[i] = narrowed(m, piece.is_stochastic ? draws.first[i] >> 16 : half_of(m));
    exp_avg_sq[i] = narrowed(v, piece.is_stochastic ? draws.second[i] & 0xFFFF : half_of(v));
  }
}

AdamwPiece chunk_of(const AdamwPiece& piece, int64_t from, int64_t count) {
  const auto size_of = [](Dtype dtype) -> int64_t { return dtype == Dtype::kFloat32 ? 4 : 2; };
  const auto moved = [&](auto* p, int64_t size) -> decltype(p) {
    using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(p)>>, const char, char>;
    return p == nullptr ? p : static_cast<Byte*>(p) + from * size;
  };
  AdamwPiece chunk = piece;
  chunk.count = count;
  chunk.first = piece.first + from;
  chunk.model = moved(piece.model, size_of(piece.model_dtype));
  chunk.master = moved(piece.master, piece.master_form == MasterForm::kWhole ? 4 : 2);
  chunk.grad = moved(piece.grad, piece.has_narrow_grad ? 2 : 4);
  chunk.exp_avg = moved(piece.exp_avg, size_of(piece.moment_dtype));
  chunk.exp_avg_sq = moved(piece.exp_avg_sq, size_of(piece.moment_dtype));
  return chunk;
}

void update_chunk(const AdamwPiece& piece, const AdamwStep& step) {
  WideChunk wide;
  Draws draws;
  const int64_t count = piece.count;
  if (piece.moment_dtype == Dtype::kFloat32) {
    load_moments<float>(piece, count, wide);
  } else {
    load_moments<c10::BFloat16>(piece, count, wide);
  }
  AdamwPiece inner = piece;
  if (piece.has_narrow_grad) {
    const auto* grad = static_cast<const uint16_t*>(piece.grad);
    for (int64_t i = 0; i < count; ++i) wide.grad[i] = from_bf16_bits(grad[i]);
    inner.grad = wide.grad;
  }
  inner.exp_avg = wide.exp_avg;
  inner.exp_avg_sq = wide.exp_avg_sq;
  if (piece.master_form != MasterForm::kWhole) {
    inner.model = nullptr;
    inner.master = wide.master;
  }
  if (piece.master_form == MasterForm::kRemainder) load_remainders(piece, count, wide);
  if (piece.master_form == MasterForm::kNone) load_weights(piece, count, wide);
  switch (piece.model_dtype) {
    case Dtype::kBFloat16:
      update<c10::BFloat16, float>(inner, step);
      break;
    case Dtype::kFloat16:
      update<c10::Half, float>(inner, step);
      break;
    default:
      update<float, float>(inner, step);
  }
  if (piece.is_stochastic) draw(piece.drawn, step.number, piece.first, count, draws);
  if (piece.master_form == MasterForm::kRemainder) store_remainders(piece, count, wide);
  if (piece.master_form == MasterForm::kNone) store_weights(piece, count, wide, draws);
  store_moments(piece, count, wide, draws);
}

void update_piece(const AdamwPiece& piece, const AdamwStep& step) {
  if (piece.is_double) return update<double, double>(piece, step);
  if (piece.master_form != MasterForm::kWhole || piece.is_stochastic || piece.has_narrow_grad) {
    for (int64_t from = 0; from < piece.count; from += kAdamwChunk) {
      update_chunk(chunk_of(piece, from, std::min(kAdamwChunk, piece.count - from)), step);
    }
    return;
  }
  const bool has_narrow_moments = piece.moment_dtype == Dtype::kBFloat16;
  switch (piece.model_dtype) {
    case Dtype::kBFloat16:
      return has_narrow_moments ? update<c10::BFloat16, c10::BFloat16>(piece, step)
                                : update<c10::BFloat16, float>(piece, step);
    case Dtype::kFloat16:
      return has_narrow_moments ? update<c10::Half, c10::BFloat16>(piece, step) : update<c10::Half, float>(piece, step);
    default:
      return has_narrow_moments ? update<float, c10::BFloat16>(piece, step) : update<float, float>(piece, step);
  }
}

}  // namespace

void adamw(const AdamwPiece* pieces, int64_t num_pieces, const AdamwStep& step) {
  at::parallel_for(0, num_pieces, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) update_piece(pieces[i], step);
  });
}

}  // namespace megalith::ops::cpu::CPU_CAPABILITY
