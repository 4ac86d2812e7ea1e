// The reference model's probabilities for pairs of answers (dpo.h). The reference is the initial model: computed ahead
// and stored with the tokens (sft_reference.h), or in each step by the model without its adapters.
#pragma once

#include <string>
#include <vector>

#include "comm/groups.h"
#include "core/log.h"
#include "data/data_sets.h"
#include "kinds/text/sft_set.h"
#include "parallel/data_parallel.h"
#include "train/config.h"
#include "train/kind.h"
#include "train/pipelined_model.h"

namespace megalith {

// UserErrors for unsupported reference options.
std::vector<UserError> check_dpo(const Config& config);

class DpoReferences final : public References {
 public:
  // All must outlive it.
  DpoReferences(const Resolved& resolved, const RunModel& run, Logger& log)
      : resolved_(resolved), model_(run.model), data_(run.data), groups_(run.groups), device_(run.device), log_(log) {}

  // dpo_reference ahead: attaches the reference's results to the sources of pairs; if no file has them, all ranks
  // compute and write them. is_at_start: the weights are the initial ones; otherwise UserError unless adapters can be
  // disabled.
  void attach(DataSets& data, bool is_at_start) override;

  // To this rank's microbatches of a global batch: with dpo_reference on_the_fly reference_log_probs; with loss kto the
  // KL estimate.
  void add_to(std::vector<Batch>& batches) override;

 private:
  std::string identity() const;
  // -log p of the counted labels, (b, s) on the CPU per batch, by the model as it is.
  std::vector<at::Tensor> token_losses(const std::vector<Batch>& batches);
  void add_reference(std::vector<Batch>& batches);
  void add_kl(std::vector<Batch>& batches);
  void compute(const std::shared_ptr<const SftSet>& set, const std::string& prefix);

  const Resolved& resolved_;
  PipelinedModel& model_;
  DataParallel& data_;
  const Groups& groups_;
  at::Device device_;
  Logger& log_;
};

}  // namespace megalith
