#include "train/step_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "comm/groups.h"
#include "parallel/buckets.h"
#include "parallel/data_parallel_options.h"
#include "planner/pipeline_simulator.h"

namespace megalith {
namespace {

constexpr double kBytesOfBf16 = 2;

bool is_recomputed(const RecomputePlan& plan, const LayerRange& layers, int64_t layer) {
  const int64_t place = layer - layers.first;
  return plan.layers.contains(layers.first + place / plan.layers_per_block * plan.layers_per_block);
}

// Bytes that a summed group of parameters moves, and what a rank then updates.
struct Traffic {
  double gradient_s = 0, parameter_s = 0;  // reductions once, and gathers once
  double updated = 0;                      // elements
  std::string link;                        // "dp_cp over the network"
};

const std::vector<int>& ranks_of(const Groups::Pointer& group) {
  static const std::vector<int> kNone;
  return group == nullptr || group->size() == 1 ? kNone : group->ranks();
}

class StepPlanner {
 public:
  StepPlanner(const Resolved& run, const UnitCosts& units, const Cluster& cluster)
      : run_(run), d_(run.derived), data_(run.derived.data_parallel), units_(units), cluster_(cluster),
        groups_(Mesh::from_options(run.config.parallel, run.derived.world_size), /*world_rank=*/0,
                traced_group_factory(/*rank=*/0)) {
    for (const UnitCost& unit : units.kinds) {
      passes_.push_back(price_passes(unit.forward, unit.backward, cluster, unit.seen_share));
      std::vector<Traffic>& traffic = traffic_.emplace_back();
      for (const SummedParameters& sum : unit.parameters) traffic.push_back(traffic_of(sum));
    }
    for (size_t stage = 0; stage < d_.pipeline.stages.size(); ++stage) plan_stage(stage);
  }

  StepPlan bounds() const {
    StepPlan plan;
    double longest = 0;
    for (int rank = 0; rank < d_.pipeline.num_ranks; ++rank) {
      const WorkTimes work = work_of(rank);
      const double until_end = work.total() + beside_s(rank);
      if (until_end > longest) longest = until_end, plan.work = work;
    }
    finish(plan, longest);
    return plan;
  }

  StepPlan simulate() const {
    PipelineCosts costs;
    for (const PassTimes& stage : stages_) {
      costs.stages.push_back(
          {stage.forward.total(), stage.input_backward.total(), std::max(0.0, stage.weight_backward.total())});
    }
    costs.transfer = transfer_s();
    const int64_t few = few_microbatches();
    const PipelineSimulation simulated = simulate_pipeline(d_.pipeline.schedule(narrow<int>(few)), costs);
    double makespan = simulated.makespan;
    if (few < d_.num_microbatches) {
      const PipelineSchedule longer = d_.pipeline.schedule(narrow<int>(few + period()));
      const double of_period = simulate_pipeline(longer, costs).makespan - makespan;
      makespan += of_period * static_cast<double>((d_.num_microbatches - few) / period());
    }
    StepPlan plan;
    const auto busiest = std::ranges::max_element(simulated.busy) - simulated.busy.begin();
    plan.work = work_of(narrow<int>(busiest));
    plan.bubble_s = std::max(0.0, makespan - plan.work.total());
    finish(plan, makespan);
    return plan;
  }

 private:
  // Every schedule repeats itself between its warm-up and its end, so many microbatches need not be simulated.
  int64_t period() const {
    return d_.pipeline.microbatch_group > 0 ? d_.pipeline.microbatch_group : d_.pipeline.num_ranks;
  }
  int64_t few_microbatches() const {
    constexpr int64_t kPeriods = 6;
    const int64_t all = d_.num_microbatches, most = kPeriods * period();
    return all <= most ? all : all - (all - most) / period() * period();
  }

  bool is_fsdp() const { return data_.use_torch_fsdp2; }

  double moved_s(double bytes) const {
    return bytes / (cluster_.chip.memory_tb_per_s * 1e12 * cluster_.chip.memory_share);
  }

