// Instruction tuning: the next token of a conversation, where it is one of an answer. The rows are data/sft_rows.h's,
// what counts is data/sft_encoder.h's, and the sequences are data/sft_batches.h's.
#pragma once

#include "tasks/causal_lm.h"

namespace megalith {

class Sft : public CausalLm {
 public:
  std::string_view name() const override { return "sft"; }
  DataSets open_data(const DataOptions& options, const DataSetup& setup, Logger& log) const override;
};

}  // namespace megalith
