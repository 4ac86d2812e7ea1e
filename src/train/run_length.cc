#include "train/run_length.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "comm/mesh.h"
#include "core/error.h"
#include "core/number_of.h"

namespace megalith {
namespace {

constexpr int64_t kDefaultTrainIters = 10;
constexpr int64_t kNodeRanks = 8;

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
  if (errors.size() > num_errors) {
    const auto world = d.global_batch_size % chunk == 0 ? std::nullopt : fitting_world(config, d.world_size);
    if (world) {
      errors.back() =
          UserError(errors.back().message(), fmt::format("{}; it fits {} ranks", errors.back().remedy(), *world));
    }
    d.global_batch_size = chunk;
  }
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

std::optional<int64_t> fitting_world(const Config& config, int64_t world_size) {
  const ParallelOptions& p = config.parallel;
  const int64_t pp = p.pipeline_model_parallel_size;
  const int64_t dense = p.tensor_model_parallel_size * p.context_parallel_size * pp;
  const int64_t etp = p.expert_tensor_parallel_size.value_or(p.tensor_model_parallel_size);
  const bool has_expert_sizes = p.expert_model_parallel_size > 1 || p.expert_tensor_parallel_size;
  const int64_t block = has_expert_sizes ? std::lcm(dense, etp * p.expert_model_parallel_size * pp) : dense;
  const std::vector<int64_t>& ramp = config.train.rampup_batch_size;
  const int64_t samples = std::gcd(config.train.global_batch_size.value_or(0), ramp.size() == 3 ? ramp[0] : 0);
  const auto fits = [&](int64_t world) {
    if (world < block || !check_parallel_sizes(p, world).empty()) return false;
    return samples % (config.train.micro_batch_size * (world / dense)) == 0;
  };
  // No more data-parallel ranks than samples, unless a batch follows the ranks.
  const int64_t most = std::max(
      {samples / config.train.micro_batch_size * dense, 2 * world_size, block * p.num_distributed_optimizer_instances});
  const int64_t base = world_size / block * block;
  for (int64_t distance = 0; distance <= most; distance += block) {
    for (const int64_t world : {base - distance, base + distance}) {
      if (fits(world)) return world;
    }
  }
  return std::nullopt;
}

int64_t world_of_run(Resolved& resolved, int64_t world_size) {
  const Config& config = resolved.config;
  if (!config.train.dry_run) return world_size;
  const int64_t asked = std::max(world_size, config.train.dry_run_world_size);
  if (asked > 1 || resolved.options->of(config.train.dry_run_world_size).is_set()) return asked;
  const bool is_for_nodes = resolved.options->of(config.train.dry_run_device).source().layer == OptionLayer::kModel;
  const int64_t ranks = fitting_world(config, is_for_nodes ? kNodeRanks : 1).value_or(1);
  if (ranks > 1) {
    resolved.notes.push_back(
        fmt::format("a dry run for {} ranks, {} that layout and batch allow; --dry_run_world_size N takes others",
                    ranks, is_for_nodes ? "the number nearest to a node's 8" : "the fewest"));
  }
  return ranks;
}

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