  Traffic traffic_of(const SummedParameters& sum) const {
    Traffic traffic;
    traffic.updated = static_cast<double>(sum.elements);
    if (sum.axes.empty() || sum.elements == 0) return traffic;
    const ReductionGroups reduction = reduction_groups(sum.axes, groups_);
    if (reduction.whole == nullptr && reduction.shard == nullptr) return traffic;
    const double gradients = data_.grad_reduce_in_bf16 ? kBytesOfBf16 * traffic.updated
                                                       : static_cast<double>(sum.gradient_bytes);
    const auto parameters = static_cast<double>(sum.bytes);
    const bool is_sharded = is_fsdp() || data_.use_distributed_optimizer;
    const std::vector<int>& ranks = ranks_of(is_sharded ? reduction.shard : reduction.whole);
    if (ranks.empty()) return traffic;
    traffic.link = fmt::format("dp over the {}", link_name(ranks, cluster_));
    // Every bucket, or unit of FSDP, pays for a collective's steps.
    const auto bucket = static_cast<double>(bucket_elements(data_, sum.elements, d_.data_parallel_size));
    const double buckets = is_fsdp() ? 1 : traffic.updated / bucket;
    const auto moving_s = [&](CollectiveKind kind, double bytes, const std::vector<int>& over) {
      return collective_s(kind, bytes, over, cluster_) + (buckets - 1) * collective_s(kind, 0, over, cluster_);
    };
    if (!is_sharded) {
      traffic.gradient_s = moving_s(CollectiveKind::kAllReduce, gradients, ranks);
      return traffic;
    }
    const auto shards = static_cast<double>(ranks.size());
    const std::vector<int>& replicas = ranks_of(reduction.replicate);
    traffic.gradient_s = moving_s(CollectiveKind::kReduceScatter, gradients, ranks) +
                         moving_s(CollectiveKind::kAllReduce, gradients / shards, replicas);
    traffic.parameter_s = moving_s(CollectiveKind::kAllGather, parameters, ranks);
    traffic.updated /= shards;
    return traffic;
  }

  // FSDP gathers each unit ahead of its passes, and reduces its gradients beside the next one's.
  void add_fsdp(const std::vector<Traffic>& traffic, PassTimes& stage, const PassTimes& unit) const {
    for (const Traffic& one : traffic) {
      if (one.link.empty()) continue;
      const double again = data_.torch_fsdp2_reshard_after_forward ? one.parameter_s : 0;
      stage.forward.exposed[one.link] += std::max(0.0, one.parameter_s - unit.forward.total());
      stage.input_backward.exposed[one.link] += std::max(
          0.0, again + one.gradient_s - unit.input_backward.total() - unit.weight_backward.total());
    }
  }

  void plan_stage(size_t stage) {
    const UnitRange& range = d_.pipeline.stages[stage];
    const LayerRange layers = d_.pipeline.layers_of(range);
    const RecomputePlan recompute = make_recompute_plan(run_.config.recompute, layers.first, layers.count);
    PassTimes& times = stages_.emplace_back();
    std::vector<BlockMemory> blocks;
    int64_t layer = layers.first;
    double parameters = 0, gradients = 0, copies = 0, updated = 0, largest = 0;
    for (int64_t unit = range.first; unit < range.end(); ++unit) {
      const size_t kind = units_.kind_of[static_cast<size_t>(unit)];
      const UnitCost& cost = units_.kinds[kind];
      const bool is_layer = d_.pipeline.units[static_cast<size_t>(unit)].letter == UnitLetter::kLayer;
      const bool is_again = is_layer && is_recomputed(recompute, layers, layer);
      PassTimes passes = passes_[kind];
      if (is_again) passes.input_backward.add(passes.forward);
      times.forward.add(passes.forward);
      times.input_backward.add(passes.input_backward);
      times.weight_backward.add(passes.weight_backward);
      if (is_fsdp()) add_fsdp(traffic_[kind], times, passes);
      for (BlockMemory memory : cost.blocks) {
        if (is_again) memory.peak += units_.boundary_bytes, memory.kept = units_.boundary_bytes;
        blocks.push_back(std::move(memory));
      }
      parameters += static_cast<double>(cost.parameter_bytes());
      gradients += static_cast<double>(cost.gradient_bytes());
      copies += static_cast<double>(cost.weight_copies);
      largest = std::max(largest, static_cast<double>(cost.parameter_bytes() + cost.gradient_bytes()));
      for (const Traffic& one : traffic_[kind]) updated += one.updated;
      if (is_layer) ++layer;
    }
    if (is_fsdp()) {
      // Runs, the root's gathered parameters aside, and two units whole.
      const double shards = std::max(1.0, static_cast<double>(d_.data_parallel_size));
      parameters /= shards, gradients /= shards;
      parameters += 2 * largest;
    }
    activations_.push_back(activation_cost(blocks, {}));
    stage_state_.push_back(parameters + gradients + copies + updated * units_.state_bytes);
    updated_.push_back(updated);
  }

