// The experts' products on the CPU and on meta. Threads take tasks from all experts' products, balancing those of many
// and few rows. fp32 uses linear's kernels, bf16 too if the processor multiplies it, other dtypes widened products.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <deque>
#include <vector>

#include "core/error.h"
#include "ops/arguments.h"
#include "ops/cpu/block_products.h"
#include "ops/grouped_linear/grouped_linear.h"
#include "ops/grouped_linear/kernel.h"
#include "ops/linear/products.h"

namespace megalith::ops {
namespace cpu {
namespace {

constexpr int64_t kTasksPerThread = 6;  // for the last ones to end nearly together

struct ExpertRows {
  const int64_t* offsets;
  int64_t num_experts;

  explicit ExpertRows(const at::Tensor& t) : offsets(t.const_data_ptr<int64_t>()), num_experts(t.size(0) - 1) {}
  int64_t first(int64_t j) const { return offsets[j]; }
  int64_t count(int64_t j) const { return offsets[j + 1] - offsets[j]; }
};

const char* row_of(const at::Tensor& x, int64_t row) {
  return static_cast<const char*>(x.const_data_ptr()) + row * x.stride(0) * static_cast<int64_t>(x.element_size());
}
char* mutable_row_of(const at::Tensor& x, int64_t row) {
  return static_cast<char*>(x.mutable_data_ptr()) + row * x.stride(0) * static_cast<int64_t>(x.element_size());
}
const uint16_t* bf16_row(const at::Tensor& x, int64_t row) { return reinterpret_cast<const uint16_t*>(row_of(x, row)); }

template <typename Body>
void on_threads(int64_t threads, const Body& body) {
  at::parallel_for(0, threads, 1, [&](int64_t, int64_t) { body(); });
}

// Own counters per call: threads never wait between calls.
template <typename Call>
struct CounterCall {
  Call call;
  int64_t num_tasks;
  std::atomic<int64_t> next{0};

