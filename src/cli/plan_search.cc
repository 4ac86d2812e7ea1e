// megalith plan --cluster … --search: the fastest layouts of a model on a cluster.
//
// Rules prune first (those of train/config.h), then memory; the schedules of what is left are simulated, best lower
// bound of the step's time first, until no bound is below the tenth best time.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "cli/plan_cluster.h"
#include "cli/print.h"
#include "core/collect_errors.h"
#include "core/file.h"
#include "core/json.h"
#include "core/on_threads.h"
#include "core/output_file.h"
#include "core/strings.h"
#include "metrics/svg_plot.h"
#include "train/alter_run.h"

namespace megalith {
namespace {

constexpr size_t kShown = 10, kThreads = 2;
constexpr std::string_view kParetoMark = "aria-label=\"Layouts\"";

enum class Recompute { kNone, kSelective, kFull };
constexpr std::string_view kRecomputeWords[] = {"null", "selective", "full"};

struct Layout {
  int64_t tp = 1, cp = 1, pp = 1, ep = 1, etp = 1, dp = 1, micro = 1, chunks = 1;
  std::string_view algorithm = "1f1b";
  bool is_fsdp = false;
  Recompute recompute = Recompute::kNone;

  // Layouts with equal keys have equal units.
  auto units_key() const { return std::tuple(tp, cp, ep, etp, micro, recompute == Recompute::kSelective); }
};

using LayoutSetting = std::pair<std::string, std::string>;  // option and value

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

std::vector<LayoutSetting> settings_of(const Layout& layout, const Resolved& run) {
  const ModelConfig& model = run.config.model;
  const bool is_pipeline = layout.pp > 1;
  const bool is_even = model.num_layers % (layout.pp * layout.chunks) == 0 && !model.num_prediction_modules();
  const bool is_full = layout.recompute == Recompute::kFull;
  const auto word = [](bool is_on) { return std::string(is_on ? "true" : "false"); };
  std::vector<LayoutSetting> settings = {
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
      {"recompute_granularity", std::string(kRecomputeWords[static_cast<size_t>(layout.recompute)])},
      {"recompute_activations", "false"},
      {"recompute_method", is_full ? "uniform" : "null"},
      {"recompute_num_layers", is_full ? "1" : "null"},
  };
  return settings;
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
              layouts.push_back(layout);
            }
            if (tp == 1) break;
          }
        }
      }
    }
  }
  return layouts;
}

struct Candidate {
  Layout layout;
  std::unique_ptr<Resolved> run;
  const UnitCosts* units = nullptr;
  StepPlan plan;  // its bounds, then the simulated one
};

// Units of all layouts that searches met, whatever their clusters.
class KnownUnits {
 public:
  // Null if the model refuses the layout.
  const UnitCosts* of(const Layout& layout, const Resolved& run) {
    Slot* slot = nullptr;
    {
      const std::lock_guard lock(mutex_);
      slot = &slots_[layout.units_key()];
    }
    std::call_once(slot->once, [&] {
      std::vector<UserError> errors;
      collect(errors, [&] { slot->units = measure_units(run); });
    });
    return slot->units ? &*slot->units : nullptr;
  }

 private:
  struct Slot {
    std::once_flag once;
    std::optional<UnitCosts> units;
  };
  std::mutex mutex_;
  std::map<decltype(Layout().units_key()), Slot> slots_;
};

class Search {
 public:
  Search(const Resolved& run, const Cluster& cluster, KnownUnits& units)
      : run_(run), cluster_(cluster), units_(units) {
    std::vector<UserError> errors;
    alter_run(run, [](Resolved&) {}, run.derived.world_size, errors);
    for (const UserError& error : errors) known_.insert(error.message());
  }

  // Fastest first.
  std::vector<Candidate> find() {
    std::vector<Candidate> candidates = bound(all_layouts(run_, cluster_));
    num_fitting = candidates.size();
    std::ranges::sort(candidates, {},
                      [](const Candidate& one) { return std::pair(one.plan.step_s, one.plan.memory_bytes()); });
    // An option that changes nothing here, such as recomputing what kernels never keep, is not another layout.
    const auto is_known = [](const std::vector<Candidate>& best, const StepPlan& plan) {
      return std::ranges::any_of(best, [&](const Candidate& one) {
        return std::abs(one.plan.step_s - plan.step_s) < 1e-9 * plan.step_s && one.plan.state_bytes == plan.state_bytes;
      });
    };
    std::vector<Candidate> best;
    for (Candidate& one : candidates) {
      if (best.size() >= kShown && one.plan.step_s >= best[kShown - 1].plan.step_s) break;
      ++num_simulated;
      one.plan = plan_step(*one.run, *one.units, cluster_);
      if (is_known(best, one.plan)) continue;
      points.emplace_back(one.plan.step_s, static_cast<double>(one.plan.memory_bytes()) / kBytesOfGib);
      best.insert(std::ranges::upper_bound(best, one.plan.step_s, {}, [](const Candidate& a) { return a.plan.step_s; }),
                  std::move(one));
    }
    if (best.size() > kShown) best.resize(kShown);
    return best;
  }

