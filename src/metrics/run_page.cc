#include "metrics/run_page.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/base64.h"
#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "core/log.h"
#include "core/strings.h"
#include "metrics/drawn_history.h"
#include "metrics/perplexity.h"
#include "metrics/run_page_assets.h"

namespace megalith {
namespace {

constexpr size_t kMostGenerations = 20;
constexpr size_t kMostPictures = 12;  // 100 kB each
constexpr size_t kMostEvaluations = 12;
constexpr size_t kMostEvents = 20;

void add_point(LongSeries& series, int64_t iteration, double value) {
  series.add(static_cast<double>(iteration), value);
}

LongSeries& series_of(std::vector<LongSeries>& all, const LongSeries& fresh) {
  auto one =
      std::find_if(all.begin(), all.end(), [&](const LongSeries& other) { return other.name() == fresh.name(); });
  if (one == all.end()) one = all.insert(one, fresh);
  return *one;
}

std::vector<const LongSeries*> pointers_to(const std::vector<LongSeries>& all) {
  std::vector<const LongSeries*> pointers;
  for (const LongSeries& one : all) pointers.push_back(&one);
  return pointers;
}

// "sop accuracy", "top5_acc": percentages, not losses.
bool is_accuracy(const std::string& name) { return name.ends_with("accuracy") || name.ends_with("_acc"); }

std::string card(const std::string& name, const std::string& value, const std::string& unit, const std::string& more) {
  return fmt::format(
      "<div class=\"card\"><div class=\"name\">{}</div><div class=\"value\">{}{}</div><div "
      "class=\"more\">{}</div></div>\n",
      name, value, unit.empty() ? "" : fmt::format(" <small>{}</small>", unit), more);
}

std::string number(double value) {
  if (std::isnan(value)) return "<span class=\"bad\">NaN</span>";
  if (std::isinf(value)) return "<span class=\"bad\">infinite</span>";
  return value != 0 && (std::fabs(value) < 1e-3 || std::fabs(value) >= 1e6) ? fmt::format("{:.3e}", value)
                                                                            : fmt::format("{:.4g}", value);
}

// Around what a resumed run reads.
constexpr std::string_view kPointsBegin = "<script type=\"application/json\" id=\"points\">";
constexpr std::string_view kHistoryBegin = "<script type=\"application/json\" id=\"history\">";
constexpr std::string_view kScriptEnd = "</script>";
constexpr const char* kLossByTokens = "loss_by_tokens";

PlotSettings plot_settings(std::string title, std::string y_label, bool is_wide) {
  return PlotSettings{.title = std::move(title),
                      .x_label = "iteration",
                      .y_label = std::move(y_label),
                      .has_whole_x = true,
                      .has_style = false,
                      .width = is_wide ? 1190 : 590,
                      .height = 330};
}

// Returns the unit of the largest value.
std::string scale_bytes(std::vector<PlotSeries>& series) {
  double most = 0;
  for (const PlotSeries& one : series) {
    for (const double y : one.y) most = std::isfinite(y) ? std::max(most, y) : most;
  }
  static constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  double divisor = 1024;
  for (; most >= 1024 * divisor && unit + 1 < std::size(kUnits); divisor *= 1024) ++unit;
  for (PlotSeries& one : series) {
    for (double& y : one.y) y /= divisor;
    for (double& y : one.mean_y) y /= divisor;
  }
  return kUnits[unit];
}

}  // namespace

RunPageSink::RunPageSink(RunPageSettings settings, Logger& log)
    : settings_(std::move(settings)),
      log_(log),
      file_(settings_.path, "page_file", log, settings_.clock),
      time_left_(settings_.train_samples, settings_.clock),
      expert_max_({.name = "most loaded", .is_noisy = true}),
      expert_min_({.name = "least loaded", .is_noisy = true}),
      train_loss_({.name = "train", .is_noisy = true}),
      learning_rate_({.name = "learning rate"}),
      grad_norm_({.name = "norm", .is_noisy = true}),
      tokens_per_s_({.name = "tokens/s", .is_noisy = true}),
      memory_used_({.name = "in use"}),
      memory_peak_({.name = "tensors, peak"}),
      loss_by_tokens_({.name = "train", .is_noisy = true}) {
  if (settings_.path.has_parent_path()) make_directories(settings_.path.parent_path());
  if (settings_.resumed_after > 0) resume();
  try {
    write_file_atomic(settings_.path, render());
  } catch (const UserError& error) {
    throw UserError(fmt::format("page_file: {}", error.message()), "name a file that can be written");
  }
}

LongSeries* RunPageSink::series_for(const std::string& chart, const std::string& name) {
  if (chart == "loss") {
    return name == train_loss_.name() ? &train_loss_ : &series_of(validation_, evaluation_series(name));
  }
  if (chart == kLossByTokens) {
    return name == loss_by_tokens_.name() ? &loss_by_tokens_
                                          : &series_of(validation_by_tokens_, evaluation_series(name));
  }
  if (chart == "other_losses") return &series_of(other_losses_, LongSeries({.name = name}));
  if (chart == "accuracies") return &series_of(accuracies_, LongSeries({.name = name}));
  for (LongSeries* one :
       {&expert_max_, &expert_min_, &learning_rate_, &grad_norm_, &tokens_per_s_, &memory_used_, &memory_peak_}) {
    if (one->name() == name) return one;
  }
  return nullptr;
}

// Call before this run's first page.
void RunPageSink::resume() {
  try {
    const auto history = find_embedded_json(settings_.path, kHistoryBegin, kScriptEnd);
    if (history) restore(*history);
  } catch (const UserError& error) {
    log_.warn("page_file: what the page showed until iteration {} cannot be read back: {}", settings_.resumed_after,
              error.message());
  }
}

void RunPageSink::restore(const Json& history) {
  const std::string where = settings_.path.string();
  const int64_t iteration = settings_.resumed_after;
  const auto last = static_cast<double>(iteration);
  num_skipped_ = json_get_or<int64_t>(history, "num_skipped", 0, where);
  // Steps after the checkpoint are repeated.
  const double kept = std::min(1.0, last / std::max(1.0, json_get_or<double>(history, "iteration", last, where)));
  num_tokens_ = static_cast<int64_t>(kept * json_get_or<double>(history, "num_tokens", 0, where));
  num_evaluations_ = std::llround(kept * json_get_or<double>(history, "num_evaluations", 0, where));
  num_generations_ = std::llround(kept * json_get_or<double>(history, "num_generations", 0, where));
  earlier_s_ = json_get_or<double>(history, "elapsed_s", 0, where);
  for (const auto& [chart, all] : get_member(history, "series", where).items()) {
    const double end = chart == kLossByTokens ? static_cast<double>(num_tokens_) : last;
    for (const Json& one : all) {
      LongSeries* series = series_for(chart, json_get<std::string>(one, "name", where));
      if (series != nullptr) restore_history(one, end, *series, where);
    }
  }
  const Json& evaluations = get_member(history, "evaluations", where);
  const bool has_all =
      static_cast<double>(evaluations.size()) == json_get_or<double>(history, "num_evaluations", 0, where);
  for (const Json& one : evaluations) {
    ValidationRecord record{.iteration = json_get<int64_t>(one, "iteration", where),
                            .consumed_samples = json_get<int64_t>(one, "samples", where),
                            .set = json_get<std::string>(one, "set", where),
                            .when = {}};
    const auto loss = json_find<double>(one, "loss", where).value_or(std::numeric_limits<double>::quiet_NaN());
    record.losses.emplace_back("loss", loss);
    record.is_best = json_find<bool>(one, "is_best", where);
    if (record.iteration <= iteration) evaluations_.push_back(std::move(record));
  }
  if (has_all) num_evaluations_ = std::ssize(evaluations_);
  for (const Json& one : get_member(history, "generations", where)) {
    GenerationRecord record{.iteration = json_get<int64_t>(one, "iteration", where),
                            .prompt = json_get<std::string>(one, "prompt", where),
                            .continuation = json_get<std::string>(one, "continuation", where)};
    if (record.iteration <= iteration) generations_.push_back(std::move(record));
  }
  if (const Json* pictures = find_member(history, "pictures", where)) {
    for (const Json& one : *pictures) {
      ShownPicture picture{.iteration = json_get<int64_t>(one, "iteration", where),
                           .prompt = json_get<std::string>(one, "prompt", where),
                           .png = json_get<std::string>(one, "png", where)};
      if (picture.iteration <= iteration) pictures_.push_back(std::move(picture));
    }
  }
  if (const Json* events = find_member(history, "events", where)) {
    for (const Json& one : *events) {
      EventRecord record{.iteration = json_get<int64_t>(one, "iteration", where),
                         .kind = json_get<std::string>(one, "kind", where),
                         .text = json_get<std::string>(one, "text", where)};
      if (record.iteration <= iteration) events_.push_back(std::move(record));
    }
  }
  last_.iteration = iteration;
}

// resume()'s state.
std::string RunPageSink::history() const {
  Json history = {{"iteration", last_.iteration},
                  {"num_skipped", num_skipped_},
                  {"num_tokens", num_tokens_},
                  {"num_evaluations", num_evaluations_},
                  {"num_generations", num_generations_},
                  {"elapsed_s", earlier_s_ + since_start_.elapsed_s()},
                  {"evaluations", Json::array()},
                  {"generations", Json::array()},
                  {"pictures", Json::array()},
                  {"events", Json::array()},
                  {"series", Json::object()}};
  for (const ValidationRecord& one : evaluations_) {
    Json line = {{"iteration", one.iteration},
                 {"samples", one.consumed_samples},
                 {"set", one.set},
                 {"loss", one.losses.front().second}};
    if (one.is_best) line["is_best"] = *one.is_best;
    history["evaluations"].push_back(std::move(line));
  }
  for (const GenerationRecord& one : generations_) {
    history["generations"].push_back(
        {{"iteration", one.iteration}, {"prompt", one.prompt}, {"continuation", one.continuation}});
  }
  for (const ShownPicture& one : pictures_) {
    history["pictures"].push_back({{"iteration", one.iteration}, {"prompt", one.prompt}, {"png", one.png}});
  }
  for (const EventRecord& one : events_) {
    history["events"].push_back({{"iteration", one.iteration}, {"kind", one.kind}, {"text", one.text}});
  }
  for (const Chart& chart : charts()) {
    for (const Plot& plot : chart.plots) {
      const std::string name = plot.settings.x_label == "tokens" ? kLossByTokens : chart.id;
      if (history["series"].contains(name)) continue;  // repeated on other axes
      for (const LongSeries* one : plot.series) history["series"][name].push_back(history_of(*one));
    }
  }
  return embedded_json(history);
}

void RunPageSink::on_step(const StepRecord& record) {
  ++num_steps_;
  left_s_ = time_left_.after(record);
  num_skipped_ += record.is_skipped;
  num_tokens_ += record.tokens;
  averages_.add(record);
  for (size_t i = 0; i < record.losses.size(); ++i) {
    const auto& [name, value] = record.losses[i];
    std::vector<LongSeries>& others = is_accuracy(name) ? accuracies_ : other_losses_;
    add_point(i == 0 ? train_loss_ : series_of(others, LongSeries({.name = name})), record.iteration, value);
  }
  tokens_per_sample_ =
      static_cast<double>(record.tokens) / static_cast<double>(std::max<int64_t>(record.global_batch_size, 1));
  if (!record.losses.empty()) {
    // The whole run's counts, also before a resume.
    loss_by_tokens_.add(static_cast<double>(record.consumed_samples) * tokens_per_sample_, record.losses[0].second);
  }
  add_point(learning_rate_, record.iteration, record.learning_rate);
  if (record.grad_norm) add_point(grad_norm_, record.iteration, *record.grad_norm);
  // The first step touches memory and chooses kernels.
  if (num_steps_ > 1) add_point(tokens_per_s_, record.iteration, record.tokens_per_s_per_device());
  add_point(memory_used_, record.iteration, static_cast<double>(record.memory_used_bytes));
  if (record.memory_peak_bytes > 0) {
    add_point(memory_peak_, record.iteration, static_cast<double>(record.memory_peak_bytes));
  }
  if (const std::vector<ExpertLoad> loads = expert_loads_of(record.observations); !loads.empty()) {
    expert_loads_.add(loads);
    double least = std::numeric_limits<double>::infinity();
    for (const ExpertLoad& load : loads) least = std::min(least, load.min_over_mean());
    add_point(expert_max_, record.iteration, max_over_mean(loads));
    add_point(expert_min_, record.iteration, least);
  }
  last_ = record;
  if (num_steps_ == 1 || file_.since_written_s() >= settings_.step_every_s) save();
}

void RunPageSink::on_validation(const ValidationRecord& record) {
  if (record.losses.empty()) return;
  evaluations_.push_back(record);
  ++num_evaluations_;
  if (evaluations_.size() > kMostEvaluations) evaluations_.pop_front();
  add_point(series_of(validation_, evaluation_series(record.set)), record.iteration, record.losses.front().second);
  series_of(validation_by_tokens_, evaluation_series(record.set))
      .add(static_cast<double>(record.consumed_samples) * tokens_per_sample_, record.losses.front().second);
  if (file_.since_written_s() >= settings_.evaluation_every_s) save();
}

void RunPageSink::on_generation(const GenerationRecord& record) {
  generations_.push_back(record);
  ++num_generations_;
  if (generations_.size() > kMostGenerations) generations_.pop_front();
  if (file_.since_written_s() >= settings_.evaluation_every_s) save();
}

void RunPageSink::on_picture(const PictureRecord& record) {
  ShownPicture picture{.iteration = record.iteration, .prompt = record.prompt, .png = {}};
  append_base64(picture.png, record.small_png);
  pictures_.push_back(std::move(picture));
  if (pictures_.size() > kMostPictures) pictures_.pop_front();
  if (file_.since_written_s() >= settings_.evaluation_every_s) save();
}

void RunPageSink::on_event(const EventRecord& record) {
  events_.push_back(record);
  if (events_.size() > kMostEvents) events_.pop_front();
  has_unwritten_event_ = true;
  if (file_.since_written_s() >= settings_.evaluation_every_s) save();
}

void RunPageSink::on_end() {
  has_ended_ = true;
  save();
}

// A failed run shows the event that ended it.
RunPageSink::~RunPageSink() {
  if (has_unwritten_event_) save();
}

void RunPageSink::save() {
  has_unwritten_event_ = false;
  file_.write([this] { return render(); });
}

std::string RunPageSink::status() const {
  if (has_ended_) {
    return last_.iteration >= last_.train_iters ? "<span class=\"chip finished\">finished</span>"
                                                : fmt::format("<span class=\"chip stopped\">stopped at {} of {}</span>",
                                                              last_.iteration, last_.train_iters);
  }
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return fmt::format("<span class=\"chip running\" data-written=\"{}\">{}</span>",
                     std::chrono::duration_cast<std::chrono::seconds>(now).count(),
                     num_steps_ == 0 ? "starting" : "running");
}

std::string RunPageSink::cards() const {
  if (num_steps_ == 0) return "";
  std::string text;
  const double progress =
      static_cast<double>(last_.iteration) / static_cast<double>(std::max<int64_t>(last_.train_iters, 1));
  std::string time = "took " + format_duration(earlier_s_ + since_start_.elapsed_s());
  if (!has_ended_ && left_s_) time = format_duration(*left_s_) + " left";
  text += card("Iteration", fmt::format("{}", last_.iteration), fmt::format("of {}", last_.train_iters),
               fmt::format("<div class=\"bar\"><i style=\"width:{:.1f}%\"></i></div>{}<br>{} tokens", 100 * progress,
                           time, format_count(static_cast<double>(num_tokens_))));

  std::string more = "no evaluation yet";
  if (!validation_.empty()) {
    const LongSeries& losses = validation_.front();
    more = fmt::format("{} {}{}", escape_html(losses.name()), number(losses.last()),
                       losses.num_points() > 1 ? "<br>best " + number(losses.least()) : "");
  }
  if (!last_.losses.empty()) {
    const auto& [name, loss] = last_.losses.front();
    text += card("Loss", number(loss), "", more);
    if (has_perplexity(name)) {
      const double evaluated = validation_.empty() ? loss : validation_.front().last();
      text += card("Perplexity", number(perplexity(evaluated)), "",
                   validation_.empty() ? "of the last batch" : "of the last evaluation");
    }
  }
  const RunSummary mean = averages_.summary();
  const double tokens_per_sample =
      static_cast<double>(last_.tokens) / static_cast<double>(std::max<int64_t>(last_.global_batch_size, 1));
  const bool has_images = last_.image_size > 0 && tokens_per_sample > 0;
  text += card("Throughput",
               format_count(mean.tokens_per_s_per_device / (has_images ? tokens_per_sample : 1)),
               has_images ? "images/s" : "tokens/s",
               fmt::format("{:.3g} TFLOP/s{}<br>{:.4g} ms a step", mean.tflops_per_device,
                           last_.num_devices > 1 ? " a device" : "", mean.elapsed_ms));
  if (last_.peak_flops_per_device > 0) {
    text += card("MFU", fmt::format("{:.1f}", 100 * mean.tflops_per_device * 1e12 / last_.peak_flops_per_device), "%",
                 fmt::format("of {:.4g} TFLOP/s", last_.peak_flops_per_device / 1e12));
  }
  text += card("Learning rate", number(last_.learning_rate), "", "of the last step");
  std::string skipped = "before clipping";
  if (num_skipped_ > 0) skipped = fmt::format("<span class=\"bad\">{} steps skipped</span>", num_skipped_);
  text += card("Gradient norm", last_.grad_norm ? number(*last_.grad_norm) : "–", "", skipped);
  text += card("Memory", format_bytes(last_.memory_used_bytes),
               last_.memory_total_bytes > 0 ? fmt::format("{:.0f} %", 100 * last_.memory_used_fraction()) : "",
               last_.memory_peak_bytes > 0 ? "tensors at most<br>" + format_bytes(last_.memory_peak_bytes) : "");
  return "<section class=\"cards\">\n" + text + "</section>\n";
}

std::vector<RunPageSink::Plot> RunPageSink::loss_plots() const {
  std::vector<Plot> plots;
  for (const bool is_log : {false, true}) {
    for (const bool has_tokens : {false, true}) {
      PlotSettings settings = plot_settings("Loss", "nats per token", /*is_wide=*/true);
      settings.height = 430;
      settings.has_log_x = settings.has_log_y = is_log;
      if (has_tokens) settings.x_label = "tokens";
      std::vector<const LongSeries*> series = {has_tokens ? &loss_by_tokens_ : &train_loss_};
      for (const LongSeries& one : has_tokens ? validation_by_tokens_ : validation_) series.push_back(&one);
      plots.push_back(
          {settings, series,
           fmt::format("{}{}{}", has_tokens ? "tokens" : "", has_tokens && is_log ? " " : "", is_log ? "log" : "")});
    }
  }
  return plots;
}

std::vector<RunPageSink::Chart> RunPageSink::charts() const {
  const auto half = [](const char* id, std::string title, std::string y_label, std::vector<const LongSeries*> series) {
    return Chart{id, {{plot_settings(std::move(title), std::move(y_label), false), std::move(series)}}};
  };
  const auto wide = [](const char* id, std::string title, std::string y_label, std::vector<const LongSeries*> series) {
    return Chart{id, {{plot_settings(std::move(title), std::move(y_label), true), std::move(series)}}, true};
  };
  std::vector<Chart> charts = {{"loss", loss_plots(), true}};
  if (!other_losses_.empty()) {
    charts.push_back(wide("other_losses", "Other losses", "nats per token", pointers_to(other_losses_)));
  }
  if (!accuracies_.empty()) charts.push_back(wide("accuracies", "Accuracy", "percent", pointers_to(accuracies_)));
  charts.push_back(half("learning_rate", "Learning rate", "", {&learning_rate_}));
  charts.push_back(half("grad_norm", "Gradient norm", "before clipping", {&grad_norm_}));
  charts.back().plots[0].settings.is_log_if_wide = true;
  charts.push_back(half("throughput", "Throughput", "tokens per second and device", {&tokens_per_s_}));
  charts.push_back(half("memory", "Memory", "", {&memory_used_, &memory_peak_}));
  charts.back().plots[0].is_in_bytes = true;
  if (!expert_loads_.is_empty()) {
    charts.push_back(
        wide("expert_load", "Load of experts", "tokens over the layer's mean", {&expert_max_, &expert_min_}));
  }
  // Colours go by the drawn series.
  for (Chart& chart : charts) {
    for (Plot& plot : chart.plots) {
      std::erase_if(plot.series, [](const LongSeries* series) { return series->is_empty(); });
    }
  }
  return charts;
}

std::string RunPageSink::evaluations() const {
  if (evaluations_.empty()) return "";
  const LongSeries& first_set = validation_.front();
  const bool shows_perplexity = last_.losses.empty() || has_perplexity(last_.losses.front().first);
  std::string rows;
  // A judged run says which evaluation is the best; of another the least loss of the first set is.
  const bool is_judged = std::ranges::any_of(evaluations_, [](const auto& one) { return one.is_best.has_value(); });
  const auto best = std::find_if(evaluations_.rbegin(), evaluations_.rend(),
                                 [](const ValidationRecord& one) { return one.is_best.value_or(false); });
  for (auto row = evaluations_.rbegin(); row != evaluations_.rend(); ++row) {  // latest first
    const ValidationRecord& one = *row;
    const double loss = one.losses.front().second;
    const bool is_best = is_judged ? row == best : one.set == first_set.name() && loss == first_set.least();
    rows +=
        fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td><td{}>{}</td>{}</tr>\n", escape_html(one.set), one.iteration,
                    format_count(static_cast<double>(one.consumed_samples)), is_best ? " class=\"best\"" : "",
                    number(loss), shows_perplexity ? fmt::format("<td>{}</td>", number(perplexity(loss))) : "");
  }
  return fmt::format(
      "<section class=\"block\"><h2>Evaluations{}</h2><table><thead><tr><th>set</th><th>iteration</th>"
      "<th>samples</th><th>loss</th>{}</tr></thead><tbody>\n{}</tbody></table></section>\n",
      num_evaluations_ > static_cast<int64_t>(evaluations_.size())
          ? fmt::format(" <small>(the last {} of {})</small>", evaluations_.size(), num_evaluations_)
          : "",
      shows_perplexity ? "<th>perplexity</th>" : "", rows);
}

