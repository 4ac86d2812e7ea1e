#include "ops/sinkhorn/sinkhorn.h"

#include <ATen/ATen.h>

#include "core/error.h"
#include "ops/arguments.h"
#include "ops/gpu/on_stream_of.h"
#include "ops/sinkhorn/kernel.h"

namespace megalith::ops {
namespace {

using at::Tensor;

Tensor empty_sinkhorn(const Tensor& x) { return at::empty(x.sizes(), x.options().dtype(at::kDouble)); }

// The reference is as fast: its products are LibTorch's, its end known at once.
constexpr SinkhornTable kSinkhornCpu{.sinkhorn = [](const Tensor& x) { return kSinkhornReference.sinkhorn(x); }};
constexpr SinkhornTable kSinkhornMeta{.sinkhorn = empty_sinkhorn};

#ifdef MEGALITH_GPU_KERNELS
Tensor sinkhorn_on_gpu(const Tensor& x) {
  if (x.size(1) > gpu::kMostSinkhornColumns) return kSinkhornReference.sinkhorn(x);
  const Tensor contiguous = x.contiguous(), y = empty_sinkhorn(x);
  const Tensor scratch = at::empty({gpu::sinkhorn_scratch(x.size(0), x.size(1))}, y.options());
  gpu::on_stream_of<&gpu::sinkhorn, gpu::SinkhornCall>({.dtype = to_dtype(x.scalar_type()),
                                                        .rows = x.size(0),
                                                        .columns = x.size(1),
                                                        .x = contiguous.const_data_ptr(),
                                                        .y = y.mutable_data_ptr<double>(),
                                                        .scratch = scratch.mutable_data_ptr<double>()},
                                                       x);
  return y;
}

constexpr SinkhornTable kSinkhornGpu{.sinkhorn = sinkhorn_on_gpu};
#endif

}  // namespace

constexpr Operator<SinkhornTable> kSinkhorn{.name = "sinkhorn",
                                            .reference = &kSinkhornReference,
                                            .cpu = &kSinkhornCpu,
                                            .meta = &kSinkhornMeta,
#ifdef MEGALITH_GPU_KERNELS
                                            .gpu = &kSinkhornGpu
#endif
};

Tensor sinkhorn(const Tensor& x, Kernels kernels) {
  check_rank("sinkhorn", {"x", x}, 2);
  if (x.scalar_type() != at::kDouble) check_dtype("sinkhorn", {"x", x}, at::kFloat);
  return kSinkhorn.run("sinkhorn", &SinkhornTable::sinkhorn, kernels, x);
}

}  // namespace megalith::ops
