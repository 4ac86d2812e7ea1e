#include "train/step_units.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "comm/context_parallel.h"
#include "optim/optimizer.h"
#include "train/activation_report.h"
#include "train/alter_run.h"
#include "train/report.h"
#include "train/setup.h"

namespace megalith {
namespace {

// Layers with equal keys cost the same: kind, experts, convolution, window, rotation, exchange of
// keys.
using UnitKey = std::tuple<std::string, bool, bool, int64_t, int64_t, int>;

UnitKey key_of(const Unit& unit, int64_t layer, const ModelConfig& model,
               const std::vector<ContextParallelKind>& exchanges) {
  if (unit.letter != UnitLetter::kLayer || layer >= model.num_layers) return {unit.kind, false, false, 0, 0, 0};
  const auto place = static_cast<size_t>(layer);
  const auto exchange = exchanges.size() > 1 ? exchanges.at(place) : exchanges.at(0);
  return {unit.kind,
          model.has_experts_at(layer),
          model.has_convolution_at(layer),
          model.layers_with_window()[place],
          model.layers_without_rotation()[place],
          static_cast<int>(exchange)};
}

// One chunk per kind of unit, all on one rank.
struct Representatives {
  PipelinePlan plan;
  std::vector<size_t> kind_of;  // the number of stages: nothing, as it is in another unit's
  std::vector<int64_t> layers;  // before each kind's unit
};

Representatives find_representatives(const Resolved& run) {
  Representatives found;
  found.plan.units = run.derived.pipeline.units;
  for (const UnitOfKind& unit : kinds_of_units(run)) {
    found.kind_of.push_back(unit.kind);
    if (unit.kind < found.plan.stages.size()) continue;
    found.plan.stages.push_back(unit.range);
    found.layers.push_back(unit.layer);
  }
  found.kind_of.resize(found.plan.units.size(), found.plan.stages.size());
  found.plan.num_chunks = narrow<int>(std::ssize(found.plan.stages));
  return found;
}

std::vector<SummedParameters> sum_parameters(const Model& chunk) {
  std::map<std::string, SummedParameters> by_axes;
  for (const Parameter* parameter : chunk.parameters()) {
    const AxisSet axes = parameter->placement().partial_axes.without(Axis::kTp);
    SummedParameters& sum = by_axes[axes.text()];
    sum.axes = axes;
    const int64_t elements = parameter->placement().num_local_elements();
    sum.bytes += parameter->num_bytes();
    if (!parameter->is_trainable()) continue;
    sum.elements += elements;
    sum.gradient_bytes += elements * static_cast<int64_t>(c10::elementSize(parameter->grad_dtype()));
  }
  std::vector<SummedParameters> sums;
  for (auto& [axes, sum] : by_axes) sums.push_back(std::move(sum));
  return sums;
}

// Masters and moments per element, of the run's own optimizer over whole copies of these units.
double state_bytes_of(const Resolved& run, const BuiltModel& built, const Groups& groups) {
  DataParallelOptions options = run.derived.data_parallel;
  options.use_torch_fsdp2 = options.fsdp_cpu_offload = false;
  const auto data = make_data_parallel(built.parameters(), groups, options, {}, at::kMeta);
  const Optimizer optimizer(*data, groups, run.config.optimizer, run.config.runtime.kernels);
  double bytes = 0, elements = 0;
  for (const OptimizerTensor& entry : optimizer.state()) bytes += static_cast<double>(entry.tensor.nbytes());
  for (const OwnedPart& part : data->parts()) elements += static_cast<double>(part.model.numel());
  return elements > 0 ? bytes / elements : 0;
}

// How much more often the pairs that run are seen: context parallelism leaves out blocks that no query sees.
//   local  this rank's tokens
double blocks_left_out(const Model& chunk, const CostShape& local, const WorkTrace& forward) {
  double products = 0, attention = 0;
  for (const TracedWork& work : forward) (work.kind == WorkKind::kAttention ? attention : products) += work.flops;
  return attention > 0 ? (chunk.forward_flops(local) - products) / attention : 1;
}

}  // namespace

int64_t UnitCost::parameter_bytes() const {
  int64_t sum = 0;
  for (const SummedParameters& one : parameters) sum += one.bytes;
  return sum;
}

int64_t UnitCost::gradient_bytes() const {
  int64_t sum = 0;
  for (const SummedParameters& one : parameters) sum += one.gradient_bytes;
  return sum;
}

std::vector<UnitOfKind> kinds_of_units(const Resolved& run) {
  const std::vector<Unit>& units = run.derived.pipeline.units;
  const auto exchanges = context_parallel_kinds(run.config.parallel);
  std::map<UnitKey, size_t> kinds;
  // Both towers are built together.
  if (run.config.model.is_biencoder()) return {{0, {0, std::ssize(units)}, 0}};
  std::vector<UnitOfKind> all;
  int64_t layer = 0;
  for (int64_t i = 0; i < std::ssize(units); ++i) {
    const Unit& unit = units[static_cast<size_t>(i)];
    if (unit.letter == UnitLetter::kPrediction) {
      all.push_back({kinds.size(), {i, std::ssize(units) - i}, layer});
      break;
    }
    const size_t kind = kinds.try_emplace(key_of(unit, layer, run.config.model, exchanges), kinds.size()).first->second;
    all.push_back({kind, {i, 1}, layer});
    if (unit.letter == UnitLetter::kLayer) ++layer;
  }
  return all;
}

UnitCosts measure_units(std::unique_ptr<Resolved> own) {
  const Resolved& run = *own;
  const Representatives found = find_representatives(run);
  own->derived.pipeline = found.plan;
  const Groups groups(Mesh::from_options(run.config.parallel, run.derived.world_size), /*world_rank=*/0,
                      traced_group_factory(/*rank=*/0));
  const BuiltModel built = build_model(run, groups, at::kMeta);
  set_grad_dtype(built.parameters(), run.derived.data_parallel);
  const ModelInput input = shape_of_microbatch(run);
  UnitCosts costs{.kinds = {}, .kind_of = found.kind_of};
  const bool has_eight_bits = run.config.fp8.is_on() && !run.config.fp8.is_microscaled();
  const CostShape sample = run.kind().sample_shape(run);
  CostShape local = sample;
  local.b = run.derived.micro_batch_size;
  local.s = sample.s / run.config.parallel.context_parallel_size;
  for (size_t kind = 0; kind < built.chunks.size(); ++kind) {
    Model& chunk = *built.chunks[kind];
    UnitCost& cost = costs.kinds.emplace_back();
    cost.parameters = sum_parameters(chunk);
    if (chunk.recipe_memory() != nullptr) cost.weight_copies = chunk.recipe_memory()->weight_bytes();
    cost.blocks = measure_blocks(chunk, input, {}, /*are_layers_alike=*/false, [&](bool is_backward) {
      return std::make_shared<WorkRecorder>(is_backward ? cost.backward : cost.forward, has_eight_bits);
    });
    cost.seen_share = share_of_pairs_seen(run.config.model, found.layers[kind], sample.s) *
                      (groups.cp->size() > 1 ? blocks_left_out(chunk, local, cost.forward) : 1);
    for (const TensorSpec& spec : chunk.boundary(input.context)) {
      const int64_t bytes = c10::multiply_integers(spec.shape) * static_cast<int64_t>(c10::elementSize(spec.dtype));
      costs.boundary_bytes = std::max(costs.boundary_bytes, bytes);
    }
  }
  costs.kinds.emplace_back();  // nothing
  costs.state_bytes = state_bytes_of(run, built, groups);
  return costs;
}

std::optional<UnitCosts> extrapolate_units(const UnitCosts& one, const UnitCosts& two, int64_t micro) {
  const auto beyond = static_cast<double>(micro - 1);
  const auto sized = [&](double& first, double second) { first += beyond * (second - first); };
  const auto counted = [&](int64_t& first, int64_t second) { first += (micro - 1) * (second - first); };
  UnitCosts costs = one;
  if (one.kinds.size() != two.kinds.size()) return {};
  counted(costs.boundary_bytes, two.boundary_bytes);
  for (size_t kind = 0; kind < one.kinds.size(); ++kind) {
    UnitCost& cost = costs.kinds[kind];
    const UnitCost& other = two.kinds[kind];
    if (cost.blocks.size() != other.blocks.size()) return {};
    for (size_t i = 0; i < cost.blocks.size(); ++i) {
      counted(cost.blocks[i].kept, other.blocks[i].kept);
      counted(cost.blocks[i].peak, other.blocks[i].peak);
    }
    for (const auto& [mine, theirs] : {std::pair(&cost.forward, &other.forward),
                                       std::pair(&cost.backward, &other.backward)}) {
      if (mine->size() != theirs->size()) return {};
      for (size_t i = 0; i < mine->size(); ++i) {
        TracedWork& work = (*mine)[i];
        const TracedWork& twice = (*theirs)[i];
        if (work.kind != twice.kind || work.name != twice.name || work.count != twice.count) return {};
        sized(work.m, twice.m), sized(work.n, twice.n), sized(work.k, twice.k);
        sized(work.flops, twice.flops), sized(work.bytes, twice.bytes);
      }
    }
  }
  return costs;
}

UnitCosts measure_units(const Resolved& run) {
  std::vector<UserError> errors;  // the run's own, already told
  const auto recompute_only_modules = [](Resolved& changed) {
    if (changed.config.recompute.is_full()) changed.config.recompute = {};
  };
  std::unique_ptr<Resolved> copy = alter_run(run, recompute_only_modules, run.derived.world_size, errors);
  copy->derived = run.derived;
  return measure_units(std::move(copy));
}

}  // namespace megalith
