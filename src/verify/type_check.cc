#include "verify/type_check.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "comm/fake_group.h"
#include "core/error.h"
#include "optim/update_rules.h"
#include "parallel/data_parallel_options.h"
#include "train/activation_report.h"
#include "train/build_units.h"
#include "train/step_units.h"

namespace megalith {
namespace {

// A rank's units of each kind, as chunks of its own.
struct StageUnits {
  std::vector<UnitRange> units;
  std::vector<std::string> names;
};

StageUnits units_of_stage(const Resolved& run, int place) {
  const PipelinePlan& whole = run.derived.pipeline;
  const PipelineShape shape = whole.shape(1);
  StageUnits found;
  std::set<size_t> kinds;
  for (const UnitOfKind& unit : kinds_of_units(run)) {
    for (size_t stage = 0; stage < whole.stages.size(); ++stage) {
      const UnitRange& range = whole.stages[stage];
      const bool is_here = unit.range.first >= range.first && unit.range.first < range.end();
      if (!is_here || shape.rank_of(narrow<int>(stage)) != place || !kinds.insert(unit.kind).second) continue;
      found.units.push_back(unit.range);
      found.names.push_back(whole.units[static_cast<size_t>(unit.range.first)].name);
    }
  }
  return found;
}

// Pipeline ranks that show all kinds of units, and every holder of what several of them hold.
std::vector<int> places_to_check(const Resolved& run) {
  const PipelinePlan& whole = run.derived.pipeline;
  const PipelineShape shape = whole.shape(1);
  std::set<int> places = {0};
  for (const auto& [parameter, holders] : whole.parameter_holders()) places.insert(holders.begin(), holders.end());
  std::set<size_t> seen;
  for (const UnitOfKind& unit : kinds_of_units(run)) {
    for (size_t stage = 0; stage < whole.stages.size(); ++stage) {
      const UnitRange& range = whole.stages[stage];
      if (unit.range.first < range.first || unit.range.first >= range.end()) continue;
      if (seen.insert(unit.kind).second) places.insert(shape.rank_of(narrow<int>(stage)));
    }
  }
  return {places.begin(), places.end()};
}

bool holds_nothing(const Placement& placement) {
  return std::all_of(placement.pieces.begin(), placement.pieces.end(),
                     [](const Piece& piece) { return piece.canonical.is_empty(); });
}

// How two ranks' parts of a parameter differ; kNone if they are equal.
WeightCut difference_of(const Placement& own, const Placement& other) {
  if (own.pieces.size() != other.pieces.size()) return WeightCut::kPieces;
  for (size_t i = 0; i < own.pieces.size(); ++i) {
    const Piece &a = own.pieces[i], &b = other.pieces[i];
    if (a.name != b.name) return WeightCut::kPieces;
    for (size_t d = 0; d < a.shape.size(); ++d) {
      if (a.canonical.offset[d] == b.canonical.offset[d] && a.canonical.extent[d] == b.canonical.extent[d]) continue;
      const size_t local = a.other_dim(d);
      const bool is_stacked = a.shape.size() == 3;
      const bool is_bias = own.local_shape.size() == 1 || a.name.ends_with("_bias");  // those of experts: a table
      if (is_bias || (is_stacked && local == 0)) return WeightCut::kPieces;
      return local == (is_stacked ? 1 : 0) ? WeightCut::kRows : WeightCut::kColumns;
    }
  }
  return WeightCut::kNone;
}

// An operator without shapes, or a mistake that changes them.
UserError not_followed(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  return UserError(fmt::format("types of this configuration are not followed yet: {}",
                               of_torch == nullptr ? error.what() : of_torch->what_without_backtrace()),
                   "doctor --parallel checks its layout with numbers");
}

class StageCheck {
 public:
  using TravellingTypes = std::map<std::string, Distribution>;

