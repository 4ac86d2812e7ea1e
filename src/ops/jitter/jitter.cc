#include "ops/jitter/jitter.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>

#include "core/error.h"
#include "core/philox.h"
#include "ops/arguments.h"
#include "ops/gpu/on_stream_of.h"
#include "ops/jitter/kernel.h"

namespace megalith::ops {
namespace {

using at::Tensor;

Tensor empty_jitter(const Tensor& x, const Tensor& /*row_ids*/, double /*eps*/, uint64_t /*key*/) {
  return at::empty(x.sizes(), x.options());
}

template <typename T>
Tensor draw_noise(const Tensor& row_ids, int64_t columns, double eps, uint64_t key) {
  const Tensor noise = at::empty({row_ids.size(0), columns}, c10::CppTypeToScalarType<T>::value);
  const int64_t* id = row_ids.const_data_ptr<int64_t>();
  T* out = noise.mutable_data_ptr<T>();
  at::parallel_for(0, row_ids.size(0), 1 + 4096 / (columns + 1), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t column = 0; column < columns; column += 4) {
        const PhiloxBlock words = philox(key, {static_cast<uint64_t>(column / 4), static_cast<uint64_t>(id[row])});
        const int64_t lanes = std::min<int64_t>(columns - column, 4);
        for (int64_t lane = 0; lane < lanes; ++lane) {
          const double u = uniform_from_word(words[static_cast<size_t>(lane)]);
          out[row * columns + column + lane] = static_cast<T>(1 - eps + 2 * eps * u);
        }
      }
    }
  });
  return noise;
}

Tensor jitter_on_cpu(const Tensor& x, const Tensor& row_ids, double eps, uint64_t key) {
  const auto draw = x.scalar_type() == at::kDouble ? draw_noise<double> : draw_noise<float>;
  return x * draw(row_ids, x.size(1), eps, key).to(x.scalar_type());
}

constexpr JitterTable kJitterCpu{.jitter = jitter_on_cpu};
constexpr JitterTable kJitterMeta{.jitter = empty_jitter};

#ifdef MEGALITH_GPU_KERNELS
Tensor jitter_on_gpu(const Tensor& x, const Tensor& row_ids, double eps, uint64_t key) {
  const Tensor contiguous = x.contiguous();
  Tensor y = empty_jitter(x, row_ids, eps, key);
  gpu::on_stream_of<&gpu::jitter, gpu::JitterCall>({.dtype = to_dtype(x.scalar_type()),
                                                    .rows = x.size(0),
                                                    .columns = x.size(1),
                                                    .x = contiguous.const_data_ptr(),
                                                    .row_ids = row_ids.const_data_ptr<int64_t>(),
                                                    .eps = eps,
                                                    .key = key,
                                                    .y = y.mutable_data_ptr()},
                                                   x);
  return y;
}

constexpr JitterTable kJitterGpu{.jitter = jitter_on_gpu};
#endif

}  // namespace

constexpr Operator<JitterTable> kJitter{.name = "jitter",
                                        .reference = &kJitterReference,
                                        .cpu = &kJitterCpu,
                                        .meta = &kJitterMeta,
#ifdef MEGALITH_GPU_KERNELS
                                        .gpu = &kJitterGpu
#endif
};

Tensor jitter(const Tensor& x, const Tensor& row_ids, double eps, uint64_t key, Kernels kernels) {
  check_floating("jitter", {"x", x});
  check_rank("jitter", {"x", x}, 2);
  check_dense("jitter", {"row_ids", row_ids}, {x.size(0)}, at::kLong, {"x", x});
  if (!(eps >= 0 && eps < 1)) throw UserError(fmt::format("jitter: eps is {}, but must be in [0, 1)", eps));
  return kJitter.run("jitter", &JitterTable::jitter, kernels, x, row_ids, eps, key);
}

}  // namespace megalith::ops