std::string RunPageSink::generations() const {
  if (generations_.empty()) return "";
  std::string text;
  for (auto one = generations_.rbegin(); one != generations_.rend(); ++one) {  // latest first
    text += fmt::format("<h3>iteration {}</h3><pre class=\"text\"><b>{}</b>{}</pre>\n", one->iteration,
                        escape_html(one->prompt), escape_html(one->continuation));
  }
  const auto all = static_cast<size_t>(num_generations_);
  return fmt::format(
      "<section class=\"block\"><h2>Samples{}</h2>\n{}</section>\n",
      all > generations_.size() ? fmt::format(" <small>(the last {} of {})</small>", generations_.size(), all) : "",
      text);
}

std::string RunPageSink::pictures() const {
  if (pictures_.empty()) return "";
  std::string figures;
  for (auto one = pictures_.rbegin(); one != pictures_.rend(); ++one) {  // latest first
    figures += fmt::format(
        "<figure class=\"picture\"><img alt=\"{0}\" src=\"data:image/png;base64,{1}\"><figcaption>iteration {2}: "
        "{0}</figcaption></figure>\n",
        escape_html(one->prompt), escape_html(one->png), one->iteration);
  }
  return "<section class=\"block\"><h2>Pictures</h2>\n<div class=\"pictures\">" + figures + "</div></section>\n";
}

