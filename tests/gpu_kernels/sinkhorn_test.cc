// Sinkhorn's GPU kernel under emulation: against loops in double, equal to the bit in every order.
#include "gpu_kernels/expect.h"
#include "ops/sinkhorn/kernel.h"

namespace megalith::ops {
namespace {

using testing::Array;
using testing::Expected;

struct Balanced {
  std::vector<double> y;
  int rounds = 0;
};

Balanced balance_in_loops(const Array& x, int64_t rows, int64_t columns) {
  Balanced out;
  const auto at = [&](int64_t r, int64_t c) -> double& { return out.y[static_cast<size_t>(r * columns + c)]; };
  for (int64_t i = 0; i < x.count(); ++i) out.y.push_back(std::exp(x[i]));
  std::vector<double> of_rows(static_cast<size_t>(rows), 1), of_columns(static_cast<size_t>(columns), 1);
  for (double moved = 1; moved > kSinkhornTolerance && out.rounds < kMostSinkhornRounds; ++out.rounds) {
    for (int64_t r = 0; r < rows; ++r) {
      double sum = kSinkhornEpsilon;
      for (int64_t c = 0; c < columns; ++c) sum += at(r, c) * of_columns[static_cast<size_t>(c)];
      of_rows[static_cast<size_t>(r)] = 1 / (sum * static_cast<double>(rows));
    }
    moved = 0;
    for (int64_t c = 0; c < columns; ++c) {
      double sum = kSinkhornEpsilon;
      for (int64_t r = 0; r < rows; ++r) sum += at(r, c) * of_rows[static_cast<size_t>(r)];
      const double next = 1 / (sum * static_cast<double>(columns));
      moved += std::abs(next - of_columns[static_cast<size_t>(c)]) / static_cast<double>(columns);
      of_columns[static_cast<size_t>(c)] = next;
    }
  }
  for (int64_t i = 0; i < x.count(); ++i) {
    out.y[static_cast<size_t>(i)] *=
        of_rows[static_cast<size_t>(i / columns)] * of_columns[static_cast<size_t>(i % columns)];
  }
  return out;
}

void try_balance(Dtype dtype, int64_t rows, int64_t columns, double spread) {
  Array x(dtype, rows * columns);
  std::mt19937 generator(static_cast<unsigned>(rows * 1000 + columns));
  x.draw(generator, 0, spread);
  for (int64_t r = 0; r < rows; ++r) x.set(r * columns, x[r * columns] + 2);  // most want the first
  const Balanced expected = balance_in_loops(x, rows, columns);
  if (rows > 1 && columns > 1) {
    EXPECT_GT(expected.rounds, 2);
  }
  const auto run = [&] {
    std::vector<Array> results;
    results.emplace_back(Dtype::kFloat64, rows * columns);
    Array scratch(Dtype::kFloat64, gpu::sinkhorn_scratch(rows, columns));
    gpu::sinkhorn({.dtype = dtype,
                   .rows = rows,
                   .columns = columns,
                   .x = x.data(),
                   .y = static_cast<double*>(results[0].data()),
                   .scratch = static_cast<double*>(scratch.data())},
                  nullptr);
    return results;
  };
  testing::in_every_order(std::to_string(rows) + " rows of " + std::to_string(columns), run,
                          [&](const std::vector<Array>& results) {
                            std::vector<Expected> near;
                            // Sums of up to some hundred terms in another order, in every round.
                            for (const double y : expected.y) near.push_back({y, 1e-11 * y});
                            testing::expect_near(results[0], near, "y");
                          });
}

TEST(SinkhornKernels, EqualLoopsInDoubleInEveryOrder) {
  // One; fewer rows than waves; columns that are no multiple of a wave; more than a lane's first registers.
  struct Size {
    int64_t rows, columns;
  };
  const std::vector<Size> sizes =
      testing::is_thorough() ? std::vector<Size>{{1, 1}, {5, 3}, {40, 6}, {97, 64}, {60, 65}, {40, 300}, {20, 512}}
                             : std::vector<Size>{{40, 6}};
  for (const auto& [rows, columns] : sizes) {
    for (const Dtype dtype : {Dtype::kFloat32, Dtype::kFloat64}) {
      try_balance(dtype, rows, columns, 1);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(SinkhornKernels, NothingIsLaunchedForNothing) {
  EXPECT_NO_THROW(gpu::sinkhorn({.dtype = Dtype::kFloat32, .rows = 0, .columns = 4}, nullptr));
  EXPECT_NO_THROW(gpu::sinkhorn({.dtype = Dtype::kFloat32, .rows = 4, .columns = 0}, nullptr));
}

}  // namespace
}  // namespace megalith::ops