  StageCheck(const Resolved& run, const TypeHooks& hooks, const Mesh& mesh, int place, TypeReport& report,
             TravellingTypes& travelling)
      : run_(run),
        hooks_(hooks),
        mesh_(mesh),
        rank_(mesh.rank_at(0, 0, 0, place)),
        axes_(mesh, rank_),
        units_(units_of_stage(run, place)),
        groups_(make_groups(rank_, TypeWatch::group_factory(axes_, rank_))),
        built_(build(groups_)),
        data_(make_data(built_, groups_)),
        watch_(axes_),
        report_(report),
        travelling_(travelling) {}

  void run() {
    try {
      add_parameters();
      pass();
      finish();
    } catch (const std::exception& error) {
      if (watch_.findings().empty()) throw not_followed(error);
    }
    add_to_report();
  }

 private:
  Groups make_groups(int rank, const GroupFactory& factory) const {
    Groups groups(mesh_, rank, factory);
    if (hooks_.change_groups) hooks_.change_groups(groups);
    return groups;
  }

  BuiltModel build(const Groups& groups) const {
    BuiltModel built = build_units(run_, groups, units_.units, run_.derived.pipeline.parameter_holders());
    for (const auto& chunk : built.chunks) {
      if (hooks_.change_model) hooks_.change_model(*chunk, groups);
    }
    return built;
  }

  std::unique_ptr<DataParallel> make_data(const BuiltModel& built, const Groups& groups) const {
    std::vector<Block> blocks;
    for (const auto& chunk : built.chunks) blocks.insert(blocks.end(), chunk->blocks().begin(), chunk->blocks().end());
    DataParallelOptions options = run_.derived.data_parallel;
    options.main_grads_dtype = GradDtype::kFp32;
    options.fsdp_cpu_offload = false;
    return make_data_parallel(built.parameters(), groups, options, blocks, at::kMeta,
                              bucket_cut(run_.config.optimizer));
  }

  AxisBits equal_axes(const Placement& placement) const {
    return axes_.of(placement.replica_axes) | axes_.of(placement.partial_axes);
  }

  // A parameter's type is what its Placement says, and must be what the next rank's says of it.
  void add_parameters() {
    const std::vector<Parameter*> own = built_.parameters();
    std::vector<Distribution> types(own.size());
    for (size_t i = 0; i < own.size(); ++i) {
      const int place = watch_.make_place("the Placement of " + own[i]->name());
      types[i].set(axes_.all(), Spread::kVarying, place);
      types[i].set(equal_axes(own[i]->placement()), Spread::kSame, place);
      const Placement& placement = own[i]->placement();
      const AxisBits stray = axes_.of(placement.partial_axes) & ~axes_.of(placement.replica_axes);
      for (int axis = 0; axis < kMostTypeAxes; ++axis) {
        if (((stray >> axis) & 1U) == 0) continue;
        watch_.tell(axis, "gradients are summed over ranks that are no replicas", place, place);
      }
    }
    for (int axis = 0; axis < axes_.count(); ++axis) {
      const int other_rank = axes_.neighbour(axis);
      const Groups others(mesh_, other_rank, fake_group_factory(other_rank));
      const BuiltModel other = build(others);
      const std::vector<Parameter*> theirs = other.parameters();
      MEGALITH_CHECK(theirs.size() == own.size(), "ranks with {} and {} parameters", own.size(), theirs.size());
      for (size_t i = 0; i < own.size(); ++i) {
        const auto a = static_cast<size_t>(axis);
        const Placement& mine = own[i]->placement();
        const WeightCut cut = difference_of(mine, theirs[i]->placement());
        const int place = types[i].place[a];
        const int there = watch_.make_place(fmt::format("the Placement of rank {}", other_rank));
        types[i].cut[a] = cut;
        if (types[i].spread[a] == Spread::kSame && cut != WeightCut::kNone) {
          watch_.tell(axis, "a Placement says the same on all ranks, and the next rank holds other elements", place,
                      there);
        }
        const bool holds = !holds_nothing(mine) || !holds_nothing(theirs[i]->placement());
        if (types[i].spread[a] == Spread::kVarying && cut == WeightCut::kNone && holds) {
          watch_.tell(axis, "a Placement says each rank's own, and the next rank holds the same elements", place,
                      there);
        }
        if (types[i].spread[a] == Spread::kSame) types[i].cut[a] = WeightCut::kNone;
      }
    }
    for (size_t i = 0; i < own.size(); ++i) watch_.add_parameter(*own[i], types[i]);
  }

