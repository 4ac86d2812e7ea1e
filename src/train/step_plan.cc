#include "train/step_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "comm/groups.h"
#include "core/memo.h"
#include "parallel/buckets.h"
#include "parallel/data_parallel_options.h"
#include "planner/pipeline_simulator.h"

namespace megalith {
namespace {

constexpr double kBytesOfBf16 = 2;

bool is_recomputed(const RecomputePlan& plan, const LayerRange& layers, int64_t layer) {
  if (plan.is_empty()) return false;
  const int64_t place = layer - layers.first;
  return plan.layers.contains(layers.first + place / plan.layers_per_block * plan.layers_per_block);
}

// Bytes that a summed group of parameters moves, and what a rank then updates.
struct Traffic {
  double gradient_s = 0, parameter_s = 0;  // reductions once, and gathers once
  double updated = 0;                      // elements
  std::string link;                        // "dp over the network"
};

// Ranks that sum the gradients of parameters with some axes.
struct SummingRanks {
  GroupSpan whole, shard, replicas;
};

// A rank's activations while it runs a chunk: microbatches of each chunk alive, the running one included.
struct LiveState {
  size_t running = 0;  // chunk
  std::vector<int> live;
  auto operator<=>(const LiveState&) const = default;
};

std::set<LiveState> states_of(const std::vector<Action>& actions, int num_chunks) {
  std::set<LiveState> states;
  std::vector<int> live(static_cast<size_t>(num_chunks), 0);
  for (const Action& action : actions) {
    if (is_communication(action.kind)) continue;
    const auto chunk = static_cast<size_t>(action.chunk);
    if (action.kind == ActionKind::kForward) ++live[chunk];
    states.insert({chunk, live});
    if (action.kind == ActionKind::kBackward || action.kind == ActionKind::kWeightBackward) --live[chunk];
  }
  return states;
}

// As pipeline_activation_peak() of the actions.
int64_t activation_peak(const std::set<LiveState>& states, const std::vector<ActivationCost>& chunks) {
  int64_t peak = 0;
  for (const LiveState& state : states) {
    int64_t held = chunks[state.running].peak - chunks[state.running].kept;
    for (size_t chunk = 0; chunk < chunks.size(); ++chunk) held += state.live[chunk] * chunks[chunk].kept;
    peak = std::max(peak, held);
  }
  return peak;
}

using GroupsKey = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, bool, std::vector<int64_t>, int64_t>;
GroupsKey groups_key(const StepShape& shape) {
  const ParallelOptions& parallel = shape.parallel;
  return {parallel.tensor_model_parallel_size,  parallel.context_parallel_size,
          parallel.pipeline_model_parallel_size, parallel.expert_model_parallel_size,
          parallel.expert_tensor_parallel_size.value_or(parallel.tensor_model_parallel_size),
          parallel.num_distributed_optimizer_instances, parallel.use_tp_pp_dp_mapping,
          parallel.hierarchical_context_parallel_sizes, shape.world_size};
}

using ScheduleKey = std::tuple<PipelineAlgorithm, StageOrder, int, int, int, int64_t>;

}  // namespace

struct StepPricer::Kept {
  const Cluster& cluster;
  bool names_products;
  Memo<const UnitCosts*, std::vector<PassTimes>> passes = {};  // by kind of unit
  Memo<GroupsKey, std::shared_ptr<const Groups>> groups = {};
  Memo<std::pair<GroupsKey, std::string>, SummingRanks> summing = {};  // by axes
  Memo<ScheduleKey, PipelineSchedule> schedules = {};  // checked
  Memo<ScheduleKey, std::vector<std::set<LiveState>>> states = {};  // by rank
};

namespace {

class StepPlanner {
 public:
  StepPlanner(const StepShape& shape, const UnitCosts& units, StepPricer::Kept& kept)
      : shape_(shape), pipeline_(*shape.pipeline), data_(shape.data), units_(units), kept_(kept),
        cluster_(kept.cluster), groups_key_(groups_key(shape)), groups_(groups_of_shape()),
        passes_(kept.passes.of(&units, [&] { return price_units(); })) {
    for (const UnitCost& unit : units.kinds) {
      std::vector<Traffic>& traffic = traffic_.emplace_back();
      for (const SummedParameters& sum : unit.parameters) traffic.push_back(traffic_of(sum));
    }
    for (size_t stage = 0; stage < pipeline_.stages.size(); ++stage) plan_stage(stage);
  }

