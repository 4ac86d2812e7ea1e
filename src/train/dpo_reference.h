// What the reference model of direct preference optimization says of pairs of answers (tasks/dpo.h). The reference is
// the model that training begins with: computed ahead and kept beside the tokens (data/sft_reference.h), or in each
// step by the model without its adapters.
#pragma once

#include <string>
#include <vector>

#include "comm/groups.h"
#include "core/log.h"
#include "data/data_sets.h"
#include "data/sft_set.h"
#include "parallel/data_parallel.h"
#include "train/config.h"
#include "train/pipelined_model.h"

namespace megalith {

// UserErrors for options of the reference that the run cannot follow.
std::vector<UserError> check_dpo(const Config& config);

class DpoReferences {
 public:
  // All outlive it.
  DpoReferences(const Resolved& resolved, PipelinedModel& model, DataParallel& data, const Groups& groups,
                at::Device device, Logger& log);

  // dpo_reference ahead: gives the sources of pairs what the reference says. Where no file holds it, all ranks compute
  // it together and write it. is_at_start: the weights are those that training begins with. UserError where they are
  // not, and neither are there adapters that can be left out.
  void attach(DataSets& data, bool is_at_start);

  // dpo_reference on_the_fly: adds reference_log_probs to this rank's microbatches. Nothing otherwise.
  void add_to(std::vector<Batch>& batches);

 private:
  std::string identity() const;
  // -log p of the labels that count, (b, s) on the CPU for each batch; by the model without adapters.
  std::vector<at::Tensor> token_losses(const std::vector<Batch>& batches);
  void compute(const std::shared_ptr<const SftSet>& set, const std::string& prefix);

  const Resolved& resolved_;
  PipelinedModel& model_;
  DataParallel& data_;
  const Groups& groups_;
  at::Device device_;
  Logger& log_;
};

}  // namespace megalith