  // ---- The passes ----

  void give_input(const at::Tensor& tensor, bool is_of_tp = false) {
    if (!tensor.defined()) return;
    Distribution type;
    type.set(axes_.all(), Spread::kVarying, 0);
    if (!is_of_tp) type.set(axes_.of(Axis::kTp), Spread::kSame, 0);
    watch_.set(tensor, type);
  }

  ModelInput make_input() {
    ModelInput input = shape_of_microbatch(run_);
    const ops::AttentionMask& mask = input.context.mask;
    for (const at::Tensor& tensor :
         {input.tokens, input.labels, input.loss_weights, input.context.position_ids, input.context.row_ids,
          mask.query_positions, mask.key_positions, mask.query_documents, mask.key_documents, mask.key_lengths}) {
      give_input(tensor);
    }
    for (const auto& [name, tensor] : input.more.tensors) give_input(tensor);
    const size_t num_terms = make_task(run_)->loss_names().size();
    input.terms.resize(std::max<size_t>(num_terms, 1));
    return input;
  }

  struct Passed {
    Bundle received;
    ModelOutput output;
  };

  void pass() {
    const BlockRunners runners = set_block_runners(built_, *data_, at::kMeta);
    const ModelInput input = make_input();
    data_->begin_step();
    data_->begin_microbatch(/*is_last=*/true);
    const at::AutoGradMode record(true);
    std::vector<Passed> passed;
    for (size_t i = 0; i < built_.chunks.size(); ++i) {
      watch_.enter(units_.names[i]);
      passed.push_back(forward(*built_.chunks[i], input));
    }
    while (!passed.empty()) {
      watch_.enter("backward of " + units_.names[passed.size() - 1]);
      backward(passed.back().output);
      passed.pop_back();
    }
    watch_.enter("");
    for (const auto& chunk : built_.chunks) chunk->set_runner(nullptr);
  }

  Passed forward(Model& chunk, const ModelInput& input) {
    Passed one;
    for (const TensorSpec& spec : chunk.boundary(input.context)) {
      const at::Tensor tensor =
          at::empty(spec.shape, at::TensorOptions(at::kMeta).dtype(spec.dtype)).set_requires_grad(true);
      const auto known = travelling_.find(spec.name);
      const auto instead = known == travelling_.end() ? travelling_.begin() : known;
      if (instead != travelling_.end()) watch_.set(tensor, received(instead->second, spec.name));
      watch_.expect_gradient(tensor);
      one.received.set(spec.name, tensor);
    }
    one.output = chunk.forward(input, one.received, HeadOutput::kLoss);
    for (const auto& [name, tensor] : one.output.boundary.tensors) {
      watch_.expect_gradient(tensor);
      compare_with_earlier(name, watch_.of(tensor));
    }
    for (const LossTerm& term : one.output.terms) {
      if (term.objective.defined()) check_objective(term.name, watch_.of(term.objective));
      check_reported(term.name, watch_.of(term.sum));
    }
    return one;
  }

  Distribution received(Distribution type, const std::string& name) {
    const int place = watch_.make_place("what the layer before gives as " + name);
    type.place.fill(place);
    return type;
  }

  // Every layer reads what the others give.
  void compare_with_earlier(const std::string& name, const Distribution& type) {
    const auto [earlier, is_new] = travelling_.try_emplace(name, type);
    if (is_new) return;
    for (int axis = 0; axis < axes_.count(); ++axis) {
      const auto i = static_cast<size_t>(axis);
      const Spread before = earlier->second.spread[i], now = type.spread[i];
      const bool fits = before == now || (is_equal(before) && is_equal(now));
      if (fits || before == Spread::kAny || now == Spread::kAny) continue;
      watch_.tell(axis, fmt::format("'{}' is {} here and {} elsewhere", name, text_of(now), text_of(before)),
                  type.place[i], watch_.make_place("other layers"));
    }
  }