  StepPlan bounds() const {
    StepPlan plan;
    double longest = 0, all = 0;
    int busiest = 0;
    for (int rank = 0; rank < pipeline_.num_ranks; ++rank) {
      double of_microbatch = 0;
      for (const size_t stage : stages_of(rank)) of_microbatch += sums_of(stage).total_s();
      const double busy = static_cast<double>(shape_.num_microbatches) * of_microbatch, until_end = busy + idle_s(rank);
      all += busy;
      if (until_end > longest) longest = until_end, busiest = rank;
    }
    plan.work = work_of(busiest);
    finish(plan, in_turns_s(longest, all));
    return plan;
  }

  StepPlan simulate() const {
    PipelineCosts costs;
    for (size_t stage = 0; stage < stages_.size(); ++stage) {
      const UnitSums& sums = sums_of(stage);
      costs.stages.push_back({sums.forward_s, sums.input_backward_s, std::max(0.0, sums.weight_backward_s)});
    }
    costs.transfer = transfer_s();
    const int64_t few = few_microbatches();
    double makespan = 0, all = 0;
    StepPlan plan;
    {
      const PipelineSimulation simulated = simulate_checked_pipeline(schedule_of(few), costs);
      makespan = simulated.makespan;
      const auto busiest = std::ranges::max_element(simulated.busy) - simulated.busy.begin();
      plan.work = work_of(narrow<int>(busiest));
      for (int rank = 0; rank < pipeline_.num_ranks; ++rank) all += work_of(rank).total();
    }
    if (few < shape_.num_microbatches) {
      const PipelineSimulation longer = simulate_checked_pipeline(schedule_of(few + period()), costs);
      const double of_period = longer.makespan - makespan;
      makespan += of_period * static_cast<double>((shape_.num_microbatches - few) / period());
    }
    makespan = in_turns_s(makespan, all);
    const double busiest_s = plan.work.total();
    if (busiest_s > makespan) plan.work = WorkTimes().add(plan.work, makespan / busiest_s);
    plan.bubble_s = std::max(0.0, makespan - busiest_s);
    finish(plan, makespan);
    return plan;
  }

 private:
  // Units of one kind in a stage, all recomputed and offloaded or none.
  struct StageUnits {
    size_t kind = 0;
    bool is_again = false, is_offloaded = false;
    int64_t count = 0;
    bool operator==(const StageUnits&) const = default;
  };
  // Stages of the same units share them.
  struct UnitSums {
    std::vector<StageUnits> units;
    PassTimes times;
    double forward_s = 0, input_backward_s = 0, weight_backward_s = 0;
    double state = 0, on_host = 0, updated = 0;  // bytes, elements
    double total_s() const { return forward_s + input_backward_s + weight_backward_s; }
  };
  struct StageCost {
    ActivationCost activations;
    size_t sums = 0;
  };
  const UnitSums& sums_of(size_t stage) const { return sums_[stages_[stage].sums]; }

  std::shared_ptr<const Groups> groups_of_shape() const {
    return kept_.groups.of(groups_key_, [&] {
      return std::make_shared<const Groups>(Mesh::from_options(shape_.parallel, shape_.world_size), /*world_rank=*/0,
                                            traced_group_factory(/*rank=*/0));
    });
  }

  std::vector<PassTimes> price_units() const {
    std::vector<PassTimes> prices;
    for (const UnitCost& unit : units_.kinds) {
      PassTimes& passes = prices.emplace_back(price_passes(unit.forward, unit.backward, cluster_, unit.seen_share));
      if (kept_.names_products) continue;
      for (WorkTimes* pass : {&passes.forward, &passes.input_backward, &passes.weight_backward}) {
        pass->products_of.clear();
      }
    }
    return prices;
  }

  SummingRanks summing_ranks(const AxisSet& axes) const {
    return kept_.summing.of({groups_key_, axes.text()}, [&] {
      const ReductionGroups reduction = reduction_groups(axes, *groups_);
      const auto span = [&](const Groups::Pointer& group) {
        return group == nullptr || group->size() == 1 ? GroupSpan{} : span_of(group->ranks(), cluster_);
      };
      return SummingRanks{span(reduction.whole), span(reduction.shard), span(reduction.replicate)};
    });
  }

