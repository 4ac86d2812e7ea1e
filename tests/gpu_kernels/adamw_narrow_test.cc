// adamw_'s GPU kernel where masters and moments are narrow: what the kernel for fp32 masters and moments gives, rounded
// as it should be, to the bit.
#include <cmath>
#include <functional>
#include <optional>

#include "core/philox.h"
#include "gpu_kernels/expect.h"
#include "ops/adamw/kernel.h"

namespace megalith::ops {
namespace {

using testing::Array;

uint32_t bits_of_float(float value) { return std::bit_cast<uint32_t>(value); }
float float_of_bits(uint32_t bits) { return std::bit_cast<float>(bits); }
bool is_nan_bits(uint32_t bits) { return (bits & 0x7FFFFFFF) > 0x7F800000; }

uint16_t nearest_bf16(float value) {
  const uint32_t bits = bits_of_float(value);
  return is_nan_bits(bits) ? 0x7FC0 : static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}
uint16_t random_bf16(float value, uint32_t random) {
  const uint32_t bits = bits_of_float(value);
  return is_nan_bits(bits) ? 0x7FC0 : static_cast<uint16_t>((bits + random) >> 16);
}

// States in fp32.
struct WideStates {
  std::vector<float> master, grad, exp_avg, exp_avg_sq;
  size_t size() const { return master.size(); }
};

struct NarrowCase {
  std::string what;
  MasterForm form;
  std::optional<Dtype> model;
  Dtype moments;
  bool is_stochastic;
};

std::vector<NarrowCase> narrow_cases() {
  const Dtype bf16 = Dtype::kBFloat16, fp32 = Dtype::kFloat32;
  return {{"remainders", MasterForm::kRemainder, bf16, fp32, false},
          {"remainders, bf16 moments", MasterForm::kRemainder, bf16, bf16, false},
          {"remainders, random bf16 moments", MasterForm::kRemainder, bf16, bf16, true},
          {"no masters, random", MasterForm::kNone, bf16, fp32, true},
          {"no masters, bf16 moments", MasterForm::kNone, bf16, bf16, false},
          {"no masters, bf16 moments, all random", MasterForm::kNone, bf16, bf16, true},
          {"no masters, nearest", MasterForm::kNone, bf16, fp32, false},
          {"bf16 model, random bf16 moments", MasterForm::kWhole, bf16, bf16, true},
          {"fp16 model, random bf16 moments", MasterForm::kWhole, Dtype::kFloat16, bf16, true},
          {"fp32 model, random bf16 moments", MasterForm::kWhole, std::nullopt, bf16, true}};
}

// The tensors of a shard in the case's form.
struct NarrowArrays {
  Array model, master, grad, exp_avg, exp_avg_sq;

