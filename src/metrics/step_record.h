// A step's report, filled by the trainer, rendered by sinks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "metrics/observed_values.h"

namespace megalith {

struct StepRecord {
  int64_t iteration = 0;  // just done, from 1
  int64_t train_iters = 0;
  int64_t consumed_samples = 0;  // with this step's
  int64_t skipped_samples = 0;
  int64_t global_batch_size = 0;

  // In order of definition, the main loss first; means over the global batch. A data set's is absent without its rows.
  std::vector<std::pair<std::string, double>> losses;
  std::optional<double> grad_norm;           // before clipping
  std::optional<double> params_norm;         // after the step, if requested
  std::optional<int64_t> num_zeros;          // in the gradient, if requested
  std::optional<int64_t> num_sanitized;      // its elements that were not finite, with sft_sanitize_nan_grads
  std::vector<ObservedValues> observations;  // over the global batch
  double learning_rate = 0;                  // this step's
  std::optional<double> next_learning_rate;
  double loss_scale = 1;
  bool is_skipped = false;  // no update
  bool is_nan = false;      // non-finite loss
  bool is_repeated = false; // made again after ranks that had begun it were lost (fault_tolerance)

  double elapsed_ms = 0;               // wall time without evaluations and checkpoints
  int64_t tokens = 0;                  // in the global batch
  std::optional<int64_t> loss_tokens;  // in the loss, if not all
  int64_t image_size = 0;              // pixels per side, else 0
  int num_devices = 1;
  double flops = 0;        // the global batch's, by Primus's formula: full attention, no prediction modules, no routers
  double model_flops = 0;  // with these
  double causal_flops = 0;  // likewise, attending only to visible keys

  double peak_flops_per_device = 0;  // per second, in the products' precision; 0: unknown
  int64_t memory_used_bytes = 0;
  int64_t memory_total_bytes = 0;
  int64_t memory_reserved_bytes = 0;   // by the process
  int64_t memory_allocated_bytes = 0;  // by tensors, between steps
  int64_t memory_peak_bytes = 0;       // by tensors, at most

  double tokens_per_s_per_device() const { return per_s_per_device(static_cast<double>(tokens)); }
  double loss_tokens_per_s_per_device() const { return per_s_per_device(static_cast<double>(loss_tokens.value_or(0))); }
  double images_per_s_per_device() const { return per_s_per_device(static_cast<double>(global_batch_size)); }
  double tflops_per_device() const { return per_s_per_device(flops) / 1e12; }
  double model_tflops_per_device() const { return per_s_per_device(model_flops) / 1e12; }
  double causal_tflops_per_device() const { return per_s_per_device(causal_flops) / 1e12; }
  double memory_used_fraction() const {
    return memory_total_bytes > 0 ? static_cast<double>(memory_used_bytes) / static_cast<double>(memory_total_bytes)
                                  : 0;
  }

 private:
  double per_s_per_device(double amount) const { return elapsed_ms > 0 ? amount * 1e3 / elapsed_ms / num_devices : 0; }
};

struct ValidationRecord {
  int64_t iteration = 0;
  int64_t consumed_samples = 0;    // by training
  std::string set = "validation";  // "validation-1" if several; "test"
  // "iteration 100"; at the end "iteration 100 on validation set" or "… on test set".
  std::string when;
  std::vector<std::pair<std::string, double>> losses;
  std::optional<bool> is_best = {};  // so far; of the set that metric_for_best_model judges
};

struct GenerationRecord {
  int64_t iteration = 0;
  // UTF-8 without terminal control characters; without a tokenizer, ids.
  std::string prompt, continuation;
};

struct PictureRecord {
  int64_t iteration = 0;
  std::string prompt;               // as in GenerationRecord
  int64_t height = 0, width = 0;    // pixels
  std::string png;                  // a file's content
  std::string small_png;            // scaled down for a page
  std::optional<std::string> file;  // path written to
};

struct EventRecord {
  int64_t iteration = 0;
  // "loss_spike", "large_gradient", "rollback", "step_fault", "early_stop", "ranks_left", "ranks_joined",
  // "ranks_restarted"
  std::string kind;
  std::string text;  // one sentence
  // The samples concerned, from 0: [begin, end).
  int64_t begin_sample = 0, end_sample = 0;
};

// Renders records. Called from one thread.
class MetricsSink {
 public:
  virtual ~MetricsSink() = default;
  virtual void on_step(const StepRecord& record) = 0;
  virtual void on_validation(const ValidationRecord&) {}
  virtual void on_generation(const GenerationRecord&) {}
  virtual void on_picture(const PictureRecord&) {}
  virtual void on_event(const EventRecord&) {}
  // After the last step.
  virtual void on_end() {}
};

}  // namespace megalith