  size_t num_layouts = 0, num_allowed = 0, num_fitting = 0, num_simulated = 0;
  std::vector<std::pair<double, double>> points;  // seconds and GiB of what was simulated

 private:
  bool has_room(const StepPlan& plan) const {
    return static_cast<double>(upper_memory_bound(plan.memory_bytes())) <= cluster_.chip.memory_gib * kBytesOfGib;
  }

  // Null if a rule forbids it.
  std::unique_ptr<Resolved> altered(const Layout& layout) const {
    std::vector<UserError> errors;
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
    const auto is_old = [&](const UserError& error) { return known_.contains(error.message()); };
    return std::ranges::all_of(errors, is_old) ? std::move(copy) : nullptr;
  }

  struct Fitting {
    std::vector<Candidate> candidates;
    size_t num_tried = 0, num_allowed = 0;
  };

  // A layout with every micro-batch and the least recomputation that fits: more only takes longer. Once none fits,
  // larger micro-batches hold more still.
  Fitting fit(Layout layout) const {
    constexpr int64_t kMostMicro = 8;
    const int64_t batch = run_.derived.global_batch_size;
    Fitting found;
    for (const int64_t micro : powers_to(std::min(kMostMicro, batch / layout.dp))) {
      if (batch % (layout.dp * micro) != 0) continue;
      layout.micro = micro;
      const size_t allowed_before = found.num_allowed, fitting_before = found.candidates.size();
      for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
        layout.recompute = recompute;
        ++found.num_tried;
        auto copy = altered(layout);
        const UnitCosts* units = copy == nullptr ? nullptr : units_.of(layout, *copy);
        if (units == nullptr) continue;
        ++found.num_allowed;
        StepPlan bounds = plan_bounds(*copy, *units, cluster_);
        if (!has_room(bounds)) continue;
        found.candidates.push_back({layout, std::move(copy), units, std::move(bounds)});
        break;
      }
      if (found.num_allowed > allowed_before && found.candidates.size() == fitting_before) break;
    }
    return found;
  }

  std::vector<Candidate> bound(const std::vector<Layout>& layouts) {
    std::vector<Fitting> fitting(layouts.size());
    for_each_on_threads(layouts.size(), kThreads, [&](size_t i) { fitting[i] = fit(layouts[i]); });
    std::vector<Candidate> all;
    for (Fitting& one : fitting) {
      num_layouts += one.num_tried, num_allowed += one.num_allowed;
      std::ranges::move(one.candidates, std::back_inserter(all));
    }
    return all;
  }

  const Resolved& run_;
  const Cluster& cluster_;
  KnownUnits& units_;
  std::set<std::string> known_;
};

// The causes that cost most against the first: "+0.31 s bubble, +0.12 s tp over the link".
std::string reason_behind(const StepPlan& first, const StepPlan& plan) {
  std::map<std::string, double> more;
  for (const auto& [name, seconds] : causes_of(plan)) more[name] += seconds;
  for (const auto& [name, seconds] : causes_of(first)) more[name] -= seconds;
  std::vector<std::pair<std::string, double>> sorted(more.begin(), more.end());
  std::ranges::sort(sorted, std::greater<>(), &std::pair<std::string, double>::second);
  std::vector<std::string> parts;
  for (const auto& [name, seconds] : sorted) {
    if (parts.size() < 2 && seconds > 0.001 * first.step_s) parts.push_back(fmt::format("+{:.3g} s {}", seconds, name));
  }
  return parts.empty() ? "equal" : join(parts, ", ");
}

// The person's words without plan's own, then the layout's.
std::string command_line(const CommandContext& context, const Layout& layout, const Resolved& run,
                         const OptionSet& own) {
  std::string text = "megalith train";
  const std::vector<LayoutSetting> settings = settings_of(layout, run);
  for (size_t i = 0; i < context.arguments.size(); ++i) {
    const std::string& word = context.arguments[i];
    const std::string name = word.starts_with("--") ? fold_name(word.substr(2, word.find('=') - 2)) : "";
    const Option* option = name.empty() ? nullptr : own.find(name);
    const bool is_replaced = std::ranges::any_of(settings, [&](const LayoutSetting& one) { return one.first == name; });
    if (option == nullptr && !is_replaced) {
      text += " " + word;
      continue;
    }
    const bool has_value = i + 1 < context.arguments.size() && !context.arguments[i + 1].starts_with("--");
    if (word.find('=') == std::string::npos && has_value) ++i;
  }
  for (const auto& [name, value] : settings) {
    const Option* option = run.options->find(name);
    if (value != option->default_text() && value != "null") text += fmt::format(" --{} {}", name, value);
  }
  return text;
}

std::string short_text(const Layout& layout, bool has_experts) {
  std::string text = fmt::format("tp {} cp {} pp {}", layout.tp, layout.cp, layout.pp);
  if (layout.pp > 1) text += fmt::format(" {}{}", layout.algorithm, layout.chunks > 1 ? fmt::format(" x{}", layout.chunks) : "");
  if (has_experts) text += fmt::format(" ep {} etp {}", layout.ep, layout.etp);
  text += fmt::format(" mbs {} {}", layout.micro, layout.is_fsdp ? "fsdp" : "zero-1");
  if (layout.recompute != Recompute::kNone) {
    text += fmt::format(" recompute {}", kRecomputeWords[static_cast<size_t>(layout.recompute)]);
  }
  return text;
}