  NarrowArrays(const NarrowCase& c, int64_t count, int64_t shift)
      : model(c.model.value_or(Dtype::kFloat32), c.model ? count : 0, shift),
        // A remainder has 16 bits.
        master(c.form == MasterForm::kWhole ? Dtype::kFloat32 : Dtype::kBFloat16,
               c.form == MasterForm::kNone ? 0 : count, shift),
        grad(Dtype::kFloat32, count, shift),
        exp_avg(c.moments, count, shift),
        exp_avg_sq(c.moments, count, shift) {}
};

uint16_t& bits_at(Array& array, size_t i) { return static_cast<uint16_t*>(array.data())[i]; }
uint32_t& word_at(Array& array, size_t i) { return static_cast<uint32_t*>(array.data())[i]; }
void put_bits(Array& array, size_t i, uint32_t wide, uint16_t narrow) {
  if (array.dtype() == Dtype::kFloat32) {
    word_at(array, i) = wide;
  } else {
    bits_at(array, i) = narrow;
  }
}

// The case's arrays, rounded from wide states. random: the draw for (element, which of the three).
using Random = std::function<uint32_t(size_t, int)>;
NarrowArrays narrow(const NarrowCase& c, const WideStates& states, int64_t shift, const Random& random) {
  NarrowArrays arrays(c, static_cast<int64_t>(states.size()), shift);
  for (size_t i = 0; i < states.size(); ++i) {
    const auto rounded = [&](float value, int which) {
      return c.is_stochastic && random ? random_bf16(value, random(i, which)) : nearest_bf16(value);
    };
    const float w = states.master[i];
    uint32_t sign = 0;
    word_at(arrays.grad, i) = bits_of_float(states.grad[i]);
    if (c.form == MasterForm::kNone) {
      bits_at(arrays.model, i) = rounded(w, 0);
    } else if (c.form == MasterForm::kRemainder) {
      bits_at(arrays.model, i) = nearest_bf16(w);
      const int64_t rest = is_nan_bits(bits_of_float(w))
                               ? 0
                               : static_cast<int64_t>(bits_of_float(w)) - (int64_t{bits_at(arrays.model, i)} << 16);
      bits_at(arrays.master, i) = static_cast<uint16_t>(rest);
      if (rest == 1 << 15) sign = 0x80000000;
    } else {
      word_at(arrays.master, i) = bits_of_float(w);
      if (c.model) arrays.model.set(static_cast<int64_t>(i), w);
      if (c.model == Dtype::kBFloat16) bits_at(arrays.model, i) = nearest_bf16(w);
    }
    put_bits(arrays.exp_avg, i, bits_of_float(states.exp_avg[i]), rounded(states.exp_avg[i], 1));
    const float v = float_of_bits(bits_of_float(states.exp_avg_sq[i]) | sign);
    put_bits(arrays.exp_avg_sq, i, bits_of_float(v), rounded(v, 2));
  }
  return arrays;
}

AdamwPiece piece_of(const NarrowCase& c, NarrowArrays& arrays, const DrawnRun& drawn, double lr) {
  return {.model_dtype = c.model.value_or(Dtype::kFloat32),
          .moment_dtype = c.moments,
          .is_double = false,
          .count = arrays.grad.count(),
          .model = c.model ? arrays.model.data() : nullptr,
          .master = c.form == MasterForm::kNone ? nullptr : arrays.master.data(),
          .grad = arrays.grad.data(),
          .exp_avg = arrays.exp_avg.data(),
          .exp_avg_sq = arrays.exp_avg_sq.data(),
          .lr = lr,
          .weight_decay = lr,
          .master_form = c.form,
          .is_stochastic = c.is_stochastic,
          .drawn = drawn};
}

constexpr double kNarrowStep = 3;

void run_step(std::vector<AdamwPiece> pieces) {
  const double scale = 0.5;
  Array scratch(Dtype::kFloat64, gpu::kAdamwScratch);
  gpu::adamw({.shards = pieces.data(),
              .num_shards = static_cast<int64_t>(pieces.size()),
              .beta1 = 0.9,
              .beta2 = 0.95,
              .eps = 1e-8,
              .grad_scale = &scale,
              .scale_is_double = true,
              .step = &kNarrowStep,
              .is_made = nullptr,
              .host_step = 0,
              .scratch = static_cast<double*>(scratch.data())},
             nullptr);
}

const NarrowCase kWideCase{"fp32", MasterForm::kWhole, std::nullopt, Dtype::kFloat32, false};

// A step of fp32 states, from what the case keeps of them.
WideStates stepped_wide(const NarrowCase& c, const WideStates& start, double lr) {
  WideStates kept = start;
  for (size_t i = 0; i < start.size(); ++i) {
    if (c.form == MasterForm::kNone) kept.master[i] = float_of_bits(uint32_t{nearest_bf16(start.master[i])} << 16);
    if (c.moments == Dtype::kFloat32) continue;
    kept.exp_avg[i] = float_of_bits(uint32_t{nearest_bf16(start.exp_avg[i])} << 16);
    kept.exp_avg_sq[i] = float_of_bits(uint32_t{nearest_bf16(start.exp_avg_sq[i])} << 16);
  }
  NarrowArrays arrays = narrow(kWideCase, kept, 0, {});
  run_step({piece_of(kWideCase, arrays, {}, lr)});
  for (size_t i = 0; i < start.size(); ++i) {
    kept.master[i] = float_of_bits(word_at(arrays.master, i));
    kept.exp_avg[i] = float_of_bits(word_at(arrays.exp_avg, i));
    kept.exp_avg_sq[i] = float_of_bits(word_at(arrays.exp_avg_sq, i));
  }
  return kept;
}

WideStates random_states(size_t count) {
  std::mt19937 generator(static_cast<unsigned>(count));
  std::normal_distribution<float> normal(0, 1);
  WideStates states;
  for (size_t i = 0; i < count; ++i) {
    states.master.push_back(normal(generator));
    states.grad.push_back(normal(generator));
    states.exp_avg.push_back(normal(generator) / 10);
    states.exp_avg_sq.push_back(std::abs(normal(generator)) / 100);
  }
  return states;
}

std::vector<Array> arrays_of(NarrowArrays&& arrays) {
  std::vector<Array> all;
  all.push_back(std::move(arrays.model));
  all.push_back(std::move(arrays.master));
  all.push_back(std::move(arrays.exp_avg));
  all.push_back(std::move(arrays.exp_avg_sq));
  return all;
}

void expect_bits(const std::vector<Array>& found, std::vector<Array> expected, const std::string& what) {
  constexpr const char* kNames[] = {"model", "master", "exp_avg", "exp_avg_sq"};
  for (size_t a = 0; a < found.size(); ++a) {
    for (int64_t i = 0; i < found[a].count(); ++i) {
      const size_t size = testing::bytes_of(found[a].dtype()), at = static_cast<size_t>(i) * size;
      ASSERT_TRUE(std::memcmp(static_cast<const char*>(found[a].data()) + at,
                              static_cast<const char*>(expected[a].data()) + at, size) == 0)
          << what << ": " << kNames[a] << "[" << i << "] is " << found[a][i] << " instead of " << expected[a][i];
    }
  }
}

// The tensor's element that a shard's element is, and what is drawn for it, from the file that defines both.
int64_t element_of(const DrawnRun& run, size_t i) {
  const auto at = static_cast<int64_t>(i);
  return run.first + at / run.columns * run.row_stride + at % run.columns * run.column_stride;
}
Random random_of(const DrawnRun& run) {
  return [run](size_t i, int which) {
    const auto element = static_cast<uint64_t>(element_of(run, i));
    const PhiloxBlock block = philox(run.key, {element / 2, static_cast<uint64_t>(kNarrowStep)});
    const uint32_t first = block[2 * (element % 2)], second = block[2 * (element % 2) + 1];
    return which == 0 ? first & 0xFFFF : which == 1 ? first >> 16 : second & 0xFFFF;
  };
}

void try_case(const NarrowCase& c, const WideStates& start, const DrawnRun& drawn, int64_t shift, double lr) {
  const std::string what = c.what + ", " + std::to_string(start.size()) + " elements";
  testing::in_every_order(
      what,
      [&] {
        NarrowArrays arrays = narrow(c, start, shift, {});
        run_step({piece_of(c, arrays, drawn, lr)});
        return arrays_of(std::move(arrays));
      },
      [&](const std::vector<Array>& found) {
        const WideStates wide = stepped_wide(c, start, lr);
        expect_bits(found, arrays_of(narrow(c, wide, 0, random_of(drawn))), what);
      });
}

// A bf16 gradient is read by its value, in vectors and one by one.
TEST(AdamwNarrowKernels, ABf16GradientIsItsWideForm) {
  const DrawnRun drawn{.key = 5, .first = 0, .columns = 1 << 20, .row_stride = 0, .column_stride = 1};
  for (const NarrowCase& c : narrow_cases()) {
    WideStates start = random_states(37);
    for (float& value : start.grad) value = float_of_bits(uint32_t{nearest_bf16(value)} << 16);
    const auto stepped = [&](bool is_narrow) {
      NarrowArrays arrays = narrow(c, start, 0, {});
      Array grad(Dtype::kBFloat16, arrays.grad.count(), 0);
      for (size_t i = 0; i < start.grad.size(); ++i) bits_at(grad, i) = nearest_bf16(start.grad[i]);
      AdamwPiece piece = piece_of(c, arrays, drawn, 1e-2);
      if (is_narrow) piece.grad = grad.data();
      piece.has_narrow_grad = is_narrow;
      run_step({piece});
      return arrays_of(std::move(arrays));
    };
    expect_bits(stepped(true), stepped(false), c.what);
  }
}

TEST(AdamwNarrowKernels, AreTheWideOneRounded) {
  const DrawnRun odd{.key = 0x123456789ABCDEF, .first = 7, .columns = 5, .row_stride = 13, .column_stride = 1};
  const DrawnRun transposed{.key = 42, .first = 3, .columns = 6, .row_stride = 1, .column_stride = 11};
  const DrawnRun plain{.key = 99, .first = int64_t{1} << 40, .columns = 1 << 30, .row_stride = 0, .column_stride = 1};
  for (const NarrowCase& c : narrow_cases()) {
    for (const DrawnRun& drawn : {odd, transposed, plain}) {
      try_case(c, random_states(31), drawn, 0, 1e-2);
      if (!testing::is_thorough()) break;
      try_case(c, random_states(1), drawn, 0, 1e-2);
      try_case(c, random_states(64), drawn, /*shift=*/3, 1e-2);
    }
  }
}

// More than one block of threads has: the elements of the second are drawn by their own places.
TEST(AdamwNarrowKernels, EveryBlockDrawsForItsOwnElements) {
  const DrawnRun drawn{.key = 7, .first = 1, .columns = 1000, .row_stride = 3000, .column_stride = 1};
  try_case(narrow_cases()[5], random_states((1 << 14) + 5), drawn, 0, 1e-2);
}

// Without a step (lr 0) every master stays as it was, to the bit: zeros, denormals, infinities, those that round to
// infinity, ties to either side, and random ones.
TEST(AdamwNarrowKernels, RemaindersBringEveryMasterBack) {
  std::vector<uint32_t> patterns;
  for (const uint32_t high : {0x0000u, 0x0001u, 0x007Fu, 0x0080u, 0x3F80u, 0x3F81u, 0x7F7Eu, 0x7F7Fu}) {
    for (const uint32_t low : {0x0000u, 0x0001u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
      for (const uint32_t sign : {0u, 0x80000000u}) patterns.push_back(sign | high << 16 | low);
    }
  }
  patterns.push_back(0x7F800000);
  patterns.push_back(0xFF800000);
  std::mt19937 generator(5);
  while (patterns.size() < 1000) {
    const uint32_t bits = static_cast<uint32_t>(generator());
    if (!is_nan_bits(bits)) patterns.push_back(bits);
  }
  WideStates start = random_states(patterns.size());
  for (size_t i = 0; i < patterns.size(); ++i) {
    start.master[i] = float_of_bits(patterns[i]);
    if (i % 7 == 0) start.exp_avg_sq[i] = start.grad[i] = 0;  // a mark on zero
  }
  for (const NarrowCase& c : narrow_cases()) {
    if (c.form == MasterForm::kRemainder) try_case(c, start, {.key = 1, .columns = 1 << 20}, 0, /*lr=*/0);
  }
}

TEST(AdamwNarrowKernels, ATensorsShardsDrawWhatTheWholeDraws) {
  const NarrowCase c = narrow_cases()[5];
  const WideStates start = random_states(50);
  const DrawnRun whole{.key = 11, .first = 0, .columns = 50, .row_stride = 0, .column_stride = 1};
  testing::in_every_order(
      c.what,
      [&] {
        // The last thirteen by a shard of their own, beside one that has other types.
        NarrowArrays together = narrow(c, start, 0, {}), other = narrow(kWideCase, start, 0, {});
        AdamwPiece first = piece_of(c, together, whole, 1e-2), last = first;
        first.count = 37;
        last.count = 13;
        last.drawn.first = 37;
        last.model = static_cast<uint16_t*>(first.model) + 37;
        last.grad = static_cast<const float*>(first.grad) + 37;
        last.exp_avg = static_cast<uint16_t*>(first.exp_avg) + 37;
        last.exp_avg_sq = static_cast<uint16_t*>(first.exp_avg_sq) + 37;
        run_step({last, piece_of(kWideCase, other, {}, 1e-2), first});
        return arrays_of(std::move(together));
      },
      [&](const std::vector<Array>& found) {
        NarrowArrays together = narrow(c, start, 0, {});
        run_step({piece_of(c, together, whole, 1e-2)});
        expect_bits(found, arrays_of(std::move(together)), c.what);
      });
}

TEST(AdamwNarrowKernels, TakeMoreDrawnShardsThanALaunchHasRoomFor) {
  const NarrowCase c = narrow_cases()[5];
  std::vector<WideStates> starts;
  for (size_t i = 0; i < 70; ++i) starts.push_back(random_states(1 + i % 5));
  const auto drawn = [](size_t i) { return DrawnRun{.key = i, .first = static_cast<int64_t>(i), .columns = 100}; };
  std::vector<NarrowArrays> arrays;
  for (const WideStates& start : starts) arrays.push_back(narrow(c, start, 0, {}));
  std::vector<AdamwPiece> pieces;
  for (size_t i = 0; i < arrays.size(); ++i) pieces.push_back(piece_of(c, arrays[i], drawn(i), 1e-3));
  run_step(pieces);
  for (size_t i = 0; i < arrays.size(); ++i) {
    const WideStates wide = stepped_wide(c, starts[i], 1e-3);
    expect_bits(arrays_of(std::move(arrays[i])), arrays_of(narrow(c, wide, 0, random_of(drawn(i)))),
                "shard " + std::to_string(i));
  }
}

}  // namespace
}  // namespace megalith::ops
