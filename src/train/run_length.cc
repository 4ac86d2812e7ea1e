#include "train/run_length.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/number_of.h"

namespace megalith {
namespace {

constexpr int64_t kDefaultTrainIters = 10;

void check_batch(const Config& config, Derived& d, std::vector<UserError>& errors) {
  const TrainOptions& train = config.train;
  const int64_t chunk = d.micro_batch_size * d.data_parallel_size;
  if (train.global_batch_size && train.gradient_accumulation_steps) {
    errors.emplace_back(fmt::format("global_batch_size {} and gradient_accumulation_steps {} are both given",
                                    *train.global_batch_size, *train.gradient_accumulation_steps),
                        "keep one of them");
  }
  const size_t num_errors = errors.size();
  std::vector<BatchStep> steps;
  if (train.step_batch_size_schedule) {
    // The model's own length may not be known yet.
    if (!train.seq_length) {
      errors.emplace_back("step_batch_size_schedule counts tokens, and seq_length is not given", "give --seq_length");
    }
    steps = parse_batch_steps(*train.step_batch_size_schedule, train.seq_length.value_or(1), errors);
    const std::pair<const char*, bool> others[] = {
        {"global_batch_size", train.global_batch_size.has_value()},
        {"rampup_batch_size", !train.rampup_batch_size.empty()},
        {"gradient_accumulation_steps", train.gradient_accumulation_steps.has_value()},
        {"decrease_batch_size_if_needed", train.decrease_batch_size_if_needed}};
    for (const auto& [name, is_given] : others) {
      if (!is_given) continue;
      errors.emplace_back(fmt::format("step_batch_size_schedule and {} are both given", name), "keep one of them");
    }
  }
  d.global_batch_size = !steps.empty() ? steps.back().samples
                                       : train.global_batch_size.value_or(
                                             chunk * train.gradient_accumulation_steps.value_or(1));
  d.batches = BatchSchedule(d.global_batch_size, d.micro_batch_size, d.data_parallel_size, train.rampup_batch_size,
                            train.decrease_batch_size_if_needed, errors, std::move(steps));
  if (errors.size() > num_errors) d.global_batch_size = chunk;
  d.num_microbatches = d.global_batch_size / chunk;
  d.global_batch_size = d.num_microbatches * chunk;
}

// Steps of a ramp vary in size, so a length in steps has no length in samples.
void check_rampup(const Config& config, std::vector<UserError>& errors) {
  const bool has_steps = config.train.step_batch_size_schedule.has_value();
  if (config.train.rampup_batch_size.empty() && !has_steps) return;
  if (!has_steps && !config.train.train_samples) {
    errors.emplace_back("rampup_batch_size is given, but train_samples is not",
                        "give the length of the run with --train_samples instead of --train_iters");
  }
  const LearningRateOptions& s = config.learning_rate;
  const std::pair<const char*, const std::optional<int64_t>*> counted_in_steps[] = {
      {"lr_decay", &s.lr_decay_iters}, {"lr_warmup", &s.lr_warmup_iters}, {"lr_wsd_decay", &s.lr_wsd_decay_iters}};
  for (const auto& [name, iters] : counted_in_steps) {
    if (iters->value_or(0) == 0) continue;
    errors.emplace_back(
        fmt::format("{}_iters {} counts steps, whose size changes with {}", name, **iters,
                    has_steps ? "step_batch_size_schedule" : "rampup_batch_size"),
        fmt::format("use {}_samples", name));
  }
}

void set_samples(int64_t samples, Derived& d) {
  d.train_iters = d.batches.num_iterations(samples);
  d.schedule_samples = samples;
  // A ramp's last step may exceed the samples requested.
  d.train_samples = std::max(d.schedule_samples, d.batches.consumed_by(d.train_iters));
}

void check_duration(const Config& config, Derived& d, std::vector<UserError>& errors) {
  std::vector<std::string> given;
  if (config.train.train_iters) given.emplace_back("train_iters");
  if (config.train.train_samples) given.emplace_back("train_samples");
  if (config.train.train_epochs) given.emplace_back("train_epochs");
  if (given.size() > 1) {
    errors.emplace_back(fmt::format("{} and {} are both given", given[0], given[1]), "keep one of them");
  }
  if (config.train.train_epochs && config.data.sft.sft_data_path.empty()) {
    errors.emplace_back("train_epochs is given, and sft_data_path is not: only passes over its rows are counted",
                        "give the length of the run with --train_iters or --train_samples");
  }
  if (config.train.train_samples) {
    set_samples(*config.train.train_samples, d);
    if (d.train_iters == 0) {
      errors.emplace_back(fmt::format("train_samples {} is less than one global batch of {}",
                                      *config.train.train_samples, d.global_batch_size),
                          "raise train_samples or lower global_batch_size");
    }
  } else {
    // Until passes are counted (count_epochs): enough for a warm-up.
    const int64_t uncounted = kDefaultTrainIters + config.learning_rate.lr_warmup_iters.value_or(0);
    d.train_iters = config.train.train_iters.value_or(config.train.train_epochs ? uncounted : kDefaultTrainIters);
    d.train_samples = d.schedule_samples = d.batches.consumed_by(d.train_iters);
  }
}

// A trace after the last step would never appear.
void check_traced_steps(const Config& config, const Derived& d, std::vector<UserError>& errors) {
  const int64_t start = config.profile.profile_step_start;
  if (!config.profile.profile || config.train.skip_train || d.train_iters == 0 || start < d.train_iters) return;
  errors.emplace_back(
      fmt::format("profile_step_start is {}, and the run has {} steps: nothing would be traced", start, d.train_iters),
      d.train_iters > 1 ? fmt::format("set profile_step_start to {} and profile_step_end to {}, or raise train_iters",
                                      d.train_iters - 2, d.train_iters)
                        : "set profile_step_start to 0 and profile_step_end to 1, or raise train_iters");
}

}  // namespace

void check_run_length(const Config& config, Derived& d, std::vector<UserError>& errors) {
  check_batch(config, d, errors);
  check_rampup(config, errors);
  check_duration(config, d, errors);
  if (!config.train.train_epochs) check_traced_steps(config, d, errors);
}

void count_epochs(Resolved& resolved) {
  const Config& config = resolved.config;
  Derived& d = resolved.derived;
  const int64_t sequences = resolved.kind().count_sequences(resolved);
  const double samples = *config.train.train_epochs * static_cast<double>(sequences);
  const auto steps = static_cast<int64_t>(samples / static_cast<double>(d.global_batch_size));
  const bool is_constant = d.batches.is_constant();
  if (is_constant ? steps == 0 : samples < 1) {
    throw UserError(fmt::format("train_epochs {} of {} is less than one global batch of {}",
                                number_text(*config.train.train_epochs), number_of(sequences, "sequence", "sequences"),
                                d.global_batch_size),
                    "raise train_epochs or lower global_batch_size");
  }
  // If sizes change, the last one is no measure of the run.
  set_samples(is_constant ? steps * d.global_batch_size : static_cast<int64_t>(samples), d);
  std::vector<UserError> errors;
  check_traced_steps(config, d, errors);
  throw_if_any(errors);
  LearningRateCurve(config.learning_rate, d.schedule_samples, d.global_batch_size);
}

}  // namespace megalith