void write_pareto(const std::string& file, const Search& search, const std::vector<Candidate>& best) {
  PlotSeries all{.name = "simulated", .x = {}, .y = {}, .has_markers = true}, front{.name = "no other is better in both", .x = {}, .y = {}, .has_markers = true};
  std::vector<std::pair<double, double>> points = search.points;
  std::ranges::sort(points);
  double least = HUGE_VAL;
  for (const auto& [seconds, gib] : points) {
    all.x.push_back(gib), all.y.push_back(seconds);
    if (gib >= least) continue;
    least = gib;
    front.x.push_back(gib), front.y.push_back(seconds);
  }
  write_file_atomic(file, render_svg_plot({.title = "Layouts", .subtitle = fmt::format("the fastest takes {:.3g} s", best.front().plan.step_s),
                                           .x_label = "memory of a rank, GiB", .y_label = "step, s"},
                                          {all, front}));
}

}  // namespace

void search_layouts(CommandContext& context, const Resolved& run, const Cluster& cluster,
                    const PlanClusterOptions& options) {
  std::set<std::string> stacks;
  for (const Unit& unit : run.derived.pipeline.units) {
    if (unit.letter == UnitLetter::kLayer) stacks.insert(unit.kind);
  }
  if (stacks.size() > 1) {
    throw UserError("--search knows models of one stack of layers",
                    fmt::format("leave --search out to plan this layout; the stacks are {}", fmt::join(stacks, ", ")));
  }
  if (options.pareto_file) {
    auto taken = check_replaceable("pareto_file", *options.pareto_file, kParetoMark, run.config.checkpoint.overwrite);
    if (taken) throw std::move(*taken);
  }
  KnownUnits units;
  Search search(run, cluster, units);
  const std::vector<Candidate> best = search.find();
  if (best.empty()) {
    throw UserError(fmt::format("none of {} layouts runs this model on {}: rules leave {}, memory {}", search.num_layouts,
                                cluster.text(), search.num_allowed, search.num_fitting),
                    "give more nodes, or a global_batch_size that more data-parallel sizes divide");
  }
  const StepPlan& first = best.front().plan;
  PlanClusterOptions names;
  OptionSet own(names);
  const double tokens = tokens_of_step(run);
  OrderedJson rows = OrderedJson::array();
  if (!options.json) {
    print_out("cluster    {}, rates of {}\n", cluster.text(), cluster.file.string());
    print_out("layouts    {}: {} allowed, {} fit, {} simulated\n\n", search.num_layouts, search.num_allowed,
              search.num_fitting, search.num_simulated);
    print_out("{:>2}  {:<58} {:>9} {:>10} {:>9}  {}\n", "", "layout", "step", "tok/s/GPU", "memory", "behind the first");
  }
  for (size_t i = 0; i < best.size(); ++i) {
    const Candidate& one = best[i];
    const std::string text = short_text(one.layout, run.config.model.has_experts());
    const double rate = tokens / one.plan.step_s / static_cast<double>(cluster.world_size());
    const std::string behind = i == 0 ? "" : reason_behind(first, one.plan);
    if (options.json) {
      rows.push_back({{"layout", text},
                      {"step_s", one.plan.step_s},
                      {"tokens_per_s_gpu", rate},
                      {"memory_bytes", one.plan.memory_bytes()},
                      {"behind", behind},
                      {"command", command_line(context, one.layout, run, own)}});
      continue;
    }
    print_out("{:>2}  {:<58} {:>7.4g} s {:>10.1f} {:>9}  {}\n", i + 1, text, one.plan.step_s, rate,
              format_bytes(one.plan.memory_bytes()), behind);
  }
  if (options.pareto_file) write_pareto(*options.pareto_file, search, best);
  const PlanAnswerer answer = [&](const Resolved& other_run, const Cluster& other) -> std::optional<PlanAnswer> {
    Search again(other_run, other, units);
    const std::vector<Candidate> found = again.find();
    if (found.empty()) return std::nullopt;
    const double of_step = tokens_of_step(other_run);
    return PlanAnswer{of_step / found.front().plan.step_s,
                      short_text(found.front().layout, run.config.model.has_experts())};
  };
  const std::vector<PlanChange> changes =
      options.explain ? explain_plan(run, cluster, answer) : std::vector<PlanChange>{};
  if (options.json) {
    OrderedJson all{{"cluster", cluster.text()}, {"layouts", std::move(rows)}};
    if (options.explain) all["changes"] = changes_json(changes);
    print_out("{}", dump_json_pretty(all));
    return;
  }
  print_out("\n");
  for (size_t i = 0; i < best.size(); ++i) print_out("{:>2}  {}\n", i + 1, command_line(context, best[i].layout, run, own));
  print_out("{}", changes_text(changes));
  if (options.pareto_file) print_out("\nwrote {}\n", *options.pareto_file);
}

}  // namespace megalith
