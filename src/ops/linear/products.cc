// Without bf16 instructions (AVX2), LibTorch's bf16 product a b is a scalar loop, two hundred times as slow as fp32:
// operands are widened instead, block by block. So are fp16's.
//
// Up to 16 rows (generation) read a 16-bit weight once, at memory's speed; oneDNN packs it first.
//
// Our bf16 product serves processors with AVX512_BF16 but no AMX, where both come near the 231 GFLOP/s of a Zen 4 core:
// over a step's products ours took 2 to 3 % less CPU time in one thread on a busy machine (single shapes: from 3 % more
// to 8 % less, at k 4096). Unmeasured on AMX.
//
// Our fp32 product (cpu_float.cc) reaches 82 to 90 % of a Zen 4 core's 116 GFLOP/s, MKL with AVX2 77 to 85 %. AVX2 can
// reach half of a Zen 5's roof.
#include "ops/linear/products.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.h"
#include "device/device.h"
#include "device/own_products.h"
#include "ops/arguments.h"
#include "ops/cpu/block_products.h"
#include "ops/linear/kernel.h"

namespace megalith::ops::cpu {
namespace {

constexpr int64_t kSmallest = 64;  // below, packing takes longer than the product

bool is_ours(const at::Tensor& y, const at::Tensor& a, const at::Tensor& b) {
  if (y.scalar_type() != at::kBFloat16 || !has_own_bf16_products()) return false;
  const auto has_dense_rows = [](const at::Tensor& t) { return t.stride(1) == 1; };
  return std::min({y.size(0), y.size(1), a.size(1)}) >= kSmallest && has_dense_rows(y) && has_dense_rows(a) &&
         has_dense_rows(b);
}

bool is_of_few_rows(const at::Tensor& y, const at::Tensor& x, const at::Tensor& w) {
  const auto dtype = y.scalar_type();
  return (dtype == at::kBFloat16 || dtype == at::kHalf) && y.size(0) <= FewRowsProduct::kMostRows && x.stride(1) == 1 &&
         w.stride(1) == 1 && y.stride(1) == 1;
}

void multiply_few_rows(const at::Tensor& y, const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias) {
  static const bool has_pairs = cpu_features().avx512_bf16;
  const at::Tensor dense_bias = bias.defined() ? bias.contiguous() : at::Tensor();
  const FewRowsProduct call{.dtype = to_dtype(y.scalar_type()),
                            .has_pairs = has_pairs,
                            .m = y.size(0),
                            .n = y.size(1),
                            .k = x.size(1),
                            .x = x.const_data_ptr(),
                            .x_stride = x.stride(0),
                            .w = w.const_data_ptr(),
                            .w_stride = w.stride(0),
                            .bias = dense_bias.defined() ? dense_bias.const_data_ptr() : nullptr,
                            .y = y.mutable_data_ptr(),
                            .y_stride = y.stride(0)};
  std::atomic<int64_t> next{0};
  const int64_t threads = std::min<int64_t>(call.num_tasks(), at::get_num_threads());
  at::parallel_for(0, threads, 1, [&](int64_t, int64_t) { MEGALITH_CPU_KERNEL(few_rows_product)(call, &next); });
}

int64_t round_up(int64_t value, int64_t unit) { return div_up(value, unit) * unit; }

void choose_tasks(MatrixProduct& call) {
  // Three quarters of a 1 MB L2. More rows were slower while others used the cache.
  constexpr int64_t kBlockRows = 64, kBlockK = 2048, kPanels = 2;
  constexpr int64_t kFewestRows = 256, kMostRows = 2048;      // of a task
  const int64_t wanted = int64_t{6} * at::get_num_threads();  // for the last ones to end nearly together
  call.block_rows = kBlockRows;
  call.block_k = round_up(div_up(call.k, div_up(call.k, kBlockK)), 64);
  call.task_panels = kPanels;
  call.task_rows = std::min(round_up(call.m, kBlockRows), kMostRows);
  // More tasks pack more panels, at the cost of 16 rows each.
  while (call.num_tasks() < wanted && call.task_rows > kFewestRows) {
    call.task_rows = round_up(call.task_rows / 2, kBlockRows);
  }
  if (call.num_tasks() < wanted) call.task_panels = 1;
}

void multiply(const at::Tensor& y, const at::Tensor& a, const at::Tensor& b, bool b_is_transposed,
              const at::Tensor& bias) {
  const auto data = [](const at::Tensor& t) { return static_cast<const uint16_t*>(t.const_data_ptr()); };
  const at::Tensor dense_bias = bias.defined() ? bias.contiguous() : at::Tensor();
  MatrixProduct call{.m = y.size(0),
                     .n = y.size(1),
                     .k = a.size(1),
                     .a = data(a),
                     .a_stride = a.stride(0),
                     .b = data(b),
                     .b_stride = b.stride(0),
                     .b_is_transposed = b_is_transposed,
                     .bias = dense_bias.defined() ? data(dense_bias) : nullptr,
                     .y = static_cast<uint16_t*>(y.mutable_data_ptr()),
                     .y_stride = y.stride(0)};
  choose_tasks(call);
  std::atomic<int64_t> next{0};
  const int64_t threads = std::min<int64_t>(call.num_tasks(), at::get_num_threads());
  at::parallel_for(0, threads, 1, [&](int64_t, int64_t) { MEGALITH_CPU_KERNEL(matrix_product)(call, &next); });
}

constexpr int64_t kFloatPanel = 32;  // columns of the widest panel

int64_t equal_share(int64_t whole, int64_t most, int64_t unit) {
  return div_up(div_up(whole, div_up(whole, most)), unit) * unit;
}

int64_t num_float_tasks(const std::vector<FloatProduct>& products) {
  int64_t sum = 0;
  for (const FloatProduct& p : products) sum += p.num_tasks();
  return sum;
}

void set_float_tasks(std::vector<FloatProduct>& products, int64_t most_rows, int64_t most_columns) {
  for (FloatProduct& p : products) {
    p.task_rows = equal_share(p.m, most_rows, 1);
    p.task_columns = equal_share(p.n, most_columns, kFloatPanel);
  }
}

// Minimises the busiest thread's work. A task's part of b, of block_k rows, takes at most three quarters of a 1 MB L2.
void choose_float_tasks(std::vector<FloatProduct>& products) {
  constexpr int64_t kMostRows = 2048, kMostColumns = 768;
  const auto threads = static_cast<double>(at::get_num_threads());
  double best = 0;
  std::pair<int64_t, int64_t> chosen;
  for (int64_t columns = kMostColumns; columns >= 192; columns /= 2) {
    for (int64_t rows = kMostRows; rows >= 64; rows /= 2) {
      set_float_tasks(products, rows, columns);
      double total = 0, longest = 0;
      for (const FloatProduct& p : products) {
        // Adds packing b (as 16 rows) and copying a (as 32 columns).
        const auto task = static_cast<double>((p.task_rows + 16) * (p.task_columns + 32) * p.k);
        total += task * static_cast<double>(p.num_tasks());
        longest = std::max(longest, task);
      }
      const auto tasks = static_cast<double>(num_float_tasks(products));
      // Short tasks, so that threads wait less long for one that was interrupted.
      const double cost = std::ceil(tasks / threads) * total / tasks + (threads > 1 ? longest / 8 : 0);
      if (best == 0 || cost < best) {
        best = cost;
        chosen = {rows, columns};
      }
    }
  }
  set_float_tasks(products, chosen.first, chosen.second);
}

bool is_widened(const at::Tensor& y) {
  return y.scalar_type() == at::kHalf || (y.scalar_type() == at::kBFloat16 && !has_bf16_blocks());
}

// An eighth of the rows, to keep the scratch small.
int64_t wide_run(int64_t rows) { return std::clamp<int64_t>(div_up(rows, 8), 128, 2048); }

at::Tensor wide_rows(const at::Tensor& t, int64_t first, int64_t count) {
  return t.narrow(0, first, count).to(at::kFloat);
}

// y = a b^T + bias
void widened_forward(const at::Tensor& y, const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias) {
  const int64_t most_rows = wide_run(a.size(0)), most_columns = wide_run(b.size(0));
  for (int64_t row = 0; row < a.size(0); row += most_rows) {
    const int64_t rows = std::min(most_rows, a.size(0) - row);
    const at::Tensor wide = wide_rows(a, row, rows);
    for (int64_t column = 0; column < b.size(0); column += most_columns) {
      const int64_t columns = std::min(most_columns, b.size(0) - column);
      at::Tensor sum = at::mm(wide, wide_rows(b, column, columns).t());
      if (bias.defined()) sum.add_(wide_rows(bias, column, columns));
      y.narrow(0, row, rows).narrow(1, column, columns).copy_(sum);
    }
  }
}

void widened_dgrad(const at::Tensor& y, const at::Tensor& a, const at::Tensor& b) {
  const int64_t most_rows = wide_run(a.size(0)), most_terms = wide_run(b.size(0));
  for (int64_t row = 0; row < a.size(0); row += most_rows) {
    const int64_t rows = std::min(most_rows, a.size(0) - row);
    at::Tensor sum = at::zeros({rows, b.size(1)}, a.options().dtype(at::kFloat));
    for (int64_t term = 0; term < b.size(0); term += most_terms) {
      const int64_t terms = std::min(most_terms, b.size(0) - term);
      sum.addmm_(a.narrow(0, row, rows).narrow(1, term, terms).to(at::kFloat), wide_rows(b, term, terms));
    }
    y.narrow(0, row, rows).copy_(sum);
  }
}

}  // namespace

bool has_own_bf16_products() { return !cpu_features().amx_bf16 && has_bf16_blocks(); }

bool takes_float_product(const at::Tensor& c, int64_t k) {
  return c.scalar_type() == at::kFloat && has_own_fp32_products() &&
         std::min({c.size(0), c.size(1), k}) >= kSmallest;
}

FloatProduct float_product(const at::Tensor& c, const at::Tensor& a, bool a_is_transposed, const at::Tensor& b,
                           bool b_is_transposed) {
  return {.m = c.size(0),
          .n = c.size(1),
          .k = a.size(a_is_transposed ? 0 : 1),
          .a = a.const_data_ptr<float>(),
          .a_stride = a.stride(0),
          .a_is_transposed = a_is_transposed,
          .b = b.const_data_ptr<float>(),
          .b_stride = b.stride(0),
          .b_is_transposed = b_is_transposed,
          .c = c.mutable_data_ptr<float>(),
          .c_stride = c.stride(0)};
}

void run_float_products(std::vector<FloatProduct> products) {
  for (FloatProduct& p : products) p.block_k = equal_share(p.k, FloatProduct::kMostBlockK, 16);
  choose_float_tasks(products);
  std::vector<std::atomic<int64_t>> next(products.size());
  const int64_t threads = std::min<int64_t>(num_float_tasks(products), at::get_num_threads());
  at::parallel_for(0, threads, 1, [&](int64_t, int64_t) {
    for (size_t i = 0; i < products.size(); ++i) {
      if (next[i].load(std::memory_order_relaxed) < products[i].num_tasks()) {
        MEGALITH_CPU_KERNEL(float_product_tasks)(products[i], &next[i]);
      }
    }
  });
}

void linear_forward_out(const at::Tensor& y, const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias) {
  at::Tensor out = y;
  if (is_of_few_rows(y, x, w)) {
    multiply_few_rows(y, x, w, bias);
  } else if (is_ours(y, x, w)) {
    multiply(y, x, w, /*b_is_transposed=*/true, bias);
  } else if (takes_float_product(y, x.size(1))) {
    const at::Tensor dense_bias = bias.defined() ? bias.contiguous() : bias;
    FloatProduct product = float_product(y, x, /*a_is_transposed=*/false, w, /*b_is_transposed=*/true);
    if (bias.defined()) product.bias = dense_bias.const_data_ptr<float>();
    run_float_products({product});
  } else if (is_widened(y)) {
    widened_forward(y, x, w, bias);
  } else if (bias.defined()) {
    at::addmm_out(out, bias, x, w.t());
  } else {
    at::mm_out(out, x, w.t());
  }
}

void linear_dgrad_out(const at::Tensor& dx, const at::Tensor& dy, const at::Tensor& w) {
  at::Tensor out = dx;
  if (is_ours(dx, dy, w))
    multiply(dx, dy, w, /*b_is_transposed=*/false, {});
  else if (takes_float_product(dx, dy.size(1)))
    run_float_products({float_product(dx, dy, /*a_is_transposed=*/false, w, /*b_is_transposed=*/false)});
  else if (is_widened(dx))
    widened_dgrad(dx, dy, w);
  else
    at::mm_out(out, dy, w);
}

}  // namespace megalith::ops::cpu