  // Every schedule repeats itself between its warm-up and its end, so many microbatches need not be simulated.
  int64_t period() const { return pipeline_.microbatch_group > 0 ? pipeline_.microbatch_group : pipeline_.num_ranks; }
  int64_t few_microbatches() const {
    constexpr int64_t kPeriods = 6;
    const int64_t all = shape_.num_microbatches, most = kPeriods * period();
    return all <= most ? all : all - (all - most) / period() * period();
  }
  ScheduleKey schedule_key(int64_t microbatches) const {
    return {pipeline_.algorithm,  pipeline_.order,           pipeline_.num_ranks,
            pipeline_.num_chunks, pipeline_.microbatch_group, microbatches};
  }
  const PipelineSchedule& schedule_of(int64_t microbatches) const {
    return kept_.schedules.of(schedule_key(microbatches), [&] {
      PipelineSchedule schedule = pipeline_.schedule(narrow<int>(microbatches));
      check_pipeline_schedule(schedule);
      return schedule;
    });
  }
  const std::vector<std::set<LiveState>>& live_states() const {
    const int64_t microbatches = few_microbatches();
    return kept_.states.of(schedule_key(microbatches), [&] {
      const PipelineShape shape = pipeline_.shape(narrow<int>(microbatches));
      std::vector<std::set<LiveState>> states;
      for (const auto& actions : make_pipeline_schedule(pipeline_.algorithm, shape, pipeline_.microbatch_group).ranks) {
        states.push_back(states_of(actions, shape.num_chunks));
      }
      return states;
    });
  }

  bool is_fsdp() const { return data_.use_torch_fsdp2; }

  double moved_s(double bytes) const {
    return bytes / (cluster_.chip.memory_tb_per_s * 1e12 * cluster_.chip.memory_share);
  }
  double by_host_s(double bytes) const { return bytes / (cluster_.chip.host_gb_per_s * 1e9); }

  // Inputs of recomputed layers go to the host and come back beside a layer's passes.
  void add_offload(const PassTimes& unit, double count, PassTimes& stage) const {
    const double copy_s = by_host_s(static_cast<double>(units_.boundary_bytes));
    const double forward_s = unit.forward.total();
    const double backward_s = forward_s + unit.input_backward.total() + unit.weight_backward.total();
    stage.forward.exposed["host's link"] += count * std::max(0.0, copy_s - forward_s);
    stage.input_backward.exposed["host's link"] += count * std::max(0.0, copy_s - backward_s);
  }

  Traffic traffic_of(const SummedParameters& sum) const {
    Traffic traffic;
    traffic.updated = static_cast<double>(sum.elements);
    if (sum.axes.empty() || sum.elements == 0) return traffic;
    const SummingRanks summing = summing_ranks(sum.axes);
    const double gradients = data_.grad_reduce_in_bf16 ? kBytesOfBf16 * traffic.updated
                                                       : static_cast<double>(sum.gradient_bytes);
    const auto parameters = static_cast<double>(sum.bytes);
    const bool is_sharded = is_fsdp() || data_.use_distributed_optimizer;
    const GroupSpan& ranks = is_sharded ? summing.shard : summing.whole;
    if (ranks.ranks < 2) return traffic;
    traffic.link = fmt::format("dp over the {}", ranks.link());
    // Every bucket, or unit of FSDP, pays for a collective's steps.
    const auto bucket = static_cast<double>(bucket_elements(data_, sum.elements, shape_.data_parallel_size));
    const double buckets = is_fsdp() ? 1 : traffic.updated / bucket;
    const auto moving_s = [&](CollectiveKind kind, double bytes, const GroupSpan& over) {
      return collective_s(kind, bytes, over, cluster_) + (buckets - 1) * collective_s(kind, 0, over, cluster_);
    };
    if (!is_sharded) {
      traffic.gradient_s = moving_s(CollectiveKind::kAllReduce, gradients, ranks);
      return traffic;
    }
    traffic.gradient_s = moving_s(CollectiveKind::kReduceScatter, gradients, ranks) +
                         moving_s(CollectiveKind::kAllReduce, gradients / ranks.ranks, summing.replicas);
    traffic.parameter_s = moving_s(CollectiveKind::kAllGather, parameters, ranks);
    traffic.updated /= ranks.ranks;
    return traffic;
  }

