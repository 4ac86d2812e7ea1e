#include "ops/merge_attention/merge_attention.h"

#include <ATen/ATen.h>

#include "core/error.h"
#include "ops/arguments.h"
#include "ops/gpu/on_stream_of.h"
#include "ops/merge_attention/kernel.h"

namespace megalith::ops {
namespace {

using at::Tensor;

constexpr MergeAttentionTable kMergeAttentionMeta{
    .merge_ = [](const Tensor&, const Tensor&, const Tensor&, const Tensor&) {}};
#ifdef MEGALITH_GPU_KERNELS
void merge_attention_on_gpu(const Tensor& out, const Tensor& lse, const Tensor& more_out, const Tensor& more_lse) {
  gpu::on_stream_of<&gpu::merge_attention>(
      MergeAttention{.dtype = to_dtype(more_out.scalar_type()),
                     .batch = out.size(0),
                     .tokens = out.size(1),
                     .heads = out.size(2),
                     .channels = out.size(3),
                     .out = out.mutable_data_ptr(),
                     .out_strides = {out.stride(0), out.stride(1), out.stride(2)},
                     .lse = lse.mutable_data_ptr(),
                     .lse_strides = {lse.stride(0), lse.stride(2), lse.stride(1)},
                     .more_out = more_out.const_data_ptr(),
                     .more_out_strides = {more_out.stride(0), more_out.stride(1), more_out.stride(2)},
                     .more_lse = more_lse.const_data_ptr(),
                     .more_lse_strides = {more_lse.stride(0), more_lse.stride(2), more_lse.stride(1)}},
      out);
}
constexpr MergeAttentionTable kMergeAttentionGpu{.merge_ = merge_attention_on_gpu};
#endif

void check_channels(const Argument& argument) {
  const Tensor& x = argument.tensor;
  check_rank("merge_attention_", argument, 4);
  if (x.stride(3) == 1 || x.size(3) <= 1 || x.numel() == 0) return;
  throw UserError(fmt::format("merge_attention_: the last dim of {} has stride {}, but must be contiguous",
                              argument.name, x.stride(3)),
                  "call contiguous() first");
}

}  // namespace

// On the CPU ATen takes no time beside attention.
constexpr Operator<MergeAttentionTable> kMergeAttention{.name = "merge_attention",
                                                        .reference = &kMergeAttentionReference,
                                                        .cpu = &kMergeAttentionReference,
                                                        .meta = &kMergeAttentionMeta,
#ifdef MEGALITH_GPU_KERNELS
                                                        .gpu = &kMergeAttentionGpu
#endif
};

void merge_attention_(const Tensor& out, const Tensor& lse, const Tensor& more_out, const Tensor& more_lse,
                      Kernels kernels) {
  constexpr const char* kOp = "merge_attention_";
  check_floating(kOp, {"more_out", more_out});
  check_channels({"more_out", more_out});
  const at::ScalarType wide = wide_dtype(more_out.scalar_type());
  check_channels({"out", out});
  check_shape(kOp, {"out", out}, more_out.sizes());
  for (const Argument& lse_argument : {Argument{"lse", lse}, Argument{"more_lse", more_lse}}) {
    check_shape(kOp, lse_argument, {out.size(0), out.size(2), out.size(1)});
    check_dtype(kOp, lse_argument, wide);
  }
  check_dtype(kOp, {"out", out}, wide);
  check_devices(kOp, {{"out", out}, {"lse", lse}, {"more_out", more_out}, {"more_lse", more_lse}});
  kMergeAttention.run(kOp, &MergeAttentionTable::merge_, kernels, out, lse, more_out, more_lse);
}

}  // namespace megalith::ops
