// See task_options.h.
#include "tasks/task_options.h"

#include "models/model_bounds.h"

namespace megalith {

void TaskOptions::visit(OptionVisitor& v) {
  v.group("Task", {.in_toy = InToy::kMade});
  v.choice("task", task, {"causal_lm", "masked_lm", "bert", "t5"},
           "What the model learns. causal_lm: to predict the next token of a text. masked_lm: to predict masked tokens "
           "from both sides, as RoBERTa does; needs is_causal false. bert: Megatron-LM's BERT, which reads sentences, "
           "hides whole words, and says whether two segments are in order. t5: to write what is hidden of sentences; "
           "needs an encoder and a decoder.");
  v.field("mask_prob", mask_prob,
          "masked_lm, bert, t5: the share of tokens that are to be predicted. masked_lm and bert replace 80 % of them "
          "by the mask token and 10 % by a random one, and 10 % stay as they are; t5 replaces spans by sentinels.")
      .above(0)
      .at_most(1);
  v.field("mask_token_id", mask_token_id, "masked_lm: id of the mask token. Default: the tokenizer's.")
      .at_least(0)
      .at_most(kMostVocabulary);
  v.field("short_seq_prob", short_seq_prob, "bert, t5: the share of samples that are cut to a random shorter length.")
      .at_least(0)
      .at_most(1);
  v.field("decoder_seq_length", decoder_seq_length,
          "t5: tokens that the decoder reads and writes of a sample; seq_length is the encoder's.")
      .unit("tokens")
      .at_least(2)
      .at_most(INT32_MAX)
      .in_toy(InToy::kMade);
}

}  // namespace megalith
