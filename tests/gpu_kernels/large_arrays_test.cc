// Arrays of more than 2^32 elements: places in them need 64 bits. They are reserved address space, to which memory
// comes where a kernel touches it, and only a launch's last blocks run: their rows must be those of a small array.
#include <sys/mman.h>

#include <algorithm>

#include "gpu_kernels/emulation/last_blocks.h"
#include "gpu_kernels/expect.h"
#include "ops/activation/kernel.h"
#include "ops/fp8_cast/kernel.h"
#include "ops/layer_norm/kernel.h"
#include "ops/rms_norm/kernel.h"
#include "ops/swiglu/kernel.h"

namespace megalith::ops {
namespace {

using testing::Array;

constexpr int64_t kColumns = 4096;
constexpr int64_t kRows = (int64_t{1} << 32) / kColumns + 2048 + 16;
constexpr int64_t kCompared = 16;  // last rows

// Zeros, with as much that faults on either side as 32 bits reach.
class Reserved {
 public:
  explicit Reserved(int64_t bytes) : bytes_(static_cast<size_t>(bytes)) {
    memory_ = static_cast<char*>(::mmap(nullptr, bytes_ + 2 * kGuard, PROT_NONE, kFlags, -1, 0));
    if (memory_ == MAP_FAILED || ::mprotect(memory_ + kGuard, bytes_, PROT_READ | PROT_WRITE) != 0) std::abort();
  }
  ~Reserved() { ::munmap(memory_, bytes_ + 2 * kGuard); }
  Reserved(const Reserved&) = delete;
  Reserved& operator=(const Reserved&) = delete;

  char* data() const { return memory_ + kGuard; }
  char* end() const { return data() + bytes_; }

 private:
  static constexpr size_t kGuard = size_t{1} << 34;
  static constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

