#include "metrics/tagged_scalars.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "metrics/expert_load.h"
#include "metrics/perplexity.h"

namespace megalith {

TaggedScalars tagged_scalars(const StepRecord& record, const LogOptions& options) {
  // The next step's, as in Megatron-LM.
  Scalars both = {{"learning-rate", record.next_learning_rate.value_or(record.learning_rate)},
                  {"batch-size", static_cast<double>(record.global_batch_size)}};
  if (record.skipped_samples > 0) {
    both.emplace_back("skipped-train-samples", static_cast<double>(record.skipped_samples));
  }
  both.insert(both.end(), record.losses.begin(), record.losses.end());
  if (options.log_loss_scale_to_tensorboard) both.emplace_back("loss-scale", record.loss_scale);
  if (options.log_world_size_to_tensorboard) both.emplace_back("world-size", record.num_devices);
  if (record.grad_norm) both.emplace_back("grad-norm", *record.grad_norm);
  if (record.num_zeros) both.emplace_back("num-zeros", static_cast<double>(*record.num_zeros));
  if (record.params_norm) both.emplace_back("params-norm", *record.params_norm);

  Scalars over_iterations;
  if (const std::vector<ExpertLoad> loads = expert_loads_of(record.observations); !loads.empty()) {
    over_iterations.emplace_back("expert-load-max-over-mean", max_over_mean(loads));
    if (const auto share = dropped_share(loads)) {
      over_iterations.emplace_back("expert-dropped-share", *share);
    }
  }
  if (options.log_timers_to_tensorboard) {
    over_iterations.emplace_back("iteration-time", record.elapsed_ms / 1e3);
    over_iterations.emplace_back("throughput", record.tflops_per_device());
    over_iterations.emplace_back("token_throughput(tokens/sec/gpu)", record.tokens_per_s_per_device());
  }
  if (options.log_memory_to_tensorboard) {
    over_iterations.emplace_back("mem-reserved-bytes", static_cast<double>(record.memory_reserved_bytes));
    over_iterations.emplace_back("mem-allocated-bytes", static_cast<double>(record.memory_allocated_bytes));
    over_iterations.emplace_back("mem-max-allocated-bytes", static_cast<double>(record.memory_peak_bytes));
  }
  return {std::move(both), std::move(over_iterations)};
}

Scalars tagged_scalars(const ValidationRecord& record, const LogOptions& options) {
  Scalars both;
  for (const auto& [name, value] : record.losses) {
    const std::string tag = fmt::format("{} {}", name, record.set);
    both.emplace_back(tag, value);
    if (options.log_validation_ppl_to_tensorboard && has_perplexity(name)) {
      both.emplace_back(tag + " ppl", perplexity(value));
    }
  }
  return both;
}

}  // namespace megalith
