#include "nn/attention_sinks.h"

#include <ATen/ATen.h>

namespace megalith {

namespace {
at::Tensor of_heads(const at::Tensor& sinks) { return sinks.view({1, -1, 1}); }
}  // namespace

std::pair<at::Tensor, at::Tensor> with_sinks(const at::Tensor& out, const at::Tensor& lse, const at::Tensor& sinks) {
  const at::Tensor whole = at::logaddexp(lse, of_heads(sinks));
  const at::Tensor share = (lse - whole).exp_().transpose(1, 2).unsqueeze(-1);  // of the keys: (b, s, n, 1)
  return {(out * share).to(out.scalar_type()), whole};
}

// A score's gradient is p (dp - dout . out); a sink's dp is 0, like its value.
at::Tensor sink_gradient(const at::Tensor& dout, const at::Tensor& out, const at::Tensor& lse,
                         const at::Tensor& sinks) {
  const auto wide = lse.scalar_type();
  const at::Tensor delta = (dout.to(wide) * out.to(wide)).sum(-1).transpose(1, 2);  // (b, n, s)
  return ((of_heads(sinks) - lse).exp_() * delta).sum(at::IntArrayRef({0, 2})).neg_();
}

}  // namespace megalith