  // Each data-parallel rank has the loss of its own tokens, and tensor-parallel ranks have one.
  void check_objective(const std::string& name, const Distribution& type) {
    const AxisBits tp = axes_.of(Axis::kTp);
    for (int axis = 0; axis < axes_.count(); ++axis) {
      const auto i = static_cast<size_t>(axis);
      if (type.spread[i] == Spread::kAny) continue;
      const bool is_tp = ((tp >> axis) & 1U) != 0, is_same = is_equal(type.spread[i]);
      // Ranks with some of the tokens may each start from their summand.
      if (is_tp == is_same || (is_tp && type.spread[i] == Spread::kPartial)) continue;
      watch_.tell(axis,
                  is_tp ? "the loss differs between ranks that share its tokens: a sum over them is missing"
                        : "the loss of ranks with different tokens is the same before gradients are summed",
                  type.place[i], watch_.make_place("the objective " + name));
    }
  }

  void check_reported(const std::string& name, const Distribution& type) {
    for (int axis = 0; axis < axes_.count(); ++axis) {
      const auto i = static_cast<size_t>(axis);
      if (((axes_.of(Axis::kTp) >> axis) & 1U) == 0 || !differs(type.spread[i])) continue;
      watch_.tell(axis, "the loss that is reported differs between ranks that share its tokens", type.place[i],
                  watch_.make_place("the sum of " + name));
    }
  }

  void backward(const ModelOutput& output) {
    std::vector<at::Tensor> roots, gradients;
    for (const auto& [name, tensor] : output.boundary.tensors) {
      if (!tensor.requires_grad()) continue;
      Distribution type = watch_.of(tensor);
      const int place = watch_.make_place("the gradient from the next layer");
      for (size_t axis = 0; axis < kMostTypeAxes; ++axis) {
        if (type.spread[axis] == Spread::kPartial) type.spread[axis] = Spread::kSame;
        type.place[axis] = place;
      }
      roots.push_back(tensor);
      gradients.push_back(at::empty_like(tensor, tensor.options().requires_grad(false)));
      watch_.set(gradients.back(), type);
    }
    for (const LossTerm& term : output.terms) {
      if (!term.objective.defined() || !term.objective.requires_grad()) continue;
      roots.push_back(term.objective);
      gradients.push_back(at::ones({}, term.objective.options().requires_grad(false)));
    }
    if (!roots.empty()) torch::autograd::backward(roots, gradients);
  }

  // ---- Data parallelism ----

  void finish() {
    watch_.enter("data parallelism");
    for (Parameter* parameter : built_.parameters()) {
      const bool is_on_stages = ((equal_axes(parameter->placement()) >> kPipelineAxis) & 1U) != 0;
      if (!is_on_stages || !parameter->has_grad_buffer()) continue;
      watch_.set_axis(parameter->grad(), kPipelineAxis, Spread::kPartial,
                      "this stage's uses of " + parameter->name());
    }
    data_->finish_step();
    for (const OwnedPart& part : data_->parts()) check_update(part);
    check_publishing();
  }

