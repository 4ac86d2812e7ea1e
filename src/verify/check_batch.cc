#include "verify/check_batch.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>
#include <string>

#include "core/philox.h"

namespace megalith {

Batch make_check_batch(const CheckBatchShape& shape, int step) {
  const int64_t b = shape.num_samples, s = shape.sequence;
  const at::Tensor all_tokens = at::empty({b, s}, at::kLong), all_labels = at::empty({b, s}, at::kLong);
  const at::Tensor all_weights = at::empty({b, s}, at::kFloat);
  const at::Tensor positions = at::arange(s, at::kLong).repeat({b, 1}), documents = at::zeros({b, s}, at::kInt);
  auto tokens = all_tokens.accessor<int64_t, 2>();
  auto labels = all_labels.accessor<int64_t, 2>();
  auto weights = all_weights.accessor<float, 2>();
  for (int64_t row = 0; row < b; ++row) {
    const int64_t cut = row % (s - 1) + 1;  // between the documents
    for (int64_t i = 0; i < s; ++i) {
      const bool is_silent = shape.silent && (i < cut) == (shape.silent->index == 0);
      const auto draw = [&](const std::string& what) {
        return uniform_at(make_philox_key(static_cast<uint64_t>(step), what), static_cast<uint64_t>(row * s + i));
      };
      const auto draw_id = [&](const std::string& what) {
        const double share = draw(is_silent ? fmt::format("{} {}", what, shape.silent->draw) : what);
        return static_cast<int64_t>(share * static_cast<double>(shape.vocab_size));
      };
      tokens[row][i] = draw_id("tokens");
      labels[row][i] = draw_id("labels");
      const double share = 0.2 + 0.8 * static_cast<double>(row) / static_cast<double>(b);  // of valid tokens
      const bool is_valid = draw("validity") < share && (row != 1 || b < 4);
      weights[row][i] = is_valid ? 0.25F * static_cast<float>(std::floor(4 * draw("weights")) + 1) : 0.0F;
    }
    documents[row].narrow(0, cut, s - cut).fill_(1);
    if (shape.restarts_positions) positions[row].narrow(0, cut, s - cut).sub_(cut);
  }
  weights[0][s - 1] = 0.75F;  // even with very few tokens
  Batch batch;
  batch.set(BatchField::of_tokens(field::kTokens, all_tokens));
  batch.set(BatchField::of_tokens(field::kLabels, all_labels));
  batch.set(BatchField::of_tokens(field::kLossWeights, all_weights));
  batch.set(BatchField::of_tokens(field::kPositionIds, positions));
  batch.set(BatchField::of_rows(field::kSampleIndex, at::arange(step * b, (step + 1) * b, at::kLong)));
  if (shape.has_documents) {
    BatchField field = BatchField::of_tokens(field::kDocumentIds, documents);
    field.keeps_whole = true;
    batch.set(std::move(field));
  }
  return batch;
}

void silence(Batch& rows, const SilentDocument& document) {
  rows.at(field::kLossWeights).masked_fill_(rows.at(field::kDocumentIds) == document.index, 0);
}

}  // namespace megalith
