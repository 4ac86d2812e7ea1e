// See task_options.h.
#include "tasks/task_options.h"

#include "models/model_bounds.h"

namespace megalith {

void TaskOptions::visit(OptionVisitor& v) {
  v.group("Task", {.in_toy = InToy::kMade});
  v.choice("task", task, {"causal_lm", "masked_lm"},
           "What the model learns. causal_lm: to predict the next token of a text. masked_lm: to predict masked tokens "
           "from both sides, as BERT and RoBERTa do; needs is_causal false.");
  v.field("mask_prob", mask_prob,
          "masked_lm: the probability that a token is to be predicted. 80 % of these tokens are replaced by the mask "
          "token, 10 % by a random one, and 10 % stay as they are.")
      .above(0)
      .at_most(1);
  v.field("mask_token_id", mask_token_id, "masked_lm: id of the mask token. Default: the tokenizer's.")
      .at_least(0)
      .at_most(kMostVocabulary);
}

}  // namespace megalith
