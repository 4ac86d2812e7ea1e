#include "nn/preference_loss.h"

#include <ATen/ATen.h>

#include "comm/group.h"

namespace megalith {

std::vector<std::string> preference_terms() {
  return {"dpo loss", "chosen reward", "rejected reward", "reward margin", "reward accuracy"};
}

PreferenceLoss preference_loss(const at::Tensor& token_losses, const at::Tensor& loss_weights,
                               const at::Tensor& documents, int64_t row_length, const PreferenceInput& input,
                               Group& cp) {
  const int64_t b = documents.size(0);
  const int64_t most_pairs = row_length / 2 + 1;  // documents have tokens; padding may be one more
  const at::Tensor place = documents.to(at::kLong), counts = loss_weights.to(token_losses.scalar_type());
  // Subtracted per token: both are close, their sums perhaps large.
  const at::Tensor difference = (token_losses + input.reference.to(token_losses.scalar_type())).neg() * counts;
  const at::Tensor sums = at::zeros({b, 2 * most_pairs}, token_losses.options()).scatter_add(1, place, difference);
  cp.all_reduce(sums, ReduceOp::kSum, "log-probabilities of answers").wait();
  const at::Tensor of_pairs = sums.view({b, most_pairs, 2}) * input.beta;
  const at::Tensor chosen = of_pairs.select(2, 0), rejected = of_pairs.select(2, 1), margin = chosen - rejected;
  const at::Tensor is_pair =
      (at::arange(most_pairs, place.options()).unsqueeze(0) < input.num_pairs.unsqueeze(1)).to(margin.scalar_type());

  PreferenceLoss result;
  // d loss / d (-log p): beta sigmoid(-margin) if chosen, minus that if rejected.
  const at::Tensor slope = at::sigmoid(-margin) * is_pair * input.beta;
  const at::Tensor of_documents = at::stack({slope, -slope}, 2).view({b, 2 * most_pairs});
  result.token_weights = of_documents.gather(1, place) * counts;

  const at::Tensor own = cp.is_first() ? is_pair : at::zeros_like(is_pair);
  const at::Tensor is_right = (margin > 0).to(margin.scalar_type());
  const at::Tensor values[] = {-at::log_sigmoid(margin), chosen, rejected, margin, is_right};
  for (const at::Tensor& value : values) {
    result.terms.push_back({.name = {}, .sum = (value * own).sum(), .weight = own.sum(), .objective = {}});
  }
  return result;
}

}  // namespace megalith
