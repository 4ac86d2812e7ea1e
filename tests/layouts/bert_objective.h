// What the layouts of a BERT are trained to do: masked tokens as task masked_lm draws them, two segments a row, and a
// label of its sentences, which a third of the rows lack.
#pragma once

#include <string>
#include <vector>

#include "kinds/encoder/masked_lm.h"

namespace megalith::test {

class BertObjective : public MaskedLm {
 public:
  using MaskedLm::MaskedLm;

  void draw(Batch& rows) const override {
    MaskedLm::draw(rows);
    const at::Tensor index = rows.at(field::kSampleIndex), length = rows.at(field::kKeyLengths);
    const int64_t s = rows.length(field::kTokens);
    // The second segment begins in another place of each row, and the padding is of the first again.
    const at::Tensor place = at::arange(s, at::kLong).unsqueeze(0);
    const at::Tensor is_second =
        place.ge(1 + index.remainder(3).unsqueeze(1)).logical_and(place.lt(length.unsqueeze(1)));
    rows.set(BatchField::of_tokens(kTokenTypes, is_second.to(at::kLong)));
    rows.set(BatchField::of_rows(kSentenceLabels, index.remainder(3) - 1));
  }
  std::vector<std::string> loss_names() const override { return {"lm loss", "sop loss"}; }
  std::vector<std::string> measured_names() const override { return {"sop accuracy"}; }
  // A sequence counts once: on the rank that holds its beginning.
  std::vector<double> count_weights(const Batch& part) const override {
    std::vector<double> weights = MaskedLm::count_weights(part);
    const bool is_here = part.row_index(field::kTokens)[0].item<int64_t>() == 0;
    weights.push_back(is_here ? part.at(kSentenceLabels).ge(0).sum().item<double>() : 0);
    return weights;
  }
  ModelInput make_input(const Batch& part, at::Device device, std::span<const Unit> units) const override {
    ModelInput input = MaskedLm::make_input(part, device, units);
    if (count_units(units, UnitLetter::kEmbedding) > 0) {
      input.more.set(std::string(kTokenTypes), part.at(kTokenTypes).to(device));
    }
    if (count_units(units, UnitLetter::kHead) > 0) {
      input.more.set(std::string(kSentenceLabels), part.at(kSentenceLabels).to(device));
    }
    return input;
  }

 private:
  static constexpr std::string_view kTokenTypes = "token_types", kSentenceLabels = "sentence_labels";
};

}  // namespace megalith::test