  // FSDP gathers each unit ahead of its passes, and reduces its gradients beside the next one's.
  void add_fsdp(const std::vector<Traffic>& traffic, PassTimes& stage, const PassTimes& unit,
                const StageUnits& units) const {
    const auto count = static_cast<double>(units.count);
    const double forward_s = unit.forward.total();
    const double backward_s =
        unit.input_backward.total() + unit.weight_backward.total() + (units.is_again ? forward_s : 0);
    for (const Traffic& one : traffic) {
      if (one.link.empty()) continue;
      const double again = data_.torch_fsdp2_reshard_after_forward ? one.parameter_s : 0;
      stage.forward.exposed[one.link] += count * exposed_s(one.parameter_s, forward_s, cluster_.chip);
      stage.input_backward.exposed[one.link] +=
          count * exposed_s(again + one.gradient_s, backward_s, cluster_.chip);
    }
  }

  void plan_stage(size_t number) {
    const UnitRange& range = pipeline_.stages[number];
    const LayerRange layers = pipeline_.layers_of(range);
    const RecomputePlan recompute = make_recompute_plan(shape_.recompute, layers.first, layers.count);
    StageCost& stage = stages_.emplace_back();
    std::vector<StageUnits> units;
    int64_t layer = layers.first, fetched_ahead = 0;
    for (int64_t unit = range.first; unit < range.end(); ++unit) {
      const size_t kind = units_.kind_of[static_cast<size_t>(unit)];
      const bool is_layer = pipeline_.units[static_cast<size_t>(unit)].letter == UnitLetter::kLayer;
      const bool is_again = is_layer && is_recomputed(recompute, layers, layer);
      const bool is_offloaded = is_again && recompute.offloaded.contains(layer);
      for (const BlockMemory& block : units_.kinds[kind].blocks) {
        const int64_t extra = is_again ? units_.boundary_bytes : 0, kept = is_again ? extra : block.kept;
        ActivationCost& so_far = stage.activations;
        so_far.peak = std::max(so_far.peak, so_far.kept + fetched_ahead + block.peak + extra);
        so_far.kept += is_offloaded ? 0 : kept;
        fetched_ahead = is_offloaded ? kept : 0;
      }
      stage.activations.peak = std::max(stage.activations.peak, stage.activations.kept);
      const auto alike = std::ranges::find_if(
          units, [&](const StageUnits& one) {
            return one.kind == kind && one.is_again == is_again && one.is_offloaded == is_offloaded;
          });
      if (alike == units.end()) {
        units.push_back({kind, is_again, is_offloaded, 1});
      } else {
        ++alike->count;
      }
      if (is_layer) ++layer;
    }
    const auto known = std::ranges::find(sums_, units, &UnitSums::units);
    stage.sums = static_cast<size_t>(known - sums_.begin());
    if (known == sums_.end()) sums_.push_back(sum_units(std::move(units)));
  }

  UnitSums sum_units(std::vector<StageUnits> units) const {
    UnitSums stage{.units = std::move(units), .times = {}};
    double parameters = 0, gradients = 0, copies = 0, largest = 0;
    for (const StageUnits& some : stage.units) {
      const UnitCost& cost = units_.kinds[some.kind];
      const auto count = static_cast<double>(some.count);
      const PassTimes& passes = passes_[some.kind];
      if (some.is_again) stage.times.input_backward.add(passes.forward, count);
      stage.times.forward.add(passes.forward, count);
      stage.times.input_backward.add(passes.input_backward, count);
      stage.times.weight_backward.add(passes.weight_backward, count);
      if (some.is_offloaded) add_offload(passes, count, stage.times);
      if (is_fsdp()) add_fsdp(traffic_[some.kind], stage.times, passes, some);
      parameters += count * static_cast<double>(cost.parameter_bytes());
      gradients += count * static_cast<double>(cost.gradient_bytes());
      copies += count * static_cast<double>(cost.weight_copies);
      largest = std::max(largest, static_cast<double>(cost.parameter_bytes() + cost.gradient_bytes()));
      for (const Traffic& one : traffic_[some.kind]) stage.updated += count * one.updated;
    }
    if (is_fsdp()) {
      // Runs, the root's gathered parameters aside, and two units whole.
      const double shards = std::max(1.0, static_cast<double>(shape_.data_parallel_size));
      parameters /= shards, gradients /= shards;
      parameters += 2 * largest;
    }
    stage.on_host = shape_.offloaded_share * stage.updated * units_.state_bytes;
    stage.state = parameters + gradients + copies + stage.updated * units_.state_bytes - stage.on_host;
    stage.forward_s = stage.times.forward.total();
    stage.input_backward_s = stage.times.input_backward.total();
    stage.weight_backward_s = stage.times.weight_backward.total();
    return stage;
  }

