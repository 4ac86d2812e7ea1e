// The GPU kernels of the experts' products under emulation: against loops in double, equal to the bit in every order.
#include <cmath>
#include <numeric>

#include "gpu_kernels/expect.h"
#include "ops/grouped_linear/kernel.h"

namespace megalith::ops {
namespace {

using testing::Array;
using testing::Expected;

struct GroupedCase {
  std::vector<int64_t> counts;
  int64_t h, o;
  int64_t beyond = 0;     // rows of no expert
  int64_t row_space = 0;  // between rows of x and dy, in elements
  int64_t shift = 0;      // of the arrays of `dtype`, in elements
  Dtype dtype = Dtype::kFloat32;

  int64_t experts() const { return static_cast<int64_t>(counts.size()); }
  int64_t rows() const { return std::accumulate(counts.begin(), counts.end(), beyond); }
  std::vector<int64_t> offsets() const {
    std::vector<int64_t> all{0};
    for (const int64_t count : counts) all.push_back(all.back() + count);
    return all;
  }
  std::string what() const {
    std::string text = "rows";
    for (const int64_t count : counts) text += " " + std::to_string(count);
    return text + ", (" + std::to_string(o) + ", " + std::to_string(h) + "), " + testing::name_of(dtype) +
           (row_space != 0 ? ", strided" : "") + (shift != 0 ? ", not aligned" : "");
  }
};

struct GroupedInputs {
  std::vector<int64_t> offsets;
  int64_t x_stride, dy_stride;
  Array x, dy, w, dw;

