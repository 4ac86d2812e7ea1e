// LibTorch would round the bf16 weight gradient before it is summed, and takes twice as long on AMX: ours serves if the
// processor multiplies bf16.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>

#include "core/error.h"
#include "ops/cpu/block_products.h"
#include "ops/linear/kernel.h"
#include "ops/linear/products.h"

namespace megalith::ops::cpu {
namespace {

using WgradKernel = void(const WgradCall&, std::atomic<int64_t>*);

void run_tasks(WgradKernel* kernel, const WgradCall& call, int64_t num_tasks) {
  std::atomic<int64_t> next{0};
  const int64_t threads = std::min<int64_t>(num_tasks, at::get_num_threads());
  at::parallel_for(0, threads, 1, [&](int64_t, int64_t) { kernel(call, &next); });
}

// Minimises the busiest thread's work.
void choose_blocks(WgradCall& call) {
  const int64_t threads = at::get_num_threads();
  double best = 0;
  for (int64_t rows = 256; rows >= 32; rows -= 32) {
    for (int64_t cuts = 1; cuts <= std::min<int64_t>(call.num_panels(), 8); cuts *= 2) {
      WgradCall trial = call;
      trial.block_rows = rows;
      trial.block_panels = div_up(call.num_panels(), cuts);
      const int64_t rounds = div_up(trial.num_row_blocks() * trial.num_panel_blocks(), threads);
      // Adds reading the panels (as 16 rows) and transposing dy (as 1 panel).
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
  } else if (dy.scalar_type() == at::kFloat && takes_float_product(dw, dy.size(0))) {
    FloatProduct product = float_product(dw, dy, /*a_is_transposed=*/true, x, /*b_is_transposed=*/false);
    product.accumulate = accumulate;
    run_float_products({product});
  } else if (dy.scalar_type() == dw.scalar_type()) {
    at::Tensor sum = dw;
    at::addmm_out(sum, dw, dy.t(), x, /*beta=*/accumulate ? 1 : 0);
  } else if (dy.scalar_type() == at::kBFloat16 && has_bf16_blocks()) {
    tile_wgrad(dw, dy, x, accumulate);
  } else {
    widened_wgrad(dw, dy, x, accumulate);
  }
}

}  // namespace megalith::ops::cpu
