#include "train/eras.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "checkpoint/resume.h"

namespace megalith {

Axis replica_axis(const DataParallelOptions& options) {
  return options.use_distributed_optimizer || options.use_torch_fsdp2 ? Axis::kDpReplicate : Axis::kDp;
}

namespace {

using Refuse = std::function<void(bool is_on, const std::string& what, const std::string& remedy)>;

void check_replicas_are_whole(const Config& config, const Derived& derived, const Refuse& refuse) {
  const DataParallelOptions& data_parallel = derived.data_parallel;
  const ParallelOptions& parallel = config.parallel;
  if (replica_axis(data_parallel) == Axis::kDp) {
    refuse(derived.data_parallel_size < 2, fmt::format(" needs two data-parallel replicas, and there is one of {} ranks",
                                                       derived.world_size),
           "start more ranks, or make the model-parallel sizes smaller");
  } else {
    refuse(parallel.num_distributed_optimizer_instances < 2,
           fmt::format(" needs replicas that each hold the whole optimizer state, and {} divides it over all "
                       "data-parallel ranks",
                       data_parallel.use_torch_fsdp2 ? "use_torch_fsdp2" : "use_distributed_optimizer"),
           "add --num_distributed_optimizer_instances 2 or more, or leave it out");
  }
  refuse(parallel.expert_model_parallel_size > 1,
         fmt::format(" and expert_model_parallel_size {}: experts are divided over data-parallel ranks, so no replica "
                     "is whole",
                     parallel.expert_model_parallel_size),
         "take --expert_model_parallel_size 1");
  refuse(parallel.expert_tensor_parallel_size.value_or(parallel.tensor_model_parallel_size) !=
             parallel.tensor_model_parallel_size,
         " and an expert_tensor_parallel_size of its own: an expert's replicas are not those of the other layers",
         "leave --expert_tensor_parallel_size out");
  refuse(config.model.balances_over_step(),
         " and moe_router_load_balancing_type global_aux_loss, whose counts of a step would be those of ranks that left",
         "take --moe_router_load_balancing_type aux_loss");
  const OptimizerKind optimizer = config.optimizer.optimizer;
  refuse(optimizer == OptimizerKind::kMuon || optimizer == OptimizerKind::kAdafactor,
         fmt::format(" and optimizer {}: its update exchanges matrices between ranks, and a rank lost meanwhile leaves "
                     "them half-moved",
                     optimizer == OptimizerKind::kMuon ? "muon" : "adafactor"),
         "take --optimizer adam");
}

}  // namespace

std::vector<UserError> check_fault_tolerance(const Config& config, const Derived& derived) {
  std::vector<UserError> errors;
  const FaultOptions& faults = config.train.faults;
  if (faults.fault_tolerance == FaultTolerance::kNone || faults.is_later_era) return errors;
  const std::string word = faults.restarts() ? "fault_tolerance restart" : "fault_tolerance replicas";
  const auto refuse = [&](bool is_on, const std::string& what, const std::string& remedy) {
    if (is_on) errors.emplace_back(word + what, remedy);
  };
  const CheckpointOptions& checkpoint = config.checkpoint;
  const bool goes_on = loads_where_it_saves(checkpoint) || checkpoint.auto_continue_train || checkpoint.overwrite ||
                       config.log.output_dir;
  refuse(checkpoint.save && !goes_on,
         " and --save without --load of the same folder: a replacement is the same command, which would find another "
         "run's checkpoints there",
         fmt::format("add --load {}", checkpoint.save.value_or("")));
  refuse(faults.restarts() && derived.world_size < 2, " needs another rank, whose memory has what this one holds",
         "start more ranks, or leave it out");
  if (!faults.restarts()) check_replicas_are_whole(config, derived, refuse);
  refuse(config.lora.enabled, " and adapters: the model under them is read again from its folder, not from a rank",
         "leave one of them out");
  refuse(config.data.sft.has_pairs(), " and pairs of answers, whose reference is of the run's beginning",
         "leave one of them out");
  refuse(faults.loss_spike_action == LossSpikeAction::kRollback, " and loss_spike_action rollback",
         "take --loss_spike_action skip");
  refuse(faults.check_determinism > 0, " and check_determinism, which ends the run where a rank is at fault",
         "leave one of them out");
  refuse(config.train.rate_finder.find_lr, " and find_lr, whose curve is kept in memory only",
         "leave one of them out");
  refuse(config.runtime.graphs.is_on(), " and cuda_graphs, which would be captured with connections that end",
         "leave --cuda_graphs out");
  return errors;
}

std::vector<int> whole_replicas(const Mesh& mesh, Axis axis, const std::vector<int>& here) {
  std::vector<int> num_here(static_cast<size_t>(mesh.size(axis)));
  for (const int rank : here) ++num_here[static_cast<size_t>(mesh.coordinate(axis, rank))];
  std::vector<int> whole;
  for (const int rank : here) {
    if (num_here[static_cast<size_t>(mesh.coordinate(axis, rank))] == mesh.world_size() / mesh.size(axis)) {
      whole.push_back(rank);
    }
  }
  return whole;
}

void adjust_to_era(Config& config, const Resolved& first, int64_t num_ranks) {
  config.train.faults.is_later_era = true;
  const Derived& d = first.derived;
  config.checkpoint.overwrite = false;  // what is there is this run's
  // Its default may follow from the ranks.
  config.train.gradient_accumulation_steps.reset();
  config.train.global_batch_size = d.global_batch_size;
  const int64_t num_replicas_were =
      replica_axis(d.data_parallel) == Axis::kDp ? d.data_parallel_size
                                                 : config.parallel.num_distributed_optimizer_instances;
  const int64_t num_replicas = num_replicas_were * num_ranks / d.world_size;
  if (replica_axis(d.data_parallel) == Axis::kDpReplicate) {
    config.parallel.num_distributed_optimizer_instances = num_replicas;
  } else if (num_ranks < d.world_size) {
    config.parallel.num_distributed_optimizer_instances = 1;
  }
  // Otherwise steps are made of what divides, as long as replicas are missing.
  const int64_t chunk = d.micro_batch_size * d.data_parallel_size * num_ranks / d.world_size;
  if (!d.batches.is_constant() || d.global_batch_size % chunk != 0) config.train.decrease_batch_size_if_needed = true;
}

}  // namespace megalith
