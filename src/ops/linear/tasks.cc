// Registers the linear layer's products and the embedding for the CPU and for the meta device.
//
// Forward and dgrad are ours or LibTorch's (see matrix_product.cc). The weight gradient of bf16 is ours where the
// processor multiplies bf16: a LibTorch product would be rounded to bf16 before it is summed, and takes twice as long
// on AMX. Our products and the gradients of bias and embedding repeat to the bit for any number of threads; LibTorch's
// GEMMs promise that for one number only.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "core/error.h"
#include "ops/arguments.h"
#include "ops/cpu/block_products.h"
#include "ops/library.h"
#include "ops/linear/kernel.h"
#include "ops/linear/products.h"
#include "ops/linear/wgrad.h"

namespace megalith::ops::cpu {
namespace {

at::Tensor linear_forward(const at::Tensor& x, const at::Tensor& w, const std::optional<at::Tensor>& bias) {
  const at::Tensor y = at::empty({x.size(0), w.size(0)}, x.options());
  linear_forward_out(y, x, w, bias);
  return y;
}

at::Tensor linear_dgrad(const at::Tensor& dy, const at::Tensor& w) {
  const at::Tensor dx = at::empty({dy.size(0), w.size(1)}, dy.options());
  linear_dgrad_out(dx, dy, w);
  return dx;
}

using WgradKernel = void(const WgradCall&, std::atomic<int64_t>*);

void run_tasks(WgradKernel* kernel, const WgradCall& call, int64_t num_tasks) {
  std::atomic<int64_t> next{0};
  const int64_t threads = std::min<int64_t>(num_tasks, at::get_num_threads());
  at::parallel_for(0, threads, 1, [&](int64_t, int64_t) { kernel(call, &next); });
}

// Cuts dw into blocks so that the busiest thread has the least to do.
void choose_blocks(WgradCall& call) {
  const int64_t threads = at::get_num_threads();
  double best = 0;
  for (int64_t rows = 256; rows >= 32; rows -= 32) {
    for (int64_t cuts = 1; cuts <= std::min<int64_t>(call.num_panels(), 8); cuts *= 2) {
      WgradCall trial = call;
      trial.block_rows = rows;
      trial.block_panels = div_up(call.num_panels(), cuts);
      const int64_t rounds = div_up(trial.num_row_blocks() * trial.num_panel_blocks(), threads);
      // Beside the product: reading the panels (as dear as 16 rows of it) and transposing dy (as 1 panel).
      const double cost = static_cast<double>(rounds * (rows + 16) * (trial.block_panels + 1));
      if (best == 0 || cost < best) {
        best = cost;
        call.block_rows = rows;
        call.block_panels = trial.block_panels;
      }
    }
  }
}

void tile_wgrad(const at::Tensor& dw, const at::Tensor& dy, const at::Tensor& x, bool accumulate) {
  WgradCall call{.t = std::min(dy.size(0), kWgradTokens),
                 .o = dy.size(1),
                 .h = x.size(1),
                 .dy_stride = dy.stride(0),
                 .x_stride = x.stride(0),
                 .dw = dw.mutable_data_ptr<float>(),
                 .dw_stride = dw.stride(0)};
  choose_blocks(call);
  const at::Tensor packed = at::empty({call.num_panels() * kWgradPanel * call.t_padded()}, at::kShort);
  call.packed_x = reinterpret_cast<uint16_t*>(packed.mutable_data_ptr<int16_t>());
  for (int64_t first = 0; first < dy.size(0); first += kWgradTokens) {
    call.t = std::min(dy.size(0) - first, kWgradTokens);
    call.dy = static_cast<const uint16_t*>(dy.const_data_ptr()) + first * call.dy_stride;
    call.x = static_cast<const uint16_t*>(x.const_data_ptr()) + first * call.x_stride;
    call.accumulate = accumulate || first > 0;
    run_tasks(MEGALITH_CPU_KERNEL(wgrad_pack), call, call.num_panels());
    run_tasks(MEGALITH_CPU_KERNEL(wgrad), call, call.num_row_blocks() * call.num_panel_blocks());
  }
}

// Widens a few tokens at a time.
void widened_wgrad(const at::Tensor& dw, const at::Tensor& dy, const at::Tensor& x, bool accumulate) {
  constexpr int64_t kTokens = 512;
  at::Tensor sum = dw;
  for (int64_t first = 0; first < dy.size(0); first += kTokens) {
    const int64_t count = std::min(kTokens, dy.size(0) - first);
    const auto wide = [&](const at::Tensor& t) { return t.narrow(0, first, count).to(dw.scalar_type()); };
    at::addmm_out(sum, dw, wide(dy).t(), wide(x), /*beta=*/accumulate || first > 0 ? 1 : 0);
  }
}

}  // namespace

void linear_wgrad_(const at::Tensor& dw, const at::Tensor& dy, const at::Tensor& x, bool accumulate) {
  if (dw.numel() == 0) return;
  if (dy.size(0) == 0) {
    if (!accumulate) dw.zero_();
  } else if (dy.scalar_type() == dw.scalar_type()) {
    at::Tensor sum = dw;
    at::addmm_out(sum, dw, dy.t(), x, /*beta=*/accumulate ? 1 : 0);
  } else if (dy.scalar_type() == at::kBFloat16 && has_bf16_blocks()) {
    tile_wgrad(dw, dy, x, accumulate);
  } else {
    widened_wgrad(dw, dy, x, accumulate);
  }
}

namespace {

void bias_grad_(const at::Tensor& db, const at::Tensor& dy) {
  MEGALITH_CPU_KERNEL(column_sum)
  ({.dtype = to_dtype(dy.scalar_type()),
    .rows = dy.size(0),
    .columns = dy.size(1),
    .stride = dy.stride(0),
    .dy = dy.const_data_ptr(),
    .db = db.mutable_data_ptr()});
}

at::Tensor embedding_forward(const at::Tensor& ids, const at::Tensor& table, int64_t start) {
  const int64_t t = ids.size(0), h = table.size(1), num_rows = table.size(0);
  at::Tensor y = at::empty({t, h}, table.options());
  const at::Tensor dense_ids = ids.contiguous();
  const auto* id = dense_ids.const_data_ptr<int64_t>();
  const auto row_bytes = static_cast<size_t>(h) * table.element_size();
  const int64_t stride_bytes = table.stride(0) * static_cast<int64_t>(table.element_size());
  const auto* from = static_cast<const char*>(table.const_data_ptr());
  auto* to = static_cast<char*>(y.mutable_data_ptr());
  at::parallel_for(0, t, 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = id[i] - start;
      char* out = to + static_cast<size_t>(i) * row_bytes;
      if (row >= 0 && row < num_rows)
        std::memcpy(out, from + row * stride_bytes, row_bytes);
      else
        std::memset(out, 0, row_bytes);
    }
  });
  return y;
}