  // Each rank has written its parts: what they share with others must come back whole.
  void check_publishing() {
    watch_.enter("distribution of the parameters");
    for (const OwnedPart& part : data_->parts()) {
      if (!part.range || run_.derived.data_parallel.use_torch_fsdp2) return;
      const AxisBits divided =
          axes_.of(part.parameter->placement().replica_axes) & ~axes_.of(part.replica_axes);
      Distribution type = watch_.of(part.model);
      type.set(divided, Spread::kVarying, watch_.make_place("the update of " + part.parameter->name()));
      watch_.set(part.model, type);
    }
    data_->publish();
    data_->wait_for_parameters();
    for (const OwnedPart& part : data_->parts()) {
      const Parameter& parameter = *part.parameter;
      const Distribution type = watch_.of(parameter.data());
      const AxisBits replicas = axes_.of(parameter.placement().replica_axes);
      for (int axis = 0; axis < axes_.count(); ++axis) {
        const auto i = static_cast<size_t>(axis);
        if (((replicas >> axis) & 1U) == 0 || !differs(type.spread[i])) continue;
        watch_.tell(axis, "a parameter that ranks share is not gathered after its update", type.place[i],
                    watch_.make_place("the value of " + parameter.name()));
      }
    }
  }

  void check_update(const OwnedPart& part) {
    const Parameter& parameter = *part.parameter;
    const AxisBits replicas = equal_axes(parameter.placement());
    const AxisBits divided = replicas & ~axes_.of(part.replica_axes);
    const Distribution type = watch_.of(part.grad);
    const int place = watch_.make_place("the update of " + parameter.name());
    bool is_known = false;
    for (int axis = 0; axis < kMostTypeAxes; ++axis) {
      const auto i = static_cast<size_t>(axis);
      const Spread came = type.spread[i];
      is_known = is_known || came != Spread::kAny;
      const bool is_replica = ((replicas >> axis) & 1U) != 0;
      const bool is_divided = ((divided >> axis) & 1U) != 0 && axis != kPipelineAxis;
      if (is_replica && (came == Spread::kPartial || (differs(came) && !is_divided))) {
        watch_.tell(axis, "a gradient is not summed over ranks that hold the same parameter", type.place[i], place);
      } else if (axis != kPipelineAxis && !is_replica && came == Spread::kPartial) {
        watch_.tell(axis, "the gradient of a rank's part of a parameter is a summand", type.place[i], place);
      }
    }
    if (is_known) watch_.count_parameter();
  }

  void add_to_report() {
    report_.findings.insert(report_.findings.end(), watch_.findings().begin(), watch_.findings().end());
    const TypeCounts& counts = watch_.counts();
    report_.counts.operators += counts.operators;
    report_.counts.collectives += counts.collectives;
    report_.counts.gradients += counts.gradients;
    report_.counts.parameters += counts.parameters;
    report_.num_stages += 1;
    report_.num_units += narrow<int>(std::ssize(units_.names));
  }

  const Resolved& run_;
  const TypeHooks& hooks_;
  const Mesh& mesh_;
  const int rank_;
  const TypeAxes axes_;
  const StageUnits units_;
  const Groups groups_;
  const BuiltModel built_;
  const std::unique_ptr<DataParallel> data_;
  TypeWatch watch_;
  TypeReport& report_;
  TravellingTypes& travelling_;
};

}  // namespace

TypeReport check_types(const Resolved& run, const TypeHooks& hooks) {
  const Mesh mesh = Mesh::from_options(run.config.parallel, run.derived.world_size);
  const TypeAxes axes(mesh, /*rank=*/0);
  TypeReport report;
  for (int axis = 0; axis < axes.count(); ++axis) {
    report.axes.push_back(fmt::format("{} {}", axes.name(axis), axes.size(axis)));
  }
  if (mesh.size(Axis::kPp) > 1) report.axes.push_back(fmt::format("pp {}", mesh.size(Axis::kPp)));
  StageCheck::TravellingTypes travelling;
  for (const int place : places_to_check(run)) StageCheck(run, hooks, mesh, place, report, travelling).run();
  return report;
}

std::vector<UserError> type_errors(const Resolved& run, const TypeHooks& hooks) {
  std::vector<UserError> errors;
  try {
    for (const TypeFinding& finding : check_types(run, hooks).findings) {
      errors.push_back(UserError(fmt::format("check_types: distributions do not fit\n{}", finding.text())));
    }
  } catch (const UserError& error) {
    errors.push_back(error);
  }
  return errors;
}

}  // namespace megalith
