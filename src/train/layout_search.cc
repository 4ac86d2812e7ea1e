#include "train/layout_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <set>
#include <tuple>

#include "core/collect_errors.h"
#include "core/memo.h"
#include "core/on_threads.h"
#include "core/strings.h"
#include "train/alter_run.h"

namespace megalith {
namespace {

constexpr size_t kThreads = 2;
constexpr double kBytesOfGib = 1024.0 * 1024 * 1024;
constexpr std::string_view kRecomputeWords[] = {"none", "selective", "modules", "half", "full", "full+offload"};

LayoutRecompute after(LayoutRecompute recompute) {
  return static_cast<LayoutRecompute>(static_cast<int>(recompute) + 1);
}
constexpr LayoutRecompute kBeyond{static_cast<int>(LayoutRecompute::kOffloaded) + 1};
bool is_whole(LayoutRecompute recompute) { return recompute >= LayoutRecompute::kHalf; }

// Layouts with equal keys have equal units: whole layers are recomputed of the units that keep all.
using UnitsKey = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, LayoutRecompute, bool>;
UnitsKey units_key(const Layout& layout) {
  const LayoutRecompute modules = is_whole(layout.recompute) ? LayoutRecompute::kNone : layout.recompute;
  return {layout.tp, layout.cp, layout.ep, layout.etp, layout.micro, modules, layout.adds_eight_bits};
}

RecomputeOptions options_of(const Layout& layout, const ModelConfig& model) {
  RecomputeOptions options;
  const int64_t stage_layers = std::max<int64_t>(1, model.num_layers / (layout.pp * layout.chunks));
  switch (layout.recompute) {
    case LayoutRecompute::kNone:
      break;
    case LayoutRecompute::kModules:
      options.recompute_modules = {"core_attn", "layernorm", "mlp_act"};
      if (model.has_experts()) options.recompute_modules.emplace_back("moe_act");
      [[fallthrough]];
    case LayoutRecompute::kSelective:
      options.recompute_granularity = "selective";
      break;
    case LayoutRecompute::kHalf:
      options.recompute_granularity = "full", options.recompute_method = "block";
      options.recompute_num_layers = (stage_layers + 1) / 2;
      break;
    case LayoutRecompute::kOffloaded:
      options.cpu_offloading_num_layers = model.num_layers;
      [[fallthrough]];
    case LayoutRecompute::kFull:
      options.recompute_granularity = "full", options.recompute_method = "uniform", options.recompute_num_layers = 1;
  }
  return options;
}

// Stages as equal as can be, the embedding and the head counted as a layer.
std::string stage_layout(int64_t layers, bool has_module, int64_t stages) {
  const int64_t all = layers + 2;
  std::string text;
  for (int64_t stage = 0; stage < stages; ++stage) {
    int64_t count = all * (stage + 1) / stages - all * stage / stages;
    const bool is_first = stage == 0, is_last = stage + 1 == stages;
    count -= (is_first ? 1 : 0) + (is_last ? 1 : 0);
    if (!is_first) text += "|";
    if (is_first) text += "E";
    if (count > 0) text += fmt::format("t*{}", count);
    if (is_last) text += has_module ? "mL" : "L";
  }
  return text;
}

std::vector<int64_t> powers_to(int64_t most) {
  std::vector<int64_t> powers;
  for (int64_t power = 1; power <= most; power *= 2) powers.push_back(power);
  return powers;
}

// Without micro-batches and recomputation. What divides; the rules of options decide the rest.
std::vector<Layout> all_layouts(const Resolved& run, const Cluster& cluster) {
  constexpr int64_t kMostTensorParallel = 8, kTokensPerContextRank = 8192;
  const ModelConfig& model = run.config.model;
  const int64_t world = cluster.world_size(), batch = run.derived.global_batch_size, length = run.derived.seq_length;
  const int64_t experts = model.has_experts() ? *model.num_experts : 1;
  struct Schedule {
    std::string_view algorithm;
    int64_t chunks;
  };
  constexpr Schedule kSchedules[] = {{"1f1b", 1},         {"1f1b-interleaved", 2}, {"1f1b-interleaved", 4},
                                     {"1f1b-interleaved", 8}, {"zero-bubble", 1},  {"zbv-formatted", 2}};
  std::vector<Layout> layouts;
  for (const int64_t tp : powers_to(std::min(kMostTensorParallel, cluster.gpus_per_node))) {
    if (model.num_attention_heads % tp != 0) continue;
    for (const int64_t cp : powers_to(std::max<int64_t>(1, length / kTokensPerContextRank))) {
      for (const int64_t pp : powers_to(std::min<int64_t>(model.num_layers, 32))) {
        if (world % (tp * cp * pp) != 0) continue;
        const int64_t dp = world / (tp * cp * pp);
        if (batch % dp != 0) continue;
        for (const int64_t ep : powers_to(experts)) {
          if (experts % ep != 0 || (world / pp) % ep != 0) continue;
          for (const int64_t etp : {int64_t{1}, tp}) {
            if (etp == tp && tp > 1 && experts == 1) continue;
            if ((world / pp) % (ep * etp) != 0) continue;
            Layout layout{.tp = tp, .cp = cp, .pp = pp, .ep = ep, .etp = etp, .dp = dp};
            if (pp == 1) {
              layouts.push_back(layout);
              layout.is_fsdp = true;
              if (dp * cp > 1) layouts.push_back(layout);
            }
            for (const Schedule& schedule : kSchedules) {
              if (pp == 1 || pp * schedule.chunks > model.num_layers) continue;
              layout.algorithm = schedule.algorithm, layout.chunks = schedule.chunks;
              layout.is_fsdp = false;
              layouts.push_back(layout);
              // Others split backward, and hold whole gradients until a unit's weights have theirs.
              layout.is_fsdp = dp * cp > 1 && schedule.algorithm.starts_with("1f1b");
              if (layout.is_fsdp) layouts.push_back(layout);
            }
            if (tp == 1) break;
          }
        }
      }
    }
  }
  return layouts;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> settings_of(const Layout& layout, const Resolved& run) {
  const ModelConfig& model = run.config.model;
  const bool is_pipeline = layout.pp > 1;
  const bool is_even = model.num_layers % (layout.pp * layout.chunks) == 0 && !model.num_prediction_modules();
  const RecomputeOptions recompute = options_of(layout, model);
  const auto number = [](int64_t value) { return value > 0 ? std::to_string(value) : std::string("null"); };
  const auto word = [](bool is_on) { return std::string(is_on ? "true" : "false"); };
  std::vector<std::pair<std::string, std::string>> settings = {
      {"tensor_model_parallel_size", std::to_string(layout.tp)},
      {"sequence_parallel", word(layout.tp > 1)},
      {"context_parallel_size", std::to_string(layout.cp)},
      {"pipeline_model_parallel_size", std::to_string(layout.pp)},
      {"pp_algorithm", is_pipeline ? std::string(layout.algorithm) : "null"},
      {"num_virtual_stages_per_pipeline_rank", is_even && layout.chunks > 1 ? std::to_string(layout.chunks) : "null"},
      {"num_layers_per_virtual_pipeline_stage", "null"},
      {"decoder_first_pipeline_num_layers", "null"},
      {"decoder_last_pipeline_num_layers", "null"},
      {"pipeline_model_parallel_layout",
       is_pipeline && !is_even
           ? stage_layout(model.num_layers, model.num_prediction_modules() > 0, layout.pp * layout.chunks)
           : "null"},
      {"expert_model_parallel_size", std::to_string(layout.ep)},
      {"expert_tensor_parallel_size", model.has_experts() ? std::to_string(layout.etp) : "null"},
      {"micro_batch_size", std::to_string(layout.micro)},
      {"global_batch_size", std::to_string(run.derived.global_batch_size)},
      {"use_torch_fsdp2", word(layout.is_fsdp)},
      {"use_distributed_optimizer", word(!layout.is_fsdp)},
      {"overlap_grad_reduce", word(!layout.is_fsdp)},
      {"overlap_param_gather", word(!layout.is_fsdp)},
      {"recompute_granularity", recompute.recompute_granularity.value_or("null")},
      {"recompute_activations", "false"},
      {"recompute_method", recompute.recompute_method.value_or("null")},
      {"recompute_num_layers", number(recompute.recompute_num_layers.value_or(0))},
      {"recompute_modules", recompute.recompute_modules.empty() ? "null" : join(recompute.recompute_modules, ",")},
      {"recompute_layer_ids", "null"},
      {"cpu_offloading_num_layers", std::to_string(recompute.cpu_offloading_num_layers)},
  };
  if (layout.offloads_optimizer) settings.emplace_back("optimizer_cpu_offload", "true");
  if (layout.adds_eight_bits) {
    settings.emplace_back("fp8_format", "hybrid");
    settings.emplace_back("fp8_recipe", "tensorwise");
  }
  return settings;
}

std::string Layout::text(bool has_experts) const {
  std::string text = fmt::format("tp {} cp {} pp {}", tp, cp, pp);
  if (pp > 1) text += fmt::format(" {}{}", algorithm, chunks > 1 ? fmt::format(" x{}", chunks) : "");
  if (has_experts) text += fmt::format(" ep {} etp {}", ep, etp);
  text += fmt::format(" mbs {} {}", micro, is_fsdp ? "fsdp" : "zero-1");
  if (offloads_optimizer) text += " optimizer offloaded";
  if (adds_eight_bits) text += " fp8";
  if (recompute == LayoutRecompute::kNone) return text;
  text += fmt::format(" recompute {}", kRecomputeWords[static_cast<size_t>(recompute)]);
  return text;
}

struct KnownUnits::Measured {
  Memo<UnitsKey, std::optional<UnitCosts>> units = {};  // none: the model refuses the layout
  Memo<UnitsKey, std::optional<UnitCosts>> extrapolated = {};
};
KnownUnits::KnownUnits() : measured_(new Measured) {}
KnownUnits::~KnownUnits() = default;

namespace {

class Search {
 public:
  Search(const Resolved& run, const Cluster& cluster, KnownUnits& units, const LayoutSearchOptions& options)
      : run_(run), cluster_(cluster), units_(units), options_(options), pricer_(cluster, /*names_products=*/false) {
    std::vector<UserError> errors;
    alter_run(run, [](Resolved&) {}, run.derived.world_size, errors);
    for (const UserError& error : errors) known_.insert(error.message());
  }

  FoundLayouts find() {
    std::vector<Layout> layouts = all_layouts(run_, cluster_);
    const bool is_wide = !run_.config.fp8.is_on() && run_.derived.dtype == at::kBFloat16;
    for (size_t i = 0, all = layouts.size(); options_.with_eight_bits && is_wide && i < all; ++i) {
      layouts.push_back(layouts[i]);
      layouts.back().adds_eight_bits = true;
    }
    bound(layouts);
    found_.num_fitting = queue_.size();
    std::vector<FoundLayout>& best = found_.best;
    while (!queue_.empty() && (best.empty() || !is_past(1))) {
      auto [bounds, candidate] = std::move(*queue_.begin());
      queue_.erase(queue_.begin());
      if (best.size() >= options_.num_shown && bounds.first >= best[options_.num_shown - 1].plan.step_s) break;
      candidate.units = units_of(candidate.layout, candidate.is_allowed);
      const bool is_refused = candidate.units == nullptr || (!candidate.is_allowed && !altered(candidate.layout));
      if (is_refused || !has_room(pricer_.bounds(candidate.shape, *candidate.units))) {
        ++found_.num_refused;
        add_next(candidate);
        continue;
      }
      ++found_.num_simulated;
      FoundLayout simulated{candidate.layout, pricer_.plan(candidate.shape, *candidate.units)};
      const StepPlan& plan = simulated.plan;
      if (is_known(plan)) continue;
      found_.points.emplace_back(plan.step_s, static_cast<double>(plan.memory_bytes()));
      const auto step_s = [](const FoundLayout& one) { return one.plan.step_s; };
      best.insert(std::ranges::upper_bound(best, plan.step_s, {}, step_s), std::move(simulated));
    }
    if (best.size() > options_.num_shown) best.resize(options_.num_shown);
    return std::move(found_);
  }

 private:
  struct Candidate {
    Layout layout;
    StepShape shape;
    const UnitCosts* units = nullptr;
    bool is_allowed = false;  // by the rules; if not, they were not asked
  };
  struct Refused {};

  // Bounding may take most of the time; one layout is simulated all the same.
  bool is_past(double share_of_limit) const {
    return options_.limit && std::chrono::steady_clock::now() - begin_ >= share_of_limit * *options_.limit;
  }

  // An option that changes nothing here, such as recomputing what kernels never keep, is not another layout.
  bool is_known(const StepPlan& plan) const {
    return std::ranges::any_of(found_.best, [&](const FoundLayout& one) {
      return std::abs(one.plan.step_s - plan.step_s) < 1e-9 * plan.step_s && one.plan.state_bytes == plan.state_bytes;
    });
  }

  bool has_room(int64_t bytes) const {
    return static_cast<double>(upper_memory_bound(bytes, cluster_.chip)) <= cluster_.chip.memory_gib * kBytesOfGib;
  }

  // The run with this layout, whatever rules say of it; null if it cannot be made.
  std::unique_ptr<Resolved> altered_anyhow(const Layout& layout, std::vector<UserError>& errors) const {
    std::unique_ptr<Resolved> copy;
    collect(errors, [&] {
      copy = alter_run(
          run_,
          [&](Resolved& changed) {
            for (const auto& [name, value] : settings_of(layout, run_)) {
              changed.options->find(name)->set(value, {OptionLayer::kCommandLine, "plan"});
            }
          },
          cluster_.world_size(), errors);
    });
    return copy;
  }

  // Null if a rule forbids it.
  std::unique_ptr<Resolved> altered(const Layout& layout) const {
    std::vector<UserError> errors;
    std::unique_ptr<Resolved> copy = altered_anyhow(layout, errors);
    const auto is_old = [&](const UserError& error) { return known_.contains(error.message()); };
    return std::ranges::all_of(errors, is_old) ? std::move(copy) : nullptr;
  }

  // Null if no pipeline can be cut so.
  std::shared_ptr<const PipelinePlan> pipeline_of(const Layout& layout) {
    return pipelines_.of({layout.pp, layout.algorithm, layout.chunks}, [&]() -> std::shared_ptr<const PipelinePlan> {
      std::vector<UserError> errors;
      const Layout other{.pp = layout.pp, .chunks = layout.chunks, .algorithm = layout.algorithm};
      const auto copy = altered_anyhow(other, errors);
      if (copy == nullptr || copy->derived.pipeline.num_ranks != layout.pp) return nullptr;
      return std::make_shared<const PipelinePlan>(std::move(copy->derived.pipeline));
    });
  }

  // As settings_of() change the run; nothing if no schedule suits its microbatches.
  std::optional<StepShape> shape_of(const Layout& layout) {
    StepShape shape{.parallel = run_.config.parallel,
                    .data = data_.of(layout.is_fsdp,
                                     [&] {
                                       std::vector<UserError> errors;
                                       const auto copy = altered_anyhow({.is_fsdp = layout.is_fsdp}, errors);
                                       return copy == nullptr ? DataParallelOptions() : copy->derived.data_parallel;
                                     }),
                    .recompute = run_.config.recompute,
                    .pipeline = pipeline_of(layout),
                    .world_size = cluster_.world_size(),
                    .data_parallel_size = layout.dp,
                    .num_microbatches = run_.derived.global_batch_size / (layout.dp * layout.micro),
                    .offloaded_share = layout.offloads_optimizer ? 1 : offloaded_share_of(run_.config.optimizer)};
    if (shape.pipeline == nullptr || !check_microbatches(*shape.pipeline, shape.num_microbatches).empty()) return {};
    shape.parallel.tensor_model_parallel_size = layout.tp;
    shape.parallel.context_parallel_size = layout.cp;
    shape.parallel.pipeline_model_parallel_size = layout.pp;
    shape.parallel.expert_model_parallel_size = layout.ep;
    if (run_.config.model.has_experts()) shape.parallel.expert_tensor_parallel_size = layout.etp;
    return shape;
  }

  // As units_of(), of many samples from one and two, since measuring takes most of a search's time.
  const UnitCosts* quick_units_of(const Layout& layout, bool& is_allowed) {
    constexpr int64_t kSeveral = 4;
    if (layout.micro < kSeveral) return units_of(layout, is_allowed);
    const std::optional<UnitCosts>& units = units_.measured().extrapolated.of(units_key(layout), [&] {
      Layout one = layout, two = layout;
      one.micro = 1, two.micro = 2;
      bool is_ignored = false;
      const UnitCosts *first = units_of(one, is_ignored), *second = units_of(two, is_ignored);
      return first && second ? extrapolate_units(*first, *second, layout.micro) : std::nullopt;
    });
    return units ? &*units : units_of(layout, is_allowed);
  }

  // Null if a rule, or the model, refuses the layout. is_allowed: the rules were asked.
  const UnitCosts* units_of(const Layout& layout, bool& is_allowed) {
    try {
      const std::optional<UnitCosts>& units = units_.measured().units.of(units_key(layout), [&] {
        std::unique_ptr<Resolved> run = altered(layout);
        if (run == nullptr) throw Refused();
        is_allowed = true;
        std::vector<UserError> errors;
        std::optional<UnitCosts> measured;
        collect(errors, [&] {
          const bool is_full = run->config.recompute.is_full();
          measured = is_full ? measure_units(*run) : measure_units(std::move(run));
        });
        return measured;
      });
      return units ? &*units : nullptr;
    } catch (const Refused&) {
      return nullptr;
    }
  }

  struct Fitting {
    std::optional<Candidate> candidate;
    std::pair<double, int64_t> bounds;  // of its seconds and bytes
    size_t num_tried = 0;
    bool is_too_large = false;
  };

  bool has_room(const StepPlan& plan) const {
    const double host = cluster_.chip.host_memory_gib * kBytesOfGib;
    return has_room(plan.memory_bytes()) && static_cast<double>(plan.host_bytes) <= host;
  }

  // With the least recomputation from its own on, and before `end`, that fits: more only takes longer.
  Fitting least_recompute(Layout layout, StepShape shape, LayoutRecompute end = kBeyond) {
    Fitting found;
    for (; layout.recompute < end; layout.recompute = after(layout.recompute)) {
      ++found.num_tried;
      bool is_allowed = false;
      const UnitCosts* units = quick_units_of(layout, is_allowed);
      if (units == nullptr) continue;
      shape.recompute = options_of(layout, run_.config.model);
      const StepPlan bounds = pricer_.bounds(shape, *units);
      found.is_too_large = !has_room(bounds);
      if (found.is_too_large && !has_room(bounds.state_bytes)) break;
      if (!found.is_too_large) {
        found.bounds = {bounds.step_s, bounds.memory_bytes()};
        found.candidate = Candidate{layout, std::move(shape), units, is_allowed};
        break;
      }
      // Parts of layers keep more than their inputs do, and take longest to measure.
      const bool is_first = layout.recompute == LayoutRecompute::kNone && end == kBeyond;
      if (is_first && !fits_offloaded(layout, shape, *units)) break;
    }
    return found;
  }

  bool fits_offloaded(Layout layout, StepShape shape, const UnitCosts& units) {
    layout.recompute = LayoutRecompute::kOffloaded;
    shape.recompute = options_of(layout, run_.config.model);
    return has_room(pricer_.bounds(shape, units));
  }

  // With the optimizer's state on the host, if it asks for recomputation on the device.
  std::optional<Fitting> offloaded(Layout layout, StepShape shape, const Fitting& on_device) {
    const bool is_known = run_.config.optimizer.optimizer_cpu_offload || run_.derived.data_parallel.fsdp_cpu_offload;
    const auto& candidate = on_device.candidate;
    if (is_known || (candidate && candidate->layout.recompute == LayoutRecompute::kNone)) return {};
    layout.offloads_optimizer = true;
    shape.offloaded_share = 1;
    return least_recompute(layout, std::move(shape), candidate ? candidate->layout.recompute : kBeyond);
  }

  // A layout with every micro-batch. Once none fits, larger micro-batches hold more still.
  std::vector<Fitting> fit(Layout layout) {
    constexpr int64_t kMostMicro = 8;
    const int64_t batch = run_.derived.global_batch_size;
    std::vector<Fitting> all;
    for (const int64_t micro : powers_to(std::min(kMostMicro, batch / layout.dp))) {
      if (batch % (layout.dp * micro) != 0 || is_past(0.7)) continue;
      layout.micro = micro;
      std::optional<StepShape> shape = shape_of(layout);
      if (!shape) continue;
      all.push_back(least_recompute(layout, *shape));
      std::optional<Fitting> on_host = offloaded(layout, std::move(*shape), all.back());
      const bool is_too_large = all.back().is_too_large && (!on_host || on_host->is_too_large);
      if (on_host) all.push_back(std::move(*on_host));
      if (is_too_large) break;
    }
    return all;
  }

  void bound(const std::vector<Layout>& layouts) {
    std::vector<std::vector<Fitting>> fitting(layouts.size());
    for_each_on_threads(layouts.size(), kThreads, [&](size_t i) { fitting[i] = fit(layouts[i]); });
    for (auto& of_layout : fitting) {
      for (Fitting& one : of_layout) add(std::move(one));
    }
  }

  void add(Fitting one) {
    found_.num_tried += one.num_tried;
    if (one.candidate) queue_.emplace(one.bounds, std::move(*one.candidate));
  }

  // A refused layout with more recomputation, if any.
  void add_next(const Candidate& refused) {
    if (refused.layout.recompute == LayoutRecompute::kOffloaded) return;
    Layout next = refused.layout;
    next.recompute = after(next.recompute);
    add(least_recompute(next, refused.shape));
  }

  const Resolved& run_;
  const Cluster& cluster_;
  KnownUnits& units_;
  const LayoutSearchOptions& options_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  StepPricer pricer_;
  std::set<std::string> known_;  // errors of the run itself
  Memo<std::tuple<int64_t, std::string_view, int64_t>, std::shared_ptr<const PipelinePlan>> pipelines_;
  Memo<bool, DataParallelOptions> data_;
  std::multimap<std::pair<double, int64_t>, Candidate> queue_;  // by lower bounds of seconds and bytes
  FoundLayouts found_;
};

}  // namespace

FoundLayouts find_layouts(const Resolved& run, const Cluster& cluster, KnownUnits& units,
                          const LayoutSearchOptions& options) {
  return Search(run, cluster, units, options).find();
}

bool is_searchable(const Resolved& run) {
  std::set<std::string> stacks;
  for (const Unit& unit : run.derived.pipeline.units) {
    if (unit.letter == UnitLetter::kLayer) stacks.insert(unit.kind);
  }
  return stacks.size() == 1;
}

std::string suggested_layout(const Resolved& run, const std::string& gpu, const std::filesystem::path& config_root) {
  constexpr double kMuchFaster = 1.25;
  const bool is_asked = run.config.log.suggest_layout && !config_root.empty() && run.derived.world_size > 1;
  const auto chip = is_asked && is_searchable(run) ? find_chip(gpu, config_root) : std::nullopt;
  const auto cluster = chip ? cluster_of(*chip, run.derived.world_size) : std::nullopt;
  if (!cluster) return "";
  KnownUnits units;
  const FoundLayouts found = find_layouts(run, *cluster, units, {.num_shown = 1, .limit = std::chrono::seconds(1)});
  if (found.best.empty()) return "";
  const FoundLayout& best = found.best.front();
  const double times = plan_step(run, measure_units(run), *cluster).step_s / best.plan.step_s;
  if (times < kMuchFaster) return "";
  std::string text = fmt::format("another layout is planned to be {:.1f} times as fast on {}:", times, cluster->text());
  for (const auto& [name, value] : settings_of(best.layout, run)) {
    const Option* option = run.options->find(name);
    if ((value == "null" ? option->default_text() : value) != option->text()) {
      text += fmt::format(" --{} {}", name, value);
    }
  }
  return text + "; plan --search says why (--suggest_layout false: no such line)";
}

}  // namespace megalith
