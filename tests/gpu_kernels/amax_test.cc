// The largest absolute value of what norms and swiglu write, under emulation: the same in every order.
#include <algorithm>
#include <cmath>

#include "gpu_kernels/expect.h"
#include "ops/layer_norm/kernel.h"
#include "ops/rms_norm/kernel.h"
#include "ops/swiglu/kernel.h"

namespace megalith::ops {
namespace {

using testing::Array;

struct AmaxCase {
  Dtype dtype;
  int64_t rows, columns;  // of y
};

void rms_norm_with_amax(const AmaxCase& c, const Array& x, Array& y, Array& amax) {
  Array inv_rms(testing::wide_of(c.dtype), c.rows), ones(c.dtype, c.columns);
  for (int64_t i = 0; i < c.columns; ++i) ones.set(i, 1);
  gpu::rms_norm_forward({.dtype = c.dtype,
                         .rows = c.rows,
                         .columns = c.columns,
                         .x = x.data(),
                         .weight = ones.data(),
                         .eps = 1e-5,
                         .y = y.data(),
                         .inv_rms = inv_rms.data(),
                         .amax = amax.data()},
                        nullptr);
}

void layer_norm_with_amax(const AmaxCase& c, const Array& x, Array& y, Array& amax) {
  const Dtype wide = testing::wide_of(c.dtype);
  Array mean(wide, c.rows), inv_std(wide, c.rows), ones(c.dtype, c.columns);
  for (int64_t i = 0; i < c.columns; ++i) ones.set(i, 1);
  gpu::layer_norm_forward({.dtype = c.dtype,
                           .rows = c.rows,
                           .columns = c.columns,
                           .x = x.data(),
                           .weight = ones.data(),
                           .bias = ones.data(),
                           .eps = 1e-5,
                           .y = y.data(),
                           .mean = mean.data(),
                           .inv_std = inv_std.data(),
                           .amax = amax.data()},
                          nullptr);
}

void swiglu_with_amax(const AmaxCase& c, const Array& x, Array& y, Array& amax) {
  gpu::swiglu({c.dtype, c.rows, c.columns, x.data(), y.data(), amax.data()}, nullptr);
}

using AmaxKernel = void (*)(const AmaxCase& c, const Array& x, Array& y, Array& amax);

void try_amax(const AmaxCase& c, AmaxKernel kernel, double before) {
  Array x(c.dtype, 2 * c.rows * c.columns);  // enough for [gate | up]
  std::mt19937 generator(static_cast<unsigned>(c.columns));
  x.draw(generator, 0, 3);
  const auto run = [&] {
    std::vector<Array> results;
    results.emplace_back(c.dtype, c.rows * c.columns);
    results.emplace_back(testing::wide_of(c.dtype), 1);
    results[1].set(0, before);
    kernel(c, x, results[0], results[1]);
    return results;
  };
  testing::in_every_order(
      "(" + std::to_string(c.rows) + ", " + std::to_string(c.columns) + ") " + testing::name_of(c.dtype), run,
      [&](const std::vector<Array>& results) {
        double largest = before;
        for (int64_t i = 0; i < results[0].count(); ++i) largest = std::max(largest, std::abs(results[0][i]));
        ASSERT_EQ(results[1][0], largest) << "amax is " << results[1][0] << " instead of " << largest;
      });
}

TEST(AmaxKernels, AreTheLargestOfTheResultInEveryOrder) {
  // Several rows a block, of which the last is not full; a block a row; element by element.
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{70, 128}, {3, 520}, {5, 131}}) {
    for (const Dtype dtype : testing::dtypes()) {
      for (const AmaxKernel kernel : {rms_norm_with_amax, layer_norm_with_amax, swiglu_with_amax}) {
        for (const double before : {0.0, 1e4}) {
          try_amax({dtype, rows, columns}, kernel, before);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

}  // namespace
}  // namespace megalith::ops
