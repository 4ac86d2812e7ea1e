// The trainer's handling of its evaluations: which is best, and when to end; see trainer.h and best_watch.h.
#include <fmt/format.h>

#include <cmath>

#include "checkpoint/resume.h"
#include "core/error.h"
#include "train/trainer.h"

namespace megalith {
namespace {

std::vector<ShownFigure> figures_of(const std::vector<ValidationRecord>& records) {
  std::vector<ShownFigure> figures;
  for (const ValidationRecord& record : records) {
    for (const auto& [name, value] : record.losses) figures.push_back({record.set, name, value});
  }
  return figures;
}

}  // namespace

void Trainer::begin_judging() {
  if (!best_.is_on()) return;
  // An evaluation of no sample shows the same figures.
  std::vector<LossSum> sums;
  for (const std::string& name : task_->evaluated_names()) sums.push_back({.name = name});
  std::vector<ValidationRecord> records;
  for (const NamedSource& set : data_.evaluated(Split::kValid)) {
    ValidationRecord& record = records.emplace_back();
    record.set = set.name;
    for (const LossSum& loss : task_->concluded(sums)) record.losses.emplace_back(loss.name, 0);
  }
  if (records.empty()) {
    throw UserError(
        "evaluations are to be judged (keep_best, load_best_model_at_end or early_stopping_patience), and "
        "there is no validation set",
        "give validation a weight in split, or name sft_valid_data_path or valid_data_path");
  }
  judged_figure_ = best_.choose(figures_of(records));
}

void Trainer::judge(std::vector<ValidationRecord>& records) {
  if (!best_.is_on()) return;
  const double own = figures_of(records).at(judged_figure_).value;
  // The same on all ranks, down to the last bit.
  const double is_bad = groups_.world->reduced(std::isfinite(own) ? 0 : 1, ReduceOp::kMax, "evaluation is finite");
  const double value = groups_.world->reduced(std::isfinite(own) ? own : 0, ReduceOp::kMax, "evaluation");
  const int64_t before = best_.best().empty() ? -1 : best_.best()[0].iteration;
  best_.add(iteration_, is_bad > 0 ? std::nan("") : value);
  const bool is_best = !best_.best().empty() && best_.best()[0].iteration == iteration_;
  size_t first_figure = 0;
  for (ValidationRecord& record : records) {
    const size_t end = first_figure + record.losses.size();
    if (judged_figure_ >= first_figure && judged_figure_ < end) record.is_best = is_best;
    first_figure = end;
  }
  if (is_best && before != iteration_) {
    log_.info("{} {:.6g} of iteration {} is the best", best_.metric(), value, iteration_);
  }
}

void Trainer::tell_early_end() {
  if (!best_.ends_run() || iteration_ >= resolved_.derived.train_iters) return;
  const std::string best =
      best_.best().empty() ? "before"
                           : fmt::format("{:.6g} of iteration {}", best_.best()[0].value, best_.best()[0].iteration);
  const EventRecord event{
      .iteration = iteration_,
      .kind = "early_stop",
      .text = fmt::format("{} was not better than {} in {} evaluations: the run ends after iteration {} "
                          "(early_stopping_patience)",
                          best_.metric(), best, best_.num_in_vain(), iteration_),
      .begin_sample = consumed_samples_,
      .end_sample = consumed_samples_};
  log_.info("{}", event.text);
  for (const auto& sink : sinks_) sink->on_event(event);
}

void Trainer::load_best() {
  if (best_.best().empty() || best_.best()[0].iteration == iteration_) return;
  const BestWatch::Evaluation best = best_.best()[0];
  CheckpointOptions options = resolved_.derived.checkpoint;
  options.load = options.save;
  options.pretrained_checkpoint.reset();
  options.ckpt_step = best.iteration;
  options.finetune = false;
  options.no_load_optim = true;
  CheckpointState state = checkpoint_state();
  try {
    resume(options, state, groups_, log_);
  } catch (const UserError& error) {  // such as one that another run kept elsewhere; all ranks see it
    return log_.warn("load_best_model_at_end: {}; the last weights are tested and exported", error.message());
  }
  data_parallel_->publish();
  data_parallel_->wait_for_parameters();
  optimizer_->reset_masters();
  saver_.reset();  // the weights are not this iteration's any more: at a signal nothing is saved
  log_.info("the weights are those of iteration {} again, whose {} {:.6g} is the best", best.iteration, best_.metric(),
            best.value);
}

}  // namespace megalith