  // Ranks that wait for one another leave their processor to others: by itself a rank were so many times as fast, and
  // all processors work as long as any rank can.
  //   all_s  of all pipeline ranks' work
  double in_turns_s(double makespan, double all_s) const {
    const double turns = cluster_.chip.ranks_per_core;
    return turns > 1 ? std::max(makespan / turns, all_s / pipeline_.num_ranks) : makespan;
  }

  std::vector<size_t> stages_of(int rank) const {
    std::vector<size_t> stages;
    const PipelineShape shape = pipeline_.shape(1);
    for (int chunk = 0; chunk < shape.num_chunks; ++chunk) {
      stages.push_back(static_cast<size_t>(shape.stage_of(rank, chunk)));
    }
    return stages;
  }

  // Before a rank's first microbatch come the stages before its first, and after its last backward theirs; weight
  // gradients may wait for the end.
  double idle_s(int rank) const {
    const size_t first = std::ranges::min(stages_of(rank));
    double seconds = 0;
    for (size_t stage = 0; stage < first; ++stage) {
      seconds += pipeline_.splits_backward() ? sums_of(stage).forward_s : sums_of(stage).total_s();
    }
    return seconds;
  }

  // All of a step's microbatches.
  WorkTimes work_of(int rank) const {
    WorkTimes work;
    for (const size_t stage : stages_of(rank)) {
      const PassTimes& times = sums_of(stage).times;
      const auto count = static_cast<double>(shape_.num_microbatches);
      work.add(times.forward, count).add(times.input_backward, count).add(times.weight_backward, count);
    }
    return work;
  }

  double transfer_s() const {
    if (pipeline_.num_ranks < 2) return 0;
    const std::vector<int> pair = {groups_->mesh.rank_at(0, 0, 0, 0), groups_->mesh.rank_at(0, 0, 0, 1)};
    return collective_s(CollectiveKind::kSendReceive, static_cast<double>(units_.boundary_bytes),
                        span_of(pair, cluster_), cluster_);
  }

  // Gradients, parameters and updates of a rank's stages, after its microbatches.
  void add_end(int rank, WorkTimes& work, double& optimizer_s) const {
    double backward = 0, forward = 0, updated = 0, elements = 0;
    std::map<std::string, std::pair<double, double>> moved;  // gradients and parameters
    for (const size_t number : stages_of(rank)) {
      const UnitSums& stage = sums_of(number);
      backward += stage.input_backward_s + stage.weight_backward_s;
      forward += stage.forward_s;
      updated += stage.updated;
      for (const StageUnits& some : stage.units) {
        const auto count = static_cast<double>(some.count);
        for (const Traffic& one : traffic_[some.kind]) {
          if (one.link.empty()) continue;
          moved[one.link].first += count * one.gradient_s, moved[one.link].second += count * one.parameter_s;
        }
        for (const SummedParameters& sum : units_.kinds[some.kind].parameters) {
          elements += count * static_cast<double>(sum.elements);
        }
      }
    }
    // Every bucket but the last is under way during backward.
    const int64_t bucket_size = bucket_elements(data_, static_cast<int64_t>(elements), shape_.data_parallel_size);
    const auto bucket = static_cast<double>(bucket_size);
    const double last = std::min(1.0, bucket / std::max(elements, 1.0));
    const auto exposed = [&](double seconds, bool overlaps, double work_s) {
      return overlaps ? last * seconds + exposed_s((1 - last) * seconds, work_s, cluster_.chip) : seconds;
    };
    for (const auto& [link, seconds] : moved) {
      if (is_fsdp()) break;  // with the units
      work.exposed[link] += exposed(seconds.first, data_.overlap_grad_reduce, backward) +
                            exposed(seconds.second, data_.overlap_param_gather, forward);
    }
    // States are read and written, gradients read for the norm and the update, weights written.
    const double gradient_bytes = data_.main_grads_dtype == GradDtype::kBf16 ? kBytesOfBf16 : 4;
    const double of_update = updated * (2 * units_.state_bytes + 2 * gradient_bytes + kBytesOfBf16);
    const double on_host = shape_.offloaded_share * of_update;
    optimizer_s = moved_s(of_update - on_host) + by_host_s(on_host);
  }