  size_t bytes_;
  char* memory_;
};

constexpr Dtype kDtype = Dtype::kBFloat16;
constexpr int64_t kElement = 2;

// bf16, (rows, columns): normally distributed.
Array drawn(int64_t count, unsigned seed) {
  Array x(kDtype, count);
  std::mt19937 generator(seed);
  x.draw(generator, 0, 1);
  return x;
}

// `small`, the last rows of one with kRows, at the end of `large`.
void put_last(const Reserved& large, const Array& small) {
  std::memcpy(large.end() - small.bytes(), small.data(), small.bytes());
}
void expect_last(const Reserved& large, const void* small, size_t bytes, const char* what) {
  const char *const end = large.end(), *const there = end - bytes;
  const auto* const expected = static_cast<const char*>(small);
  const auto at = static_cast<size_t>(std::mismatch(there, end, expected).first - there);
  EXPECT_EQ(at, bytes) << what << " is " << int{there[at]} << " instead of " << int{expected[at]} << " in byte " << at;
}

bool can_reserve() { return gpu_emulation::sanitizer() != gpu_emulation::Sanitizer::kThread; }

using gpu_emulation::run_last_blocks;

TEST(LargeArrayKernels, Norms) {
  if (!can_reserve()) GTEST_SKIP() << "ThreadSanitizer has no room for such arrays";
  Array x = drawn(kCompared * kColumns, 1), weight = drawn(kColumns, 2), bias = drawn(kColumns, 3);
  Array y(kDtype, x.count()), statistics(Dtype::kFloat32, 2 * kCompared);
  const Reserved many_x(kRows * kColumns * kElement), many_y(kRows * kColumns * kElement);
  const Reserved many_statistics(2 * kRows * 4);
  put_last(many_x, x);
  RmsNormForward rms{.dtype = kDtype,
                     .rows = kRows,
                     .columns = kColumns,
                     .x = many_x.data(),
                     .residual = nullptr,
                     .weight = weight.data(),
                     .eps = 1e-5,
                     .y = many_y.data(),
                     .sum = nullptr,
                     .inv_rms = many_statistics.data()};
  run_last_blocks(kCompared);
  gpu::rms_norm_forward(rms, nullptr);
  run_last_blocks(0);
  rms.rows = kCompared;
  rms.x = x.data();
  rms.y = y.data();
  rms.inv_rms = statistics.data();
  gpu::rms_norm_forward(rms, nullptr);
  expect_last(many_y, y.data(), y.bytes(), "rms_norm");

  LayerNormForward layer{.dtype = kDtype,
                         .rows = kRows,
                         .columns = kColumns,
                         .x = many_x.data(),
                         .residual = nullptr,
                         .weight = weight.data(),
                         .weight_offset = 0,
                         .bias = bias.data(),
                         .eps = 1e-5,
                         .y = many_y.data(),
                         .sum = nullptr,
                         .mean = many_statistics.data(),
                         .inv_std = many_statistics.data() + kRows * 4};
  run_last_blocks(kCompared);
  gpu::layer_norm_forward(layer, nullptr);
  run_last_blocks(0);
  layer.rows = kCompared;
  layer.x = x.data();
  layer.y = y.data();
  layer.mean = statistics.data();
  layer.inv_std = static_cast<float*>(statistics.data()) + kCompared;
  gpu::layer_norm_forward(layer, nullptr);
  expect_last(many_y, y.data(), y.bytes(), "layer_norm");
}

TEST(LargeArrayKernels, Activations) {
  if (!can_reserve()) GTEST_SKIP() << "ThreadSanitizer has no room for such arrays";
  constexpr int64_t kBlocksOfRow = kColumns / 8 / 256;
  Array gate_up = drawn(kCompared * 2 * kColumns, 1), dy = drawn(kCompared * kColumns, 2);
  Array y(kDtype, dy.count()), gradient(kDtype, gate_up.count());
  const Reserved many_gate_up(kRows * 2 * kColumns * kElement), many_dy(kRows * kColumns * kElement);
  const Reserved many_y(kRows * kColumns * kElement), many_gradients(kRows * 2 * kColumns * kElement);
  put_last(many_gate_up, gate_up);
  put_last(many_dy, dy);
  const auto compare = [&](const char* what, auto&& forward, auto&& backward) {
    run_last_blocks(kCompared * kBlocksOfRow);
    forward(kRows, many_gate_up.data(), many_y.data());
    backward(kRows, many_dy.data(), many_gate_up.data(), many_gradients.data());
    run_last_blocks(0);
    forward(kCompared, gate_up.data(), y.data());
    backward(kCompared, dy.data(), gate_up.data(), gradient.data());
    expect_last(many_y, y.data(), y.bytes(), what);
    expect_last(many_gradients, gradient.data(), gradient.bytes(), what);
  };
  compare(
      "swiglu",
      [](int64_t rows, const void* x, void* to) { gpu::swiglu({kDtype, rows, kColumns, x, to}, nullptr); },
      [](int64_t rows, const void* grad, const void* x, void* to) {
        gpu::swiglu_backward({kDtype, rows, kColumns, grad, x, to}, nullptr);
      });
  const auto gelu = [&](int64_t rows, const void* x, void* to) {
    gpu::activation({kDtype, ActivationKind::kGelu, false, rows, kColumns, x, to, nullptr, nullptr}, nullptr);
  };
  run_last_blocks(kCompared * kBlocksOfRow);
  gelu(kRows, many_dy.data(), many_y.data());
  run_last_blocks(0);
  gelu(kCompared, dy.data(), y.data());
  expect_last(many_y, y.data(), y.bytes(), "activation");
}

TEST(LargeArrayKernels, CastsToEightBits) {
  if (!can_reserve()) GTEST_SKIP() << "ThreadSanitizer has no room for such arrays";
  // A last tile of 16 rows, by itself in the small array.
  static_assert(kRows % 128 == kCompared);
  Array x = drawn(kCompared * kColumns, 1), scale(Dtype::kFloat32, 1);
  scale.set(0, 16);
  std::vector<uint8_t> values(static_cast<size_t>(x.count())), transposed(values.size());
  const Reserved many_x(kRows * kColumns * kElement), many_values(kRows * kColumns), turned(kRows * kColumns);
  put_last(many_x, x);
  const auto cast = [&](int64_t rows, const void* from, void* to, void* to_transposed) {
    gpu::fp8_cast({.dtype = kDtype,
                   .format = EightBits::kE4m3fn,
                   .rows = rows,
                   .columns = kColumns,
                   .x = from,
                   .x_stride = kColumns,
                   .scales = scale.data(),
                   .row_shift = kNoBlocks,
                   .column_shift = kNoBlocks,
                   .scales_of_row = 1,
                   .values = static_cast<uint8_t*>(to),
                   .transposed = static_cast<uint8_t*>(to_transposed),
                   .amax = nullptr,
                   .most_blocks = 1u << 30},
                  nullptr);
  };
  run_last_blocks(kColumns / 128);
  cast(kRows, many_x.data(), many_values.data(), turned.data());
  run_last_blocks(0);
  cast(kCompared, x.data(), values.data(), transposed.data());
  expect_last(many_values, values.data(), values.size(), "fp8_cast");
  for (int64_t column = 0; column < kColumns; ++column) {
    const auto* const found = turned.data() + column * kRows + kRows - kCompared;
    ASSERT_EQ(std::memcmp(found, transposed.data() + column * kCompared, kCompared), 0)
        << "column " << column << " of the transpose is another instead of that of the small array";
  }
  run_last_blocks(kCompared * kColumns / 16 / 256);
  std::fill(values.begin(), values.end(), uint8_t{0});
  std::memset(many_values.end() - values.size(), 0, values.size());
  cast(kRows, many_x.data(), many_values.data(), nullptr);
  run_last_blocks(0);
  cast(kCompared, x.data(), values.data(), nullptr);
  expect_last(many_values, values.data(), values.size(), "fp8_cast without a transpose");
}

}  // namespace
}  // namespace megalith::ops
