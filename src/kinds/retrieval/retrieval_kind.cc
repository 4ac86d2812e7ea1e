// See retrieval_kind.h.
#include "kinds/retrieval/retrieval_kind.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "core/number_of.h"
#include "kinds/retrieval/bert_weights.h"
#include "models/biencoder.h"
#include "train/activation_report.h"

namespace megalith {

// Questions are as long as texts.
void RetrievalKind::complete_shapes(ModelInput& input, const Resolved& run, int64_t /*encoder_s*/) const {
  add_shapes(input, run.config.model, kQueryInputs);
  input.context.mask.key_lengths = input.more.at(input::kQueryKeyLengths.name);
}

void RetrievalKind::check_layout(const Config& config, std::vector<UserError>& errors) const {
  const std::vector<UserError> found = check_biencoder_ranks({.tp = config.parallel.tensor_model_parallel_size,
                                                              .cp = config.parallel.context_parallel_size,
                                                              .pp = config.parallel.pipeline_model_parallel_size});
  errors.insert(errors.end(), found.begin(), found.end());
}

std::vector<UserError> RetrievalKind::check_weights(const Resolved& run) const { return check_bert_load(run); }

bool RetrievalKind::load_first_weights(const Resolved& run, std::span<const CheckpointTensor> tensors,
                                       const Groups& groups, Logger& log) const {
  const CheckpointOptions& options = run.derived.checkpoint;
  if (!options.bert_load) return false;
  load_bert(*options.bert_load, tensors, groups, log, options.nonfinite_weights());
  return true;
}

std::vector<std::pair<std::string, std::string>> RetrievalKind::report_rows(const Resolved& run) const {
  return {{"retrieval",
           fmt::format("a set is {}: a microbatch of all data-parallel ranks",
                       number_of(run.derived.micro_batch_size * run.derived.data_parallel_size, "sample", "samples"))}};
}

}  // namespace megalith
