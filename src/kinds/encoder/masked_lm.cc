#include "kinds/encoder/masked_lm.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "core/philox.h"

namespace megalith {
namespace {

constexpr double kMaskedShare = 0.8, kRandomShare = 0.1;  // of the chosen tokens

int64_t mask_token_of(const TaskOptions& options, const TaskSetup& setup) {
  const std::optional<int64_t> of_tokenizer = setup.special_ids.mask;
  if (!options.mask_token_id && !of_tokenizer) {
    throw UserError("task masked_lm needs a mask token, and the tokenizer has none",
                    "name its id with --mask_token_id: one that no text holds, below vocab_size");
  }
  const int64_t token = options.mask_token_id.value_or(of_tokenizer.value_or(0));
  if (token >= setup.vocab_size) {
    throw UserError(fmt::format("mask_token_id is {}, but vocab_size is {}", token, setup.vocab_size),
                    "token ids are below vocab_size: raise vocab_size, or give another id");
  }
  return token;
}

}  // namespace

MaskedLm::MaskedLm(const TaskOptions& options, const TaskSetup& setup)
    : mask_prob_(options.mask_prob),
      mask_token_(mask_token_of(options, setup)),
      vocab_size_(setup.vocab_size),
      key_(make_philox_key(setup.seed, "masked_lm")) {
  const SpecialIds& ids = setup.special_ids;
  for (const std::optional<int32_t>& id : {ids.eod, ids.bos, ids.cls, ids.sep}) {
    if (id) never_chosen_.push_back(*id);
  }
}

std::vector<UserError> MaskedLm::check(const ModelConfig& model, const DataOptions& data) const {
  std::vector<UserError> errors;
  if (model.is_causal()) {
    errors.emplace_back("task masked_lm needs attention to both sides, and is_causal is true",
                        "set is_causal to false");
  }
  if (data.eod_mask_loss) {
    errors.emplace_back("eod_mask_loss is for task causal_lm: masked_lm never masks the end of a document",
                        "leave eod_mask_loss out");
  }
  return errors;
}

void MaskedLm::draw(Batch& rows) const {
  const int64_t b = rows.num_rows(), s = rows.length(field::kTokens);
  const at::Tensor originals = rows.at(field::kTokens).contiguous(), tokens = originals.clone();
  const at::Tensor next_weights = rows.at(field::kLossWeights).contiguous(), weights = at::zeros({b, s}, at::kFloat);
  const at::Tensor order = rows.at(field::kSampleIndex).contiguous(), lengths = at::zeros({b}, at::kLong);
  const auto original = originals.accessor<int64_t, 2>();
  const auto next_weight = next_weights.accessor<float, 2>();
  auto token = tokens.accessor<int64_t, 2>();
  auto weight = weights.accessor<float, 2>();
  for (int64_t row = 0; row < b; ++row) {
    const auto stream = static_cast<uint64_t>(order.const_data_ptr<int64_t>()[row]);
    int64_t length = 1;
    for (int64_t i = 0; i < s; ++i) {
      // If this token is padding, the loss weight of the token before it is 0.
      if (i > 0 && next_weight[row][i - 1] == 0) continue;
      length = i + 1;
      if (std::ranges::find(never_chosen_, original[row][i]) != never_chosen_.end()) continue;
      const PhiloxBlock words = philox(key_, {static_cast<uint64_t>(i), stream});
      if (uniform_from_word(words[0]) >= mask_prob_) continue;
      weight[row][i] = 1;
      const double kind = uniform_from_word(words[1]);
      if (kind < kMaskedShare) {
        token[row][i] = mask_token_;
      } else if (kind < kMaskedShare + kRandomShare) {
        token[row][i] = static_cast<int64_t>(uniform_from_word(words[2]) * static_cast<double>(vocab_size_));
      }
    }
    lengths.mutable_data_ptr<int64_t>()[row] = length;
  }
  rows.set(field::kTokens, tokens);
  rows.set(field::kLabels, originals);
  rows.set(field::kLossWeights, weights);
  rows.set(BatchField::of_rows(field::kKeyLengths, lengths));
}

}  // namespace megalith