  std::vector<int> stages_of(int rank) const {
    std::vector<int> stages;
    const PipelineShape shape = d_.pipeline.shape(1);
    for (int chunk = 0; chunk < shape.num_chunks; ++chunk) stages.push_back(shape.stage_of(rank, chunk));
    return stages;
  }

  // Before a rank's first microbatch come the stages before its first, and after its last backward theirs; weight
  // gradients may wait for the end.
  double beside_s(int rank) const {
    const int first = std::ranges::min(stages_of(rank));
    double seconds = 0;
    for (int stage = 0; stage < first; ++stage) {
      const PassTimes& times = stages_[static_cast<size_t>(stage)];
      seconds += times.forward.total();
      if (!d_.pipeline.splits_backward()) seconds += times.input_backward.total() + times.weight_backward.total();
    }
    return seconds;
  }

  // All of a step's microbatches.
  WorkTimes work_of(int rank) const {
    WorkTimes work;
    for (const int stage : stages_of(rank)) {
      const PassTimes& times = stages_[static_cast<size_t>(stage)];
      const auto count = static_cast<double>(d_.num_microbatches);
      work.add(times.forward, count).add(times.input_backward, count).add(times.weight_backward, count);
    }
    return work;
  }

  double transfer_s() const {
    if (d_.pipeline.num_ranks < 2) return 0;
    const std::vector<int> pair = {groups_.mesh.rank_at(0, 0, 0, 0), groups_.mesh.rank_at(0, 0, 0, 1)};
    return collective_s(CollectiveKind::kSendReceive, static_cast<double>(units_.boundary_bytes), pair, cluster_);
  }

  // Gradients, parameters and updates of a rank's stages, after its microbatches.
  void add_end(int rank, WorkTimes& work, double& optimizer_s) const {
    double backward = 0, forward = 0, updated = 0, elements = 0;
    std::map<std::string, std::pair<double, double>> moved;  // gradients and parameters
    for (const int stage : stages_of(rank)) {
      const auto place = static_cast<size_t>(stage);
      backward += stages_[place].input_backward.total() + stages_[place].weight_backward.total();
      forward += stages_[place].forward.total();
      updated += updated_[place];
      const UnitRange& range = d_.pipeline.stages[place];
      for (int64_t unit = range.first; unit < range.end(); ++unit) {
        for (const Traffic& one : traffic_[units_.kind_of[static_cast<size_t>(unit)]]) {
          if (!one.link.empty()) moved[one.link].first += one.gradient_s, moved[one.link].second += one.parameter_s;
        }
        for (const SummedParameters& sum : units_.of(unit).parameters) elements += static_cast<double>(sum.elements);
      }
    }
    // Every bucket but the last is under way during backward.
    const int64_t bucket_size = bucket_elements(data_, static_cast<int64_t>(elements), d_.data_parallel_size);
    const auto bucket = static_cast<double>(bucket_size);
    const double last = std::min(1.0, bucket / std::max(elements, 1.0));
    const auto exposed = [&](double seconds, bool overlaps, double behind) {
      return overlaps ? std::max(last * seconds, seconds - behind) : seconds;
    };
    for (const auto& [link, seconds] : moved) {
      if (is_fsdp()) break;  // with the units
      work.exposed[link] += exposed(seconds.first, data_.overlap_grad_reduce, backward) +
                            exposed(seconds.second, data_.overlap_param_gather, forward);
    }
    // States are read and written, gradients read for the norm and the update, weights written.
    constexpr double kGradientsAndWeights = 2 * 4 + 2;
    optimizer_s = moved_s(updated * (2 * units_.state_bytes + kGradientsAndWeights));
  }

