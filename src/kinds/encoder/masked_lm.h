// Masked language modelling: predicts masked tokens from both sides.
//
// A token is chosen with probability mask_prob. 80 % of the chosen ones become the mask token, 10 % a random token of
// the vocabulary, 10 % stay; the loss counts exactly the chosen tokens. Tokens that end documents or begin texts,
// separators and padding are never chosen. The choice depends on the row's position in the run, so another epoch masks
// other tokens ("dynamic masking").
// Source: Devlin et al. 2019, arXiv:1810.04805, §3.1; Liu et al. 2019, arXiv:1907.11692, §4.1.
#pragma once

#include "kinds/task_setup.h"
#include "kinds/text/text_task.h"

namespace megalith {

class MaskedLm : public TextTask {
 public:
  // UserError if there is no mask token, or it is outside the vocabulary.
  MaskedLm(const TaskOptions& options, const TaskSetup& setup);

  std::string_view name() const override { return "masked_lm"; }
  std::vector<UserError> check(const ModelConfig& model, const DataOptions& data) const override;
  // Sets tokens, labels and loss_weights of rows whose labels are the next tokens; adds key_lengths, because a token
  // would attend to the padding after it.
  void draw(Batch& rows) const override;

 private:
  double mask_prob_;
  int64_t mask_token_, vocab_size_;
  std::vector<int64_t> never_chosen_;
  uint64_t key_;
};

}  // namespace megalith
