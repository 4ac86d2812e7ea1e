// megalith plan --cluster … --search: the fastest layouts of a model on a cluster (train/layout_search.h) as a table.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/plan_cluster.h"
#include "cli/print.h"
#include "core/file.h"
#include "core/json.h"
#include "core/output_file.h"
#include "core/strings.h"
#include "metrics/svg_plot.h"
#include "train/layout_search.h"

namespace megalith {
namespace {

constexpr std::string_view kParetoMark = "aria-label=\"Layouts\"";

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
  const auto settings = settings_of(layout, run);
  for (size_t i = 0; i < context.arguments.size(); ++i) {
    const std::string& word = context.arguments[i];
    const std::string name = word.starts_with("--") ? fold_name(word.substr(2, word.find('=') - 2)) : "";
    const Option* option = name.empty() ? nullptr : own.find(name);
    const bool is_replaced = std::ranges::any_of(settings, [&](const auto& one) { return one.first == name; });
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

void write_pareto(const std::string& file, const FoundLayouts& found) {
  PlotSeries all{.name = "simulated", .x = {}, .y = {}, .has_markers = true}, front{.name = "no other is better in both", .x = {}, .y = {}, .has_markers = true};
  std::vector<std::pair<double, double>> points = found.points;
  std::ranges::sort(points);
  double least = HUGE_VAL;
  for (const auto& [seconds, bytes] : points) {
    const double gib = bytes / kBytesOfGib;
    all.x.push_back(gib), all.y.push_back(seconds);
    if (gib >= least) continue;
    least = gib;
    front.x.push_back(gib), front.y.push_back(seconds);
  }
  write_file_atomic(file, render_svg_plot({.title = "Layouts", .subtitle = fmt::format("the fastest takes {:.3g} s", found.best.front().plan.step_s),
                                           .x_label = "memory of a rank, GiB", .y_label = "step, s"},
                                          {all, front}));
}

}  // namespace

void search_layouts(CommandContext& context, const Resolved& run, const Cluster& cluster,
                    const PlanClusterOptions& options) {
  if (!is_searchable(run)) {
    throw UserError("--search knows models of one stack of layers", "leave --search out to plan this layout");
  }
  if (options.pareto_file) {
    auto taken = check_replaceable("pareto_file", *options.pareto_file, kParetoMark, run.config.checkpoint.overwrite);
    if (taken) throw std::move(*taken);
  }
  KnownUnits units;
  const LayoutSearchOptions how{.with_eight_bits = options.search_eight_bits};
  const FoundLayouts found = find_layouts(run, cluster, units, how);
  const std::vector<FoundLayout>& best = found.best;
  if (best.empty()) {
    throw UserError(fmt::format("none of {} layouts runs this model on {}: {} fit its memory, and rules refuse {} of those",
                                found.num_tried, cluster.text(), found.num_fitting, found.num_refused),
                    "give more nodes, or a global_batch_size that more data-parallel sizes divide");
  }
  const StepPlan& first = best.front().plan;
  PlanClusterOptions names;
  OptionSet own(names);
  const double tokens = tokens_of_step(run);
  OrderedJson rows = OrderedJson::array();
  if (!options.json) {
    print_out("cluster    {}, rates of {}\n", cluster.text(), cluster.file.string());
    print_out("layouts    {}: {} fit, {} simulated\n\n", found.num_tried, found.num_fitting, found.num_simulated);
    print_out("{:>2}  {:<58} {:>9} {:>10} {:>9} {:>9}  {}\n", "", "layout", "step", "tok/s/GPU", "memory", "at most",
              "behind the first");
  }
  for (size_t i = 0; i < best.size(); ++i) {
    const FoundLayout& one = best[i];
    const std::string text = one.layout.text(run.config.model.has_experts());
    const double rate = tokens / one.plan.step_s / static_cast<double>(cluster.world_size());
    const int64_t at_most = upper_memory_bound(one.plan.memory_bytes(), cluster.chip);
    const std::string behind = i == 0 ? "" : reason_behind(first, one.plan);
    if (options.json) {
      rows.push_back({{"layout", text},
                      {"step_s", one.plan.step_s},
                      {"tokens_per_s_gpu", rate},
                      {"memory_bytes", one.plan.memory_bytes()},
                      {"memory_at_most_bytes", at_most},
                      {"host_bytes", one.plan.host_bytes},
                      {"behind", behind},
                      {"command", command_line(context, one.layout, run, own)}});
      continue;
    }
    print_out("{:>2}  {:<58} {:>7.4g} s {:>10.1f} {:>9} {:>9}  {}\n", i + 1, text, one.plan.step_s, rate,
              format_bytes(one.plan.memory_bytes()), format_bytes(at_most), behind);
  }
  if (options.pareto_file) write_pareto(*options.pareto_file, found);
  const PlanAnswerer answer = [&](const Resolved& other_run, const Cluster& other) -> std::optional<PlanAnswer> {
    const FoundLayouts again = find_layouts(other_run, other, units, how);
    if (again.best.empty()) return std::nullopt;
    const FoundLayout& first_again = again.best.front();
    return PlanAnswer{tokens_of_step(other_run) / first_again.plan.step_s,
                      first_again.layout.text(run.config.model.has_experts())};
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
