// AdamW in one pass: every state is read and written once, so the step runs at the speed of memory.
#include <ATen/Parallel.h>

#include <cmath>

#include "ops/adamw/kernel.h"
#include "ops/cpu/lanes.h"

namespace megalith::ops::cpu::CPU_CAPABILITY {
namespace {

template <typename Model, typename Moment>
void update(const AdamwPiece& piece, const AdamwStep& step) {
  using W = Wide<Moment>;  // of master and grad
  using L = Lanes<Moment>;
  auto* model = static_cast<Model*>(piece.model);
  auto* master = static_cast<W*>(piece.master);
  const auto* grad = static_cast<const W*>(piece.grad);
  auto* exp_avg = static_cast<Moment*>(piece.exp_avg);
  auto* exp_avg_sq = static_cast<Moment*>(piece.exp_avg_sq);
  // Scalars are made in double and rounded once, as torch's are.
  const L grad_scale(static_cast<W>(step.grad_scale)), decay(static_cast<W>(1 - piece.lr * piece.weight_decay));
  const L new1(static_cast<W>(1 - step.beta1)), old2(static_cast<W>(step.beta2)), new2(static_cast<W>(1 - step.beta2));
  const L root2(static_cast<W>(std::sqrt(step.correction2))), eps(static_cast<W>(step.eps));
  const L step_size(static_cast<W>(-piece.lr / step.correction1));
  for_each_lanes<W>(piece.count, [&](int64_t i, auto count) {
    const L g = load(grad + i, count) * grad_scale;
    L m = load(exp_avg + i, count), v = load(exp_avg_sq + i, count);
    m = at::vec::fmadd(g - m, new1, m);
    v = at::vec::fmadd(v, old2, g * g * new2);
    const L w = at::vec::fmadd(step_size, m / (v.sqrt() / root2 + eps), load(master + i, count) * decay);
    store(exp_avg + i, m, count);
    store(exp_avg_sq + i, v, count);
    store(master + i, w, count);
    if (model != nullptr) store(model + i, w, count);
  });
}

}  // namespace

void adamw(const AdamwPiece* pieces, int64_t num_pieces, const AdamwStep& step) {
  at::parallel_for(0, num_pieces, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const AdamwPiece& piece = pieces[i];
      if (piece.is_double) {
        update<double, double>(piece, step);
        continue;
      }
      const bool has_narrow_moments = piece.moment_dtype == Dtype::kBFloat16;
      switch (piece.model_dtype) {
        case Dtype::kBFloat16:
          has_narrow_moments ? update<c10::BFloat16, c10::BFloat16>(piece, step)
                             : update<c10::BFloat16, float>(piece, step);
          break;
        case Dtype::kFloat16:
          has_narrow_moments ? update<c10::Half, c10::BFloat16>(piece, step) : update<c10::Half, float>(piece, step);
          break;
        default:
          has_narrow_moments ? update<float, c10::BFloat16>(piece, step) : update<float, float>(piece, step);
      }
    }
  });
}

}  // namespace megalith::ops::cpu::CPU_CAPABILITY