  void finish(StepPlan& plan, double makespan) const {
    double longest = -1;
    WorkTimes of_longest;
    for (int rank = 0; rank < pipeline_.num_ranks; ++rank) {
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
    const std::vector<std::set<LiveState>>& states = live_states();
    for (int rank = 0; rank < pipeline_.num_ranks; ++rank) {
      double state = 0, on_host = 0;
      std::vector<ActivationCost> chunks;
      for (const size_t stage : stages_of(rank)) {
        state += sums_of(stage).state;
        on_host += sums_of(stage).on_host;
        chunks.push_back(stages_[stage].activations);
      }
      const int64_t activations = activation_peak(states[static_cast<size_t>(rank)], chunks);
      if (static_cast<int64_t>(state) + activations <= plan.memory_bytes()) continue;
      plan.state_bytes = static_cast<int64_t>(state);
      plan.activation_bytes = activations;
      plan.host_bytes = static_cast<int64_t>(on_host);
    }
  }

  const StepShape& shape_;
  const PipelinePlan& pipeline_;
  const DataParallelOptions& data_;
  const UnitCosts& units_;
  StepPricer::Kept& kept_;
  const Cluster& cluster_;
  GroupsKey groups_key_;
  std::shared_ptr<const Groups> groups_;
  const std::vector<PassTimes>& passes_;        // by kind of unit
  std::vector<std::vector<Traffic>> traffic_;   // likewise
  std::vector<StageCost> stages_;
  std::vector<UnitSums> sums_;
};

}  // namespace

double offloaded_share_of(const OptimizerOptions& optimizer) {
  return optimizer.optimizer_cpu_offload ? optimizer.optimizer_offload_fraction : 0;
}

StepShape shape_of_step(const Resolved& run) {
  const Derived& d = run.derived;
  return {.parallel = run.config.parallel,
          .data = d.data_parallel,
          .recompute = run.config.recompute,
          .pipeline = std::make_shared<const PipelinePlan>(d.pipeline),
          .world_size = d.world_size,
          .data_parallel_size = d.data_parallel_size,
          .num_microbatches = d.num_microbatches,
          .offloaded_share = offloaded_share_of(run.config.optimizer)};
}

StepPricer::StepPricer(const Cluster& cluster, bool names_products)
    : kept_(new Kept{.cluster = cluster, .names_products = names_products}) {}
StepPricer::~StepPricer() = default;

StepPlan StepPricer::bounds(const StepShape& shape, const UnitCosts& units) {
  return StepPlanner(shape, units, *kept_).bounds();
}

StepPlan StepPricer::plan(const StepShape& shape, const UnitCosts& units) {
  return StepPlanner(shape, units, *kept_).simulate();
}

StepPlan plan_bounds(const Resolved& run, const UnitCosts& units, const Cluster& cluster) {
  return StepPricer(cluster).bounds(shape_of_step(run), units);
}

StepPlan plan_step(const Resolved& run, const UnitCosts& units, const Cluster& cluster) {
  return StepPricer(cluster).plan(shape_of_step(run), units);
}

std::optional<Cluster> cluster_of(const ChipRates& chip, int64_t ranks) {
  const int64_t per_node = std::min(ranks, chip.gpus_per_node);
  if (ranks % per_node != 0) return {};
  return Cluster{.chip = chip, .nodes = ranks / per_node, .gpus_per_node = per_node, .file = {}};
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

}  // namespace megalith
