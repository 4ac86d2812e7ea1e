// See lm_output.h.
#include "models/lm_output.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <utility>

namespace megalith {

ModelOutput lm_output(LmHead& lm_head, const at::Tensor& hidden, const ModelInput& input, HeadOutput head) {
  const at::Tensor x = lm_head.widened(hidden, input.context.dropout_rows());
  const int64_t b = input.context.b, s = input.context.s;
  ModelOutput output;
  switch (head) {
    case HeadOutput::kLoss: {
      LmHead::Loss loss =
          lm_head.loss(x, input.labels.reshape({-1}), input.loss_weights.reshape({-1}), input.scales(0));
      loss.term.name = input.terms.at(0).name;
      output.token_losses = loss.token_losses.view({b, s});
      output.terms.push_back(std::move(loss.term));
      break;
    }
    case HeadOutput::kTokenLosses: {
      const at::NoGradGuard no_grad;
      const at::Tensor weights =
          input.loss_weights.defined() ? input.loss_weights : at::ones({b, s}, x.options().dtype(at::kFloat));
      output.token_losses =
          lm_head.loss(x, input.labels.reshape({-1}), weights.reshape({-1}), {}).token_losses.view({b, s});
      break;
    }
    case HeadOutput::kLogits:
      output.logits = lm_head.logits(x).view({b, s, -1});
      break;
    case HeadOutput::kLastLogits:
      output.logits = lm_head.logits(x, at::arange(s - 1, b * s, s, x.options().dtype(at::kLong))).view({b, 1, -1});
      break;
  }
  return output;
}

}  // namespace megalith