  explicit GroupedInputs(const GroupedCase& c)
      : offsets(c.offsets()),
        x_stride(c.h + c.row_space),
        dy_stride(c.o + c.row_space),
        x(c.dtype, c.rows() * x_stride, c.shift),
        dy(c.dtype, c.rows() * dy_stride, c.shift),
        w(c.dtype, c.experts() * c.o * c.h, c.shift),
        dw(testing::wide_of(c.dtype), c.experts() * c.o * c.h) {
    std::mt19937 generator(static_cast<unsigned>(c.h * 1000 + c.o));
    for (Array* array : {&x, &dy, &w, &dw}) array->draw(generator, 0, 1);
  }
};

// {y, dx, dw of its own, dw added to what was there}
std::vector<Array> run(const GroupedCase& c, GroupedInputs& in) {
  Array y(c.dtype, c.rows() * c.o), dx(c.dtype, c.rows() * c.h);
  Array fresh(in.dw.dtype(), in.dw.count()), summed(in.dw.dtype(), in.dw.count());
  for (int64_t i = 0; i < summed.count(); ++i) summed.set(i, in.dw[i]);
  const gpu::GroupedProduct forward{.dtype = c.dtype,
                                    .experts = c.experts(),
                                    .rows = c.rows(),
                                    .n = c.o,
                                    .k = c.h,
                                    .offsets = in.offsets.data(),
                                    .x = in.x.data(),
                                    .x_stride = in.x_stride,
                                    .w = in.w.data(),
                                    .w_is_transposed = true,
                                    .y = y.data()};
  gpu::grouped_product(forward, nullptr);
  gpu::GroupedProduct dgrad = forward;
  dgrad.n = c.h;
  dgrad.k = c.o;
  dgrad.x = in.dy.data();
  dgrad.x_stride = in.dy_stride;
  dgrad.w_is_transposed = false;
  dgrad.y = dx.data();
  gpu::grouped_product(dgrad, nullptr);
  gpu::GroupedGradient gradient{.dtype = c.dtype,
                                .experts = c.experts(),
                                .o = c.o,
                                .h = c.h,
                                .offsets = in.offsets.data(),
                                .dy = in.dy.data(),
                                .dy_stride = in.dy_stride,
                                .x = in.x.data(),
                                .x_stride = in.x_stride,
                                .dw = fresh.data(),
                                .accumulate = false};
  gpu::grouped_gradient(gradient, nullptr);
  gradient.dw = summed.data();
  gradient.accumulate = true;
  gpu::grouped_gradient(gradient, nullptr);
  std::vector<Array> results;
  for (Array* array : {&y, &dx, &fresh, &summed}) results.push_back(std::move(*array));
  return results;
}

// The sum over k of a(k) b(k), and how far off a result may be that is summed in the wide dtype and rounded to `dtype`.
template <typename A, typename B>
Expected product(int64_t count, double start, Dtype dtype, Dtype wide, A&& a, B&& b) {
  double sum = start, magnitude = std::abs(start);
  for (int64_t k = 0; k < count; ++k) {
    sum += a(k) * b(k);
    magnitude += std::abs(a(k) * b(k));
  }
  // Each of `count` products and additions rounds once.
  const double of_sum = static_cast<double>(count + 2) * testing::unit_of(wide) * magnitude;
  return {sum, of_sum + testing::unit_of(dtype) * std::abs(sum) + testing::smallest_step_of(dtype)};
}

void check(const GroupedCase& c, const GroupedInputs& in, const std::vector<Array>& results) {
  const Dtype wide = testing::wide_of(c.dtype);
  std::vector<Expected> y(static_cast<size_t>(c.rows() * c.o)), dx(static_cast<size_t>(c.rows() * c.h)), fresh, summed;
  for (int64_t e = 0; e < c.experts(); ++e) {
    const int64_t first = in.offsets[static_cast<size_t>(e)], count = c.counts[static_cast<size_t>(e)];
    const auto w = [&](int64_t o, int64_t h) { return in.w[(e * c.o + o) * c.h + h]; };
    for (int64_t row = first; row < first + count; ++row) {
      const auto x = [&](int64_t h) { return in.x[row * in.x_stride + h]; };
      const auto dy = [&](int64_t o) { return in.dy[row * in.dy_stride + o]; };
      for (int64_t o = 0; o < c.o; ++o) {
        y[static_cast<size_t>(row * c.o + o)] = product(c.h, 0, c.dtype, wide, x, [&](int64_t h) { return w(o, h); });
      }
      for (int64_t h = 0; h < c.h; ++h) {
        dx[static_cast<size_t>(row * c.h + h)] = product(c.o, 0, c.dtype, wide, dy, [&](int64_t o) { return w(o, h); });
      }
    }
    for (int64_t i = 0; i < c.o * c.h; ++i) {
      const auto dy = [&](int64_t k) { return in.dy[(first + k) * in.dy_stride + i / c.h]; };
      const auto x = [&](int64_t k) { return in.x[(first + k) * in.x_stride + i % c.h]; };
      fresh.push_back(product(count, 0, wide, wide, dy, x));
      summed.push_back(product(count, in.dw[e * c.o * c.h + i], wide, wide, dy, x));
    }
  }
  testing::expect_near(results[0], y, "y");
  testing::expect_near(results[1], dx, "dx");
  testing::expect_near(results[2], fresh, "dw");
  testing::expect_near(results[3], summed, "summed dw");
}

void try_cases(const std::vector<GroupedCase>& cases) {
  for (GroupedCase c : cases) {
    for (const Dtype dtype : testing::dtypes()) {
      c.dtype = dtype;
      GroupedInputs in(c);
      testing::in_every_order(
          c.what(), [&] { return run(c, in); }, [&](const std::vector<Array>& results) { check(c, in, results); });
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(GroupedLinearKernels, EqualLoopsInDoubleInEveryOrder) {
  // Empty experts and rows of no expert; tiles of 128 (64) and a part of one after; more than one piece of 32 (16) of
  // k, the last one short; all in vectors.
  std::vector<GroupedCase> cases{{.counts = {0, 35, 3, 0}, .h = 40, .o = 24, .beyond = 3}};
  if (testing::is_thorough()) {
    cases.insert(cases.end(), {{.counts = {1}, .h = 1, .o = 1},
                               {.counts = {3, 1, 2}, .h = 5, .o = 7},
                               {.counts = {0, 0}, .h = 8, .o = 16},
                               {.counts = {0, 0}, .h = 8, .o = 16, .beyond = 2},
                               {.counts = {130, 0, 17}, .h = 136, .o = 65, .beyond = 67},
                               {.counts = {64}, .h = 128, .o = 256}});
  }
  try_cases(cases);
}

TEST(GroupedLinearKernels, TakeAnyStrideAndAddress) {
  // Rows are multiples of 16 bytes long, but not apart; rows of x and dy begin at such, those of w do not; nothing
  // does; all but the address would.
  std::vector<GroupedCase> cases{{.counts = {5, 34}, .h = 24, .o = 16, .row_space = 3}};
  if (testing::is_thorough()) {
    cases.insert(cases.end(), {{.counts = {5, 34}, .h = 19, .o = 21, .row_space = 3},
                               {.counts = {5, 34}, .h = 24, .o = 13, .row_space = 8},
                               {.counts = {5, 34}, .h = 32, .o = 16, .shift = 1}});
  }
  try_cases(cases);
}

TEST(GroupedLinearKernels, NoRowsLeaveWhatIsSummedAsItIs) {
  const std::vector<int64_t> offsets{0, 0};
  Array dw(Dtype::kFloat32, 4);
  for (int64_t i = 0; i < 4; ++i) dw.set(i, static_cast<double>(i));
  gpu::GroupedGradient gradient{.dtype = Dtype::kBFloat16,
                                .experts = 1,
                                .o = 2,
                                .h = 2,
                                .offsets = offsets.data(),
                                .dy = nullptr,
                                .dy_stride = 2,
                                .x = nullptr,
                                .x_stride = 2,
                                .dw = dw.data(),
                                .accumulate = true};
  gpu::grouped_gradient(gradient, nullptr);
  for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(dw[i], static_cast<double>(i));
  gradient.accumulate = false;
  gpu::grouped_gradient(gradient, nullptr);
  for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(dw[i], 0);
}

}  // namespace
}  // namespace megalith::ops