  void finish(StepPlan& plan, double makespan) const {
    double longest = -1;
    WorkTimes of_longest;
    for (int rank = 0; rank < d_.pipeline.num_ranks; ++rank) {
      WorkTimes end;
      double optimizer_s = 0;
      add_end(rank, end, optimizer_s);
      if (end.total() + optimizer_s <= longest) continue;
      longest = end.total() + optimizer_s;
      of_longest = end;
      plan.optimizer_s = optimizer_s;
    }
    plan.work.add(of_longest);
    plan.step_s = makespan + longest;
    add_memory(plan);
  }

  void add_memory(StepPlan& plan) const {
    const PipelineSchedule schedule = d_.pipeline.schedule(narrow<int>(few_microbatches()));
    for (int rank = 0; rank < d_.pipeline.num_ranks; ++rank) {
      double state = 0;
      std::vector<ActivationCost> chunks;
      for (const int stage : stages_of(rank)) {
        state += stage_state_[static_cast<size_t>(stage)];
        chunks.push_back(activations_[static_cast<size_t>(stage)]);
      }
      const int64_t activations = pipeline_activation_peak(schedule.ranks[static_cast<size_t>(rank)], chunks);
      if (static_cast<int64_t>(state) + activations <= plan.memory_bytes()) continue;
      plan.state_bytes = static_cast<int64_t>(state);
      plan.activation_bytes = activations;
    }
  }

  const Resolved& run_;
  const Derived& d_;
  const DataParallelOptions& data_;
  const UnitCosts& units_;
  const Cluster& cluster_;
  Groups groups_;
  std::vector<PassTimes> passes_;               // by kind of unit
  std::vector<std::vector<Traffic>> traffic_;   // likewise
  std::vector<PassTimes> stages_;
  std::vector<ActivationCost> activations_;     // by stage
  std::vector<double> stage_state_, updated_;   // likewise
};

}  // namespace

StepPlan plan_bounds(const Resolved& run, const UnitCosts& units, const Cluster& cluster) {
  return StepPlanner(run, units, cluster).bounds();
}

StepPlan plan_step(const Resolved& run, const UnitCosts& units, const Cluster& cluster) {
  return StepPlanner(run, units, cluster).simulate();
}

double planned_speed(const Resolved& run, const ChipRates& chip) {
  const int64_t ranks = run.derived.world_size, per_node = std::min(ranks, chip.gpus_per_node);
  const Cluster cluster{
      .chip = chip, .nodes = (ranks + per_node - 1) / per_node, .gpus_per_node = per_node, .file = {}};
  const auto tokens = static_cast<double>(run.derived.global_batch_size * run.kind().tokens_per_sample(run));
  return tokens / plan_step(run, measure_units(run), cluster).step_s / static_cast<double>(ranks);
}

SpeedOf speed_on(const std::string& gpu, const std::filesystem::path& config_root) {
  const auto chip = config_root.empty() ? std::nullopt : find_chip(gpu, config_root);
  if (!chip) return {};
  return [chip](const Resolved& run) { return planned_speed(run, *chip); };
}

int64_t upper_memory_bound(int64_t estimate_bytes) {
  constexpr double kFragments = 1.06;
  constexpr int64_t kContextBytes = int64_t{3} << 29;  // 1.5 GiB
  return static_cast<int64_t>(kFragments * static_cast<double>(estimate_bytes)) + kContextBytes;
}

}  // namespace megalith