void embedding_wgrad_(const at::Tensor& dw, const at::Tensor& ids, const at::Tensor& dy, int64_t start) {
  const at::Tensor dense_ids = ids.contiguous();
  const auto* id = dense_ids.const_data_ptr<int64_t>();
  // Tokens sorted by row, in token order within a row: one thread adds all of a row's, so results repeat.
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < ids.size(0); ++i) {
    if (id[i] >= start && id[i] - start < dw.size(0)) tokens.push_back(i);
  }
  std::stable_sort(tokens.begin(), tokens.end(), [&](int64_t a, int64_t b) { return id[a] < id[b]; });
  std::vector<int64_t> rows, starts;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int64_t row = id[tokens[i]] - start;
    if (!rows.empty() && rows.back() == row) continue;
    rows.push_back(row);
    starts.push_back(static_cast<int64_t>(i));
  }
  starts.push_back(static_cast<int64_t>(tokens.size()));
  MEGALITH_CPU_KERNEL(scatter_add)
  ({.dtype = to_dtype(dy.scalar_type()),
    .num_segments = static_cast<int64_t>(rows.size()),
    .columns = dy.size(1),
    .rows = rows.data(),
    .starts = starts.data(),
    .tokens = tokens.data(),
    .dy = dy.const_data_ptr(),
    .dy_stride = dy.stride(0),
    .dw = dw.mutable_data_ptr(),
    .dw_stride = dw.stride(0)});
}

at::Tensor meta_forward(const at::Tensor& x, const at::Tensor& w, const std::optional<at::Tensor>&) {
  return at::empty({x.size(0), w.size(0)}, x.options());
}

}  // namespace
}  // namespace megalith::ops::cpu

TORCH_LIBRARY_IMPL(megalith, CPU, m) {
  namespace cpu = megalith::ops::cpu;
  m.impl("linear", TORCH_FN(cpu::linear_forward));
  m.impl("linear_forward", TORCH_FN(cpu::linear_forward));
  m.impl("linear_dgrad", TORCH_FN(cpu::linear_dgrad));
  m.impl("linear_wgrad_", TORCH_FN(cpu::linear_wgrad_));
  m.impl("bias_grad_", TORCH_FN(cpu::bias_grad_));
  m.impl("embedding_forward", TORCH_FN(cpu::embedding_forward));
  m.impl("embedding_wgrad_", TORCH_FN(cpu::embedding_wgrad_));
}

TORCH_LIBRARY_IMPL(megalith, Meta, m) {
  using at::Tensor;
  m.impl("linear", TORCH_FN(megalith::ops::cpu::meta_forward));
  m.impl("linear_forward", TORCH_FN(megalith::ops::cpu::meta_forward));
  m.impl("linear_dgrad", [](const Tensor& dy, const Tensor& w) {
    return at::empty({dy.size(0), w.size(1)}, dy.options());
  });
  m.impl("linear_wgrad_", [](const Tensor&, const Tensor&, const Tensor&, bool) {});
  m.impl("bias_grad_", [](const Tensor&, const Tensor&) {});
  m.impl("embedding_forward", [](const Tensor& ids, const Tensor& table, int64_t) {
    return at::empty({ids.size(0), table.size(1)}, table.options());
  });
  m.impl("embedding_wgrad_", [](const Tensor&, const Tensor&, const Tensor&, int64_t) {});
}