  CounterCall(const Call& c, int64_t n) : call(c), num_tasks(n) {}
};

template <typename Call, typename Kernel>
void run_calls(std::deque<CounterCall<Call>>& calls, Kernel* kernel) {
  int64_t num_tasks = 0;
  for (const CounterCall<Call>& c : calls) num_tasks += c.num_tasks;
  on_threads(std::min<int64_t>(num_tasks, at::get_num_threads()), [&] {
    for (CounterCall<Call>& c : calls) {
      if (c.next.load(std::memory_order_relaxed) < c.num_tasks) kernel(c.call, &c.next);
    }
  });
}

void multiply_bf16(const at::Tensor& y, const at::Tensor& x, const at::Tensor& w, const ExpertRows& rows,
                   bool w_is_transposed) {
  constexpr int64_t kBlockRows = 256, kBlockK = 1024;
  const int64_t k = x.size(1), n = y.size(1);
  const int64_t wanted = kTasksPerThread * at::get_num_threads();
  std::vector<MatrixProduct> products;
  for (int64_t j = 0; j < rows.num_experts; ++j) {
    const int64_t m = rows.count(j), first = rows.first(j);
    if (m == 0) continue;
    products.push_back({.m = m,
                        .n = n,
                        .k = k,
                        .a = bf16_row(x, first),
                        .a_stride = x.stride(0),
                        .b = bf16_row(w, j),
                        .b_stride = w.stride(1),
                        .b_is_transposed = w_is_transposed,
                        .bias = nullptr,
                        .y = reinterpret_cast<uint16_t*>(mutable_row_of(y, first)),
                        .y_stride = y.stride(0),
                        .block_rows = kBlockRows,
                        .block_k = div_up(div_up(k, div_up(k, kBlockK)), 64) * 64,
                        .task_rows = std::min<int64_t>(div_up(m, kBlockRows) * kBlockRows, 8 * kBlockRows),
                        .task_panels = 2});
  }
  const auto num_tasks = [&] {
    int64_t sum = 0;
    for (const MatrixProduct& p : products) sum += p.num_tasks();
    return sum;
  };
  for (int64_t most = 8 * kBlockRows; most > kBlockRows && num_tasks() < wanted; most /= 2) {
    for (MatrixProduct& p : products) p.task_rows = std::min(p.task_rows, most / 2);
  }
  if (num_tasks() < wanted) {
    for (MatrixProduct& p : products) p.task_panels = 1;
  }
  std::deque<CounterCall<MatrixProduct>> calls;
  for (const MatrixProduct& p : products) calls.emplace_back(p, p.num_tasks());
  run_calls(calls, MEGALITH_CPU_KERNEL(matrix_product));
}

// Changes no result.
void cut_gradients(std::vector<WgradCall>& calls) {
  const int64_t wanted = kTasksPerThread * at::get_num_threads();
  for (WgradCall& c : calls) {
    c.block_rows = std::min<int64_t>(256, div_up(c.o, 32) * 32);
    c.block_panels = c.num_panels();
  }
  const auto num_tasks = [&] {
    int64_t sum = 0;
    for (const WgradCall& c : calls) sum += c.num_row_blocks() * c.num_panel_blocks();
    return sum;
  };
  for (int cuts = 0; cuts < 3 && num_tasks() < wanted; ++cuts) {
    for (WgradCall& c : calls) c.block_panels = div_up(c.block_panels, 2);
  }
}

// Rounds of at most kWgradTokens rows per expert, accumulated in order.
void wgrad_bf16(const at::Tensor& dw, const at::Tensor& dy, const at::Tensor& x, const ExpertRows& rows,
                bool accumulate) {
  int64_t longest = 0;
  for (int64_t j = 0; j < rows.num_experts; ++j) longest = std::max(longest, rows.count(j));
  for (int64_t done = 0; done < longest; done += kWgradTokens) {
    std::vector<WgradCall> round;
    int64_t packed_size = 0;
    for (int64_t j = 0; j < rows.num_experts; ++j) {
      if (rows.count(j) <= done) continue;
      const int64_t first = rows.first(j) + done;
      round.push_back({.t = std::min(rows.count(j) - done, kWgradTokens),
                       .o = dy.size(1),
                       .h = x.size(1),
                       .dy = bf16_row(dy, first),
                       .dy_stride = dy.stride(0),
                       .x = bf16_row(x, first),
                       .x_stride = x.stride(0),
                       .dw = reinterpret_cast<float*>(mutable_row_of(dw, j)),
                       .dw_stride = dw.stride(1),
                       .accumulate = accumulate || done > 0});
      packed_size += round.back().num_panels() * kWgradPanel * round.back().t_padded();
    }
    const at::Tensor packed = at::empty({packed_size}, at::kShort);
    auto* place = reinterpret_cast<uint16_t*>(packed.mutable_data_ptr<int16_t>());
    for (WgradCall& c : round) {
      c.packed_x = place;
      place += c.num_panels() * kWgradPanel * c.t_padded();
    }
    cut_gradients(round);
    std::deque<CounterCall<WgradCall>> packs, products;
    for (const WgradCall& c : round) {
      packs.emplace_back(c, c.num_panels());
      products.emplace_back(c, c.num_row_blocks() * c.num_panel_blocks());
    }
    run_calls(packs, MEGALITH_CPU_KERNEL(wgrad_pack));
    run_calls(products, MEGALITH_CPU_KERNEL(wgrad));
  }
}

void run_floats(const WidenedProducts& all, const std::vector<WidenedProduct>& products) {
  std::vector<FloatProduct> floats;
  for (const WidenedProduct& p : products) {
    floats.push_back({.m = p.m,
                      .n = p.n,
                      .k = p.k,
                      .a = static_cast<const float*>(p.a),
                      .a_stride = p.a_stride,
                      .a_is_transposed = all.a_is_transposed,
                      .b = static_cast<const float*>(p.b),
                      .b_stride = p.b_stride,
                      .b_is_transposed = all.b_is_transposed,
                      .c = static_cast<float*>(p.c),
                      .c_stride = p.c_stride,
                      .accumulate = all.accumulate});
  }
  run_float_products(std::move(floats));
}

void run_widened(WidenedProducts all, std::vector<WidenedProduct>& products) {
  if (all.dtype == Dtype::kFloat32) return run_floats(all, products);
  for (WidenedProduct& p : products) {
    p.first_task = all.num_tasks;
    all.num_tasks += div_up(p.m, WidenedProducts::kTaskRows) * div_up(p.n, WidenedProducts::kTaskColumns);
  }
  all.products = products.data();
  all.num_products = static_cast<int64_t>(products.size());
  std::atomic<int64_t> next{0};
  on_threads(std::min<int64_t>(all.num_tasks, at::get_num_threads()), [&] {
    MEGALITH_CPU_KERNEL(widened_products)(all, &next);
  });
}

void multiply_widened(const at::Tensor& y, const at::Tensor& x, const at::Tensor& w, const ExpertRows& rows,
                      bool w_is_transposed) {
  std::vector<WidenedProduct> products;
  for (int64_t j = 0; j < rows.num_experts; ++j) {
    if (rows.count(j) == 0) continue;
    products.push_back({.m = rows.count(j),
                        .n = y.size(1),
                        .k = x.size(1),
                        .a = row_of(x, rows.first(j)),
                        .a_stride = x.stride(0),
                        .b = row_of(w, j),
                        .b_stride = w.stride(1),
                        .c = mutable_row_of(y, rows.first(j)),
                        .c_stride = y.stride(0)});
  }
  run_widened({.dtype = to_dtype(x.scalar_type()), .b_is_transposed = w_is_transposed}, products);
}

void wgrad_widened(const at::Tensor& dw, const at::Tensor& dy, const at::Tensor& x, const ExpertRows& rows,
                   bool accumulate) {
  std::vector<WidenedProduct> products;
  for (int64_t j = 0; j < rows.num_experts; ++j) {
    if (rows.count(j) == 0) continue;
    products.push_back({.m = dy.size(1),
                        .n = x.size(1),
                        .k = rows.count(j),
                        .a = row_of(dy, rows.first(j)),
                        .a_stride = dy.stride(0),
                        .b = row_of(x, rows.first(j)),
                        .b_stride = x.stride(0),
                        .c = mutable_row_of(dw, j),
                        .c_stride = dw.stride(1)});
  }
  run_widened(
      {.dtype = to_dtype(x.scalar_type()), .a_is_transposed = true, .c_is_wide = true, .accumulate = accumulate},
      products);
}

bool is_fast_bf16(const at::Tensor& x) { return x.scalar_type() == at::kBFloat16 && has_bf16_blocks(); }

at::Tensor empty_grouped_linear(const at::Tensor& x, const at::Tensor& w, const at::Tensor& /*offsets*/) {
  return at::empty({x.size(0), w.size(1)}, x.options());
}

at::Tensor empty_grouped_dgrad(const at::Tensor& dy, const at::Tensor& w, const at::Tensor& /*offsets*/) {
  return at::empty({dy.size(0), w.size(2)}, dy.options());
}

at::Tensor multiply_experts(at::Tensor y, const at::Tensor& x, const at::Tensor& w, const at::Tensor& offsets,
                            bool w_is_transposed) {
  if (y.numel() == 0) return y;
  if (x.size(1) == 0) return y.zero_();
  if (is_fast_bf16(x))
    multiply_bf16(y, x, w, ExpertRows(offsets), w_is_transposed);
  else
    multiply_widened(y, x, w, ExpertRows(offsets), w_is_transposed);
  return y;
}

at::Tensor grouped_linear_on_cpu(const at::Tensor& x, const at::Tensor& w, const at::Tensor& offsets) {
  return multiply_experts(empty_grouped_linear(x, w, offsets), x, w, offsets, /*w_is_transposed=*/true);
}

at::Tensor grouped_dgrad_on_cpu(const at::Tensor& dy, const at::Tensor& w, const at::Tensor& offsets) {
  return multiply_experts(empty_grouped_dgrad(dy, w, offsets), dy, w, offsets, /*w_is_transposed=*/false);
}

void grouped_wgrad_on_cpu(const at::Tensor& dw, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& offsets,
                          bool accumulate) {
  if (dw.numel() == 0) return;
  const ExpertRows rows(offsets);
  if (!accumulate) {
    for (int64_t j = 0; j < rows.num_experts; ++j) {
      if (rows.count(j) == 0) dw.select(0, j).zero_();
    }
  }
  if (is_fast_bf16(x))
    wgrad_bf16(dw, dy, x, rows, accumulate);
  else
    wgrad_widened(dw, dy, x, rows, accumulate);
}

}  // namespace
}  // namespace cpu

constexpr GroupedLinearTable kGroupedLinearCpu{
    .forward = cpu::grouped_linear_on_cpu, .dgrad = cpu::grouped_dgrad_on_cpu, .wgrad_ = cpu::grouped_wgrad_on_cpu};

constexpr GroupedLinearTable kGroupedLinearMeta{
    .forward = cpu::empty_grouped_linear,
    .dgrad = cpu::empty_grouped_dgrad,
    .wgrad_ = [](const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, bool) {}};

}  // namespace megalith::ops
