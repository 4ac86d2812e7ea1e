#include "metrics/run_comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "core/strings.h"
#include "core/time.h"
#include "metrics/drawn_history.h"
#include "metrics/long_series.h"
#include "metrics/run_page_assets.h"
#include "metrics/svg_plot.h"

namespace megalith {
namespace {

struct ComparedChart {
  std::string id;
  PlotSettings plot;
  std::vector<LongSeries> series;
  bool is_over_iterations = true;
};

PlotSettings plot_of(std::string title, std::string x_label, std::string y_label, bool is_wide) {
  return {.title = std::move(title),
          .x_label = std::move(x_label),
          .y_label = std::move(y_label),
          .has_style = false,
          .width = is_wide ? 1190 : 590,
          .height = is_wide ? 430 : 330};
}

// A curve per run; `value` gives a step's, or null.
template <typename Value>
std::vector<LongSeries> step_series(const std::vector<ComparedRun>& runs, bool is_noisy, const Value& value) {
  std::vector<LongSeries> all;
  for (const ComparedRun& run : runs) {
    LongSeries series({.name = run.name, .is_noisy = is_noisy});
    for (size_t i = 0; i < run.history.steps.size(); ++i) {
      const std::optional<double> y = value(run.history, i);
      if (y) series.add(static_cast<double>(run.history.steps[i].iteration), *y);
    }
    all.push_back(std::move(series));
  }
  return all;
}

std::vector<LongSeries> loss_over_tokens(const std::vector<ComparedRun>& runs) {
  std::vector<LongSeries> all;
  for (const ComparedRun& run : runs) {
    LongSeries series({.name = run.name, .is_noisy = true});
    double tokens = 0;
    for (const StepLine& step : run.history.steps) {
      tokens += static_cast<double>(step.tokens);
      series.add(tokens, step.loss);
    }
    all.push_back(std::move(series));
  }
  return all;
}

std::vector<LongSeries> evaluation_curves(const std::vector<ComparedRun>& runs) {
  std::vector<LongSeries> all;
  for (const ComparedRun& run : runs) {
    LongSeries series = evaluation_series(run.name);
    const std::string set = run.history.first_validation_set();
    for (const EvaluationLine& one : run.history.evaluations) {
      if (one.set == set) series.add(static_cast<double>(one.iteration), one.loss);
    }
    all.push_back(std::move(series));
  }
  return all;
}

std::vector<ComparedChart> compared_charts(const std::vector<ComparedRun>& runs) {
  using History = RunHistory;
  std::vector<ComparedChart> charts;
  charts.push_back(
      {"loss", plot_of("Training loss", "iteration", "nats per token", true),
       step_series(runs, true, [](const History& h, size_t i) { return std::optional(h.steps[i].loss); })});
  charts.push_back({"tokens", plot_of("Training loss by tokens", "tokens", "nats per token", true),
                    loss_over_tokens(runs), /*is_over_iterations=*/false});
  charts.push_back({"evaluation", plot_of("Evaluation", "iteration", "nats per token", true), evaluation_curves(runs)});
  charts.push_back(
      {"learning_rate", plot_of("Learning rate", "iteration", "", false),
       step_series(runs, false, [](const History& h, size_t i) { return std::optional(h.steps[i].learning_rate); })});
  PlotSettings norm = plot_of("Gradient norm", "iteration", "before clipping", false);
  norm.is_log_if_wide = true;
  charts.push_back(
      {"grad_norm", norm, step_series(runs, true, [](const History& h, size_t i) { return h.steps[i].grad_norm; })});
  charts.push_back({"throughput", plot_of("Throughput", "iteration", "tokens per second and device", false),
                    step_series(runs, true, [](const History& h, size_t i) {
                      return h.is_warming_up[i] ? std::nullopt : std::optional(h.steps[i].tokens_per_s_per_device);
                    })});
  charts.push_back({"memory", plot_of("Memory of tensors, peak", "iteration", "GiB", false),
                    step_series(runs, false, [](const History& h, size_t i) {
                      const auto bytes = static_cast<double>(h.steps[i].memory_peak_bytes);
                      return bytes > 0 ? std::optional(bytes / (1 << 30)) : std::nullopt;
                    })});
  for (ComparedChart& chart : charts) {
    std::erase_if(chart.series, [](const LongSeries& series) { return series.is_empty(); });
  }
  std::erase_if(charts, [](const ComparedChart& chart) { return chart.series.empty(); });
  return charts;
}

std::string loss_text(double loss) { return std::isnan(loss) ? "nan" : fmt::format("{:.4f}", loss); }

// The first cell is the header.
std::string table_row(const std::vector<std::string>& cells, const char* tag) {
  std::string row;
  for (const std::string& cell : cells) row += fmt::format("<{0}>{1}</{0}>", tag, escape_html(cell));
  return fmt::format("<tr>{}</tr>\n", row);
}

std::string results_table(const std::vector<ComparedRun>& runs) {
  std::string rows;
  for (const ComparedRun& run : runs) {
    const RunHistory& h = run.history;
    const std::string set = h.first_validation_set();
    const auto last = h.last_evaluation(set), best = h.best_evaluation(set);
    rows += table_row(
        {run.name, run.status, run.model,
         h.steps.empty() ? "0" : fmt::format("{} of {}", h.steps.back().iteration, h.steps.back().train_iters),
         format_count(static_cast<double>(h.num_tokens())), h.steps.empty() ? "" : loss_text(h.steps.back().loss),
         last ? loss_text(last->loss) : "",
         best ? fmt::format("{} (iteration {})", loss_text(best->loss), best->iteration) : "",
         format_count(h.mean_tokens_per_s_per_device()), fmt::format("{:.4g}", h.mean_elapsed_ms())},
        "td");
  }
  return "<section class=\"block\"><h2>Results</h2><table><thead>" +
         table_row({"run", "status", "model", "iterations", "tokens", "training loss", "evaluation", "best evaluation",
                    "tokens/s a device", "ms a step"},
                   "th") +
         "</thead><tbody>\n" + rows + "</tbody></table></section>\n";
}

std::string options_table(const std::vector<ComparedRun>& runs) {
  const std::vector<DifferingOption> options = differing_options(runs);
  if (options.empty()) return "<section class=\"block\"><h2>Options</h2><p>All runs have the same.</p></section>\n";
  std::vector<std::string> head = {"option"};
  for (const ComparedRun& run : runs) head.push_back(run.name);
  std::string rows;
  for (const DifferingOption& option : options) {
    std::vector<std::string> cells = {option.name};
    for (const std::string& value : option.values) cells.push_back(value.empty() ? "default" : value);
    rows += table_row(cells, "td");
  }
  return "<section class=\"block\"><h2>Options that differ</h2><table><thead>" + table_row(head, "th") +
         "</thead><tbody>\n" + rows + "</tbody></table></section>\n";
}

}  // namespace

std::vector<DifferingOption> differing_options(const std::vector<ComparedRun>& runs) {
  std::set<std::string> names;
  for (const ComparedRun& run : runs) {
    for (const auto& [name, value] : run.options) names.insert(name);
  }
  std::vector<DifferingOption> found;
  for (const std::string& name : names) {
    if (name == "output_dir") continue;
    DifferingOption option{.name = name, .values = {}};
    for (const ComparedRun& run : runs) {
      const auto value = run.options.find(name);
      option.values.push_back(value == run.options.end() ? "" : value->second);
    }
    const bool is_same = std::all_of(option.values.begin(), option.values.end(),
                                     [&](const std::string& value) { return value == option.values.front(); });
    if (!is_same) found.push_back(std::move(option));
  }
  return found;
}

std::string render_run_comparison(const std::vector<ComparedRun>& runs) {
  std::string drawn;
  Json points = Json::object();
  for (const ComparedChart& chart : compared_charts(runs)) {
    std::vector<PlotSeries> series;
    for (const LongSeries& one : chart.series) series.push_back(one.drawn());
    drawn += fmt::format("<div class=\"chart{}\" id=\"{}\">{}</div>\n", chart.plot.width > 600 ? " wide" : "", chart.id,
                         render_svg_plot(chart.plot, series));
    if (!chart.is_over_iterations) continue;  // tooltips go by iteration
    for (const LongSeries& one : chart.series) points[chart.id].push_back(history_of(one));
  }
  std::string names;
  for (const ComparedRun& run : runs) names += (names.empty() ? "" : ", ") + run.name;
  std::string page = fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
      "script-src 'unsafe-inline'; img-src data:\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<link rel=\"icon\" href=\"data:,\">\n"
      "<title>{} runs · Megalith</title>\n<style>{}</style>\n</head>\n<body>\n<main>\n"
      "<header><h1>{} runs</h1><button id=\"theme\" type=\"button\">Dark</button><p>{}</p></header>\n",
      runs.size(), kRunPageStyle, runs.size(), escape_html(names));
  page += results_table(runs) + options_table(runs) + "<section class=\"charts\" style=\"margin-top:14px\">\n" + drawn +
          "</section>\n" + fmt::format("<footer>Megalith, {}</footer>\n</main>\n", local_timestamp());
  return page + "<script type=\"application/json\" id=\"points\">" + embedded_json(points) + "</script>\n<script>" +
         kRunPageScript + "</script>\n</body>\n</html>\n";
}

}  // namespace megalith
