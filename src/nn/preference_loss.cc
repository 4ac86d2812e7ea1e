#include "nn/preference_loss.h"

#include <ATen/ATen.h>

#include "comm/group.h"

namespace megalith {

std::vector<std::string> preference_terms() {
  return {"dpo loss", "chosen reward", "rejected reward", "reward margin", "reward accuracy"};
}

std::vector<std::string> rating_terms() { return {"kto loss", "chosen reward", "rejected reward", "kl"}; }

namespace {

// Per pair, (b, pairs): d loss / d (-log p) of its two documents, and a term's value and weight.
struct OfPairs {
  at::Tensor first_slope, second_slope;
  std::vector<std::pair<at::Tensor, at::Tensor>> terms;
};

// d loss / d (-log p): beta sigmoid(-margin) if chosen, minus that if rejected.
OfPairs choices(const at::Tensor& chosen, const at::Tensor& rejected, const at::Tensor& is_pair, double beta) {
  const at::Tensor margin = chosen - rejected, slope = at::sigmoid(-margin) * is_pair * beta;
  const at::Tensor is_right = (margin > 0).to(margin.scalar_type());
  return {slope,
          -slope,
          {{-at::log_sigmoid(margin), is_pair},
           {chosen, is_pair},
           {rejected, is_pair},
           {margin, is_pair},
           {is_right, is_pair}}};
}

OfPairs ratings_of(const at::Tensor& reward, const at::Tensor& is_pair, double beta, const AnswerRatings& ratings) {
  const at::Tensor signs = ratings.signs.to(reward.scalar_type()) * is_pair;
  const at::Tensor kl = ratings.kl.to(reward.scalar_type()).unsqueeze(1).expand_as(reward);
  const at::Tensor is_good = signs.clamp_min(0), is_bad = (-signs).clamp_min(0);
  const at::Tensor weight = is_good * ratings.weight_of_good + is_bad * ratings.weight_of_bad;
  const at::Tensor value = at::sigmoid(signs * (reward - kl * beta));
  const at::Tensor slope = weight * signs * value * (1 - value) * beta;
  return {slope,
          at::zeros_like(slope),
          {{weight * (1 - value), is_pair}, {reward, is_good}, {reward, is_bad}, {kl, is_pair}}};
}

}  // namespace

PreferenceLoss preference_loss(const at::Tensor& token_losses, const at::Tensor& loss_weights,
                               const at::Tensor& documents, int64_t row_length, const PreferenceInput& input,
                               Group& cp) {
  const int64_t b = documents.size(0), most = most_pairs(row_length);
  const at::Tensor place = documents.to(at::kLong), counts = loss_weights.to(token_losses.scalar_type());
  // Subtracted per token: both are close, their sums perhaps large.
  const at::Tensor difference = (token_losses + input.reference.to(token_losses.scalar_type())).neg() * counts;
  const at::Tensor sums = at::zeros({b, 2 * most}, token_losses.options()).scatter_add(1, place, difference);
  cp.all_reduce(sums, ReduceOp::kSum, "log-probabilities of answers").wait();
  const at::Tensor rewards = sums.view({b, most, 2}) * input.beta;
  const at::Tensor first = rewards.select(2, 0), second = rewards.select(2, 1);
  const at::Tensor is_pair =
      (at::arange(most, place.options()).unsqueeze(0) < input.num_pairs.unsqueeze(1)).to(first.scalar_type());
  const OfPairs pairs = input.ratings ? ratings_of(first, is_pair, input.beta, *input.ratings)
                                      : choices(first, second, is_pair, input.beta);

  PreferenceLoss result;
  const at::Tensor of_documents = at::stack({pairs.first_slope, pairs.second_slope}, 2).view({b, 2 * most});
  result.token_weights = of_documents.gather(1, place) * counts;

  for (const auto& [value, weight] : pairs.terms) {
    const at::Tensor own = cp.is_first() ? weight : at::zeros_like(weight);
    if (result.terms.empty()) {
      result.row_sums = (value * own).sum(1);
      result.row_weights = own.sum(1);
    }
    result.terms.push_back({.name = {}, .sum = (value * own).sum(), .weight = own.sum(), .objective = {}});
  }
  return result;
}

}  // namespace megalith
