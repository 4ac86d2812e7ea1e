#include "train/rate_finder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/strings.h"
#include "metrics/svg_plot.h"
#include "train/config.h"

namespace megalith {
namespace {

constexpr double kSmoothing = 0.9;
constexpr double kDivergence = 4;

}  // namespace

void RateFinderOptions::visit(OptionVisitor& v) {
  v.group("Learning-rate finder");
  v.field("find_lr", find_lr,
          "Instead of a run of its own: take find_lr_steps steps while the learning rate grows from find_lr_min to "
          "find_lr_max by equal factors, end once the loss diverges, print the rate at which it fell fastest, and draw "
          "find_lr_file. Nothing is saved.");
  v.field("find_lr_steps", find_lr_steps, "find_lr: its steps.").unit("optimizer steps").within(10, 100000);
  v.field("find_lr_min", find_lr_min, "find_lr: the first rate.").above(0);
  v.field("find_lr_max", find_lr_max, "find_lr: the last rate.").above(0);
  v.field("find_lr_file", find_lr_file, "find_lr: a file for a picture (SVG) of the loss over the rate.");
}

std::vector<UserError> check_rate_finder(const RateFinderOptions& options) {
  std::vector<UserError> errors;
  if (options.find_lr && options.find_lr_max <= options.find_lr_min) {
    errors.emplace_back(
        fmt::format("find_lr_max {} is not above find_lr_min {}", options.find_lr_max, options.find_lr_min),
        "give the lowest rate as find_lr_min");
  }
  const RateFinderOptions none;
  const bool is_as_usual = options.find_lr_steps == none.find_lr_steps && options.find_lr_min == none.find_lr_min &&
                           options.find_lr_max == none.find_lr_max && options.find_lr_file == none.find_lr_file;
  if (!options.find_lr && !is_as_usual) {
    errors.emplace_back("find_lr_steps, find_lr_min, find_lr_max or find_lr_file is given without find_lr",
                        "add --find_lr, or leave it out");
  }
  return errors;
}

void set_up_rate_finder(Resolved& resolved) {
  const Config& config = resolved.config;
  const RateFinderOptions& finder = config.train.rate_finder;
  if (!finder.find_lr) return;
  const OptionSource source{OptionLayer::kModel, "find_lr"};
  OptionSet& options = *resolved.options;
  const CheckpointOptions& checkpoint = config.checkpoint;
  const TrainOptions& train = config.train;
  const LearningRateOptions& rates = config.learning_rate;
  std::vector<std::string> left_out;
  for (Option* option :
       {&options.of(checkpoint.save), &options.of(checkpoint.save_hf), &options.of(checkpoint.save_adapter),
        &options.of(checkpoint.export_hf), &options.of(checkpoint.auto_continue_train),
        &options.of(config.log.output_dir), &options.of(train.train_iters), &options.of(train.train_samples),
        &options.of(train.train_epochs), &options.of(train.exit_interval), &options.of(train.best.keep_best),
        &options.of(train.best.load_best_model_at_end), &options.of(train.best.early_stopping_patience),
        &options.of(train.best.metric_for_best_model), &options.of(train.best.greater_is_better),
        &options.of(train.best.early_stopping_threshold), &options.of(rates.lr_warmup_iters),
        &options.of(rates.lr_warmup_samples), &options.of(rates.lr_warmup_fraction), &options.of(rates.decoupled_lr),
        &options.of(rates.decoupled_min_lr), &options.of(train.rampup_batch_size),
        &options.of(train.faults.loss_spike_action)}) {
    if (option->is_set()) left_out.push_back(option->name());
    option->reset(source);
  }
  options.of(train.train_iters).assign(WrittenValue::of(std::to_string(finder.find_lr_steps)), source);
  options.of(train.eval_iters).assign(WrittenValue::of("0"), source);
  if (checkpoint.load) options.of(checkpoint.finetune).assign(WrittenValue::of("true"), source);
  if (!left_out.empty()) resolved.notes.push_back(fmt::format("find_lr leaves out {}", join(left_out, ", ")));
}

double RateFinder::rate(int64_t iteration) const {
  const double part = static_cast<double>(iteration - 1) / static_cast<double>(options_.find_lr_steps - 1);
  return options_.find_lr_min * std::pow(options_.find_lr_max / options_.find_lr_min, part);
}

void RateFinder::add(int64_t iteration, double loss) {
  if (has_diverged_) return;
  has_diverged_ = !std::isfinite(loss);
  if (has_diverged_) return;
  rates_.push_back(rate(iteration));
  losses_.push_back(loss);
  average_ = kSmoothing * average_ + (1 - kSmoothing) * loss;
  smoothed_.push_back(average_ / (1 - std::pow(kSmoothing, static_cast<double>(losses_.size()))));
  has_diverged_ = smoothed_.back() > kDivergence * *std::ranges::min_element(smoothed_);
}

std::optional<RateFinder::Found> RateFinder::found() const {
  if (smoothed_.empty()) return std::nullopt;
  const auto lowest = static_cast<size_t>(std::ranges::min_element(smoothed_) - smoothed_.begin());
  // Rates grow by equal factors, so steps compare as slopes do.
  size_t steepest = 0;
  double most = 0;
  for (size_t i = 1; i <= lowest; ++i) {
    if (smoothed_[i - 1] - smoothed_[i] <= most) continue;
    most = smoothed_[i - 1] - smoothed_[i];
    steepest = i;
  }
  if (steepest == 0) return std::nullopt;
  return Found{rates_[steepest], rates_[lowest]};
}

std::string RateFinder::text() const {
  const std::optional<Found> found = this->found();
  if (!found) {
    return fmt::format("the loss did not fall between learning rates {:.3g} and {:.3g}", options_.find_lr_min,
                       rates_.empty() ? options_.find_lr_min : rates_.back());
  }
  return fmt::format("the loss fell fastest at a learning rate of {:.3g}, and was lowest at {:.3g}", found->steepest,
                     found->lowest);
}

std::string RateFinder::picture() const {
  const PlotSettings settings{.title = "Loss",  // as the mark of our pictures of losses has it
                              .subtitle = text(),
                              .x_label = "learning rate",
                              .y_label = "loss",
                              .has_log_x = true,
                              .is_log_if_wide = true};
  return render_svg_plot(
      settings, {{.name = "step", .x = rates_, .y = losses_}, {.name = "smoothed", .x = rates_, .y = smoothed_}});
}

}  // namespace megalith