std::string RunPageSink::events() const {
  if (events_.empty()) return "";
  std::string rows;
  for (auto one = events_.rbegin(); one != events_.rend(); ++one) {  // latest first
    rows += fmt::format("<tr><td>{}</td><td>{}</td></tr>\n", one->iteration, escape_html(one->text));
  }
  return fmt::format(
      "<section class=\"block\"><h2>Events</h2>\n<table><thead><tr><th>iteration</th><th>what</th></tr></thead>"
      "<tbody>\n{}</tbody></table></section>\n",
      rows);
}

std::string RunPageSink::thinning() const {
  std::string text = thinning_note(learning_rate_, "steps");
  for (const LongSeries& one : validation_) {
    const std::string note = thinning_note(one, "evaluations of " + one.name());
    if (!note.empty()) text += (text.empty() ? "" : "; ") + note;
  }
  return text.empty() ? "" : fmt::format("<p class=\"thinning\">In the curves {}.</p>\n", escape_html(text));
}

std::string RunPageSink::render() const {
  std::string drawn;
  Json points = Json::object();
  for (const Chart& chart : charts()) {
    drawn += fmt::format("<div class=\"chart{}\" id=\"{}\">", chart.is_wide ? " wide" : "", chart.id);
    for (const Plot& plot : chart.plots) {
      std::vector<PlotSeries> series;
      for (const LongSeries* one : plot.series) series.push_back(one->drawn());
      PlotSettings settings = plot.settings;
      if (plot.is_in_bytes) settings.y_label = scale_bytes(series);
      const bool has_tokens = settings.x_label == "tokens";
      const std::string name = has_tokens ? kLossByTokens : chart.id;
      drawn += fmt::format("<div class=\"plot\" data-points=\"{}\" data-axes=\"{}\"{}>{}</div>", name, plot.axes,
                           plot.axes.empty() ? "" : " hidden", render_svg_plot(settings, series));
      if (points.contains(name)) continue;
      for (const PlotSeries& one : series) points[name].push_back(points_of(one));
    }
    // Clear of axis labels.
    if (chart.plots.size() > 1) {
      drawn +=
          "<div class=\"axes\"><button type=\"button\" data-axis=\"tokens\">tokens</button>"
          "<button type=\"button\" data-axis=\"log\">logarithmic</button></div>";
    }
    drawn += "</div>\n";
  }
  if (!expert_loads_.is_empty()) {
    drawn += fmt::format("<div class=\"chart wide\" id=\"experts\">{}<p>of the last {} steps</p></div>\n",
                         render_expert_loads(expert_loads_.total(), 1190), expert_loads_.num_steps());
  }
  const std::string title = escape_html(settings_.title);
  std::string page = "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n";
  if (!has_ended_) page += "<meta http-equiv=\"refresh\" content=\"15\">\n";
  // The browser enforces that the page loads nothing.
  page += fmt::format(
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
      "script-src 'unsafe-inline'; img-src data:\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<link rel=\"icon\" href=\"data:,\">\n"
      "<title>{}{} · Megalith</title>\n<style>{}</style>\n</head>\n<body>\n<main>\n",
      num_steps_ > 0 ? fmt::format("{}/{} · ", last_.iteration, last_.train_iters) : "", title, kRunPageStyle);
  page += fmt::format("<header><h1>{}</h1>{}<button id=\"theme\" type=\"button\">Dark</button><p>{}</p></header>\n",
                      title, status(), escape_html(settings_.subtitle));
  page += cards() + "<section class=\"charts\">\n" + drawn + "</section>\n";
  page += thinning() + events() + evaluations() + generations() + pictures();
  if (!settings_.configuration.empty()) {
    page += fmt::format("<details class=\"block\"><summary>Configuration</summary><pre>{}</pre></details>\n",
                        escape_html(settings_.configuration));
  }
  page += fmt::format("<footer>Megalith, {}</footer>\n</main>\n", local_timestamp());
  // A loss's name could contain "</script>".
  page += fmt::format("{}{}{}\n{}{}{}\n", kPointsBegin, embedded_json(points), kScriptEnd, kHistoryBegin, history(),
                      kScriptEnd);
  return page + "<script>" + kRunPageScript + "</script>\n</body>\n</html>\n";
}

}  // namespace megalith
