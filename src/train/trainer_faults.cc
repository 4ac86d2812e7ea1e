// The trainer's handling of loss spikes and faults; see trainer.h, loss_watch.h and step_check.h.
#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "checkpoint/resume.h"
#include "core/error.h"
#include "train/printed_nan.h"
#include "train/trainer.h"

namespace megalith {

StepGuards Trainer::guards_of(double loss_limit) {
  const FaultOptions& options = resolved_.config.train.faults;
  StepGuards guards;
  // Non-finite losses exceed the largest number.
  if (options.leaves_out_spikes()) guards.loss_limit = std::min(loss_limit, std::numeric_limits<double>::max());
  guards.before_update = hooks_.check_ranks;
  if (check_) {
    const bool is_repeated = (iteration_ + 1) % options.check_determinism == 0;
    guards.run_passes = [this, is_repeated](const StepCheck::Pass& pass) {
      check_->run(iteration_ + 1, is_repeated, pass);
    };
  }
  return guards;
}

bool Trainer::is_spike(const IssuedStep& step, const StepResult& result) const {
  const FaultOptions& options = resolved_.config.train.faults;
  if (options.loss_spike_action == LossSpikeAction::kNone) return false;
  if (result.losses.front().value > step.loss_limit) return true;
  // A dynamic loss scale expects non-finite gradients.
  const bool is_bad = !result.is_loss_finite || (!result.optimizer.is_finite() && !loss_scaler_.is_dynamic());
  return options.leaves_out_spikes() && is_bad;
}

void Trainer::act_on_spike(const IssuedStep& step, const StepResult& result) {
  const double loss = result.losses.front().value;
  const std::string samples =
      fmt::format("samples {} to {} of the run", step.consumed_samples - step.num_samples, step.consumed_samples - 1);
  std::string what = fmt::format("{} {:.6g} of iteration {} ", result.losses.front().name,
                                 std::isnan(loss) ? std::abs(loss) : loss, step.iteration);
  if (loss > step.loss_limit && std::isfinite(loss)) {
    what += fmt::format("jumps above {:.6g} ({})", step.loss_limit, samples);
  } else if (!std::isfinite(loss)) {
    what += fmt::format("is not finite ({})", samples);
  } else {
    what += fmt::format("has a gradient that is not finite ({})", samples);
  }
  switch (resolved_.config.train.faults.loss_spike_action) {
    case LossSpikeAction::kNone:
      return;
    case LossSpikeAction::kWarn:
    case LossSpikeAction::kSkip: {
      const bool is_skipped = result.optimizer.was_skipped();
      return tell({.iteration = step.iteration,
                   .kind = "loss_spike",
                   .text = what + (is_skipped ? ": the step was skipped" : ""),
                   .begin_sample = step.consumed_samples - step.num_samples,
                   .end_sample = step.consumed_samples});
    }
    case LossSpikeAction::kRollback:
      return roll_back(step, what);
  }
}

void Trainer::roll_back(const IssuedStep& step, const std::string& what) {
  const int64_t most = resolved_.config.train.faults.loss_spike_max_rollbacks;
  EventRecord event{.iteration = step.iteration,
                    .kind = "rollback",
                    .text = {},
                    .begin_sample = step.consumed_samples - step.num_samples,
                    .end_sample = step.consumed_samples};
  if (last_saved_iteration_ < 0) {
    event.kind = "loss_spike";
    event.text = what + ": the step was skipped; there is no checkpoint to go back to";
    return tell(event);
  }
  if (num_rollbacks_ >= most) {
    throw std::runtime_error(fmt::format(
        "{}, and the run has gone back {} times (loss_spike_max_rollbacks)\n  the step was not made and nothing was "
        "saved since iteration {}. Lower the learning rate, look at those samples, or raise "
        "--loss_spike_max_rollbacks",
        what, num_rollbacks_, last_saved_iteration_));
  }
  const ProfileRange range("roll back");
  saver_->finish();
  CheckpointOptions options = resolved_.derived.checkpoint;
  options.load = options.save;
  options.pretrained_checkpoint.reset();
  options.ckpt_step.reset();
  options.finetune = false;
  options.no_load_optim = false;
  CheckpointState state = checkpoint_state();
  const auto resumed = resume(options, state, groups_, log_);
  // The folder may have another run's checkpoints.
  if (!resumed || state.train.iteration > last_saved_iteration_ || !resumed->has_optimizer) {
    throw std::runtime_error(fmt::format(
        "{}, and the checkpoint of iteration {} that the run would go back to is gone from {}\n  the step was not made",
        what, last_saved_iteration_, options.save.value_or("")));
  }
  data_parallel_->publish();
  data_parallel_->wait_for_parameters();
  optimizer_->set_num_steps(state.train.optimizer_step);
  take_numbers(state.train);
  // Counters of steps and samples advance: the steps between were not made.
  iteration_ = step.iteration;
  consumed_samples_ = step.consumed_samples;
  skipped_samples_ = step.skipped_samples;
  num_skipped_ = state.train.skipped_iterations + step.iteration - state.train.iteration;
  ++num_rollbacks_;
  has_rolled_back_ = true;
  if (check_) check_->remember();
  event.begin_sample = state.train.consumed_train_samples;
  event.text = fmt::format(
      "{}: the weights are those of iteration {} again (rollback {} of {}); samples {} to {} moved nothing", what,
      state.train.iteration, num_rollbacks_, most, event.begin_sample, event.end_sample - 1);
  tell(event);
}

void Trainer::tell(const EventRecord& event) {
  if (groups_.world->is_first()) log_.warn("{}", event.text);
  for (const auto& sink : sinks_) sink->on_event(event);
}

// As in Megatron-LM before requesting a resume: the state is intact, and the step was not made.
void Trainer::save_before(const StepFault& fault) {
  if (fault.is_persistent() || !fault.is_state_intact() || iteration_ == 0) return;
  save(/*is_last=*/true);
}

void Trainer::stop_on_bad_numbers(const IssuedStep& step, const StepResult& result) const {
  std::string what;
  for (const NamedLoss& loss : result.losses)
    what += fmt::format("{} is {}, ", loss.name, without_nan_sign(loss.value));
  if (result.optimizer.was_skipped()) {
    what += fmt::format(
        "the gradient norm is {} (first seen on rank {}{})", without_nan_sign(result.optimizer.grad_norm),
        result.optimizer.first_bad_rank,
        result.optimizer.bad_parameter.empty() ? "" : fmt::format(", in {}", result.optimizer.bad_parameter));
  }
  throw std::runtime_error(
      fmt::format("iteration {}: {}; samples {} to {} of the run\n  the model was not updated. Lower the learning "
                  "rate, look at those "
                  "samples, or set --no_check_for_nan_in_loss_and_grad to skip such steps",
                  step.iteration, what, step.consumed_samples - step.num_samples, step.consumed_samples - 1));
}

}  // namespace megalith
