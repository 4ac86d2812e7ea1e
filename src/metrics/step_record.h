// Everything that a run reports of an optimizer step. The trainer fills it in and the sinks render it, so nobody must
// parse a log line to learn a number that we had.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "metrics/observed_values.h"

namespace megalith {

struct StepRecord {
  int64_t iteration = 0;  // the one just done, from 1
  int64_t train_iters = 0;
  int64_t consumed_samples = 0;  // this step's included
  int64_t skipped_samples = 0;
  int64_t global_batch_size = 0;

  // Name and value in the order they were defined, the task's main loss first; means over the global batch.
  std::vector<std::pair<std::string, double>> losses;
  std::optional<double> grad_norm;           // before clipping
  std::optional<double> params_norm;         // after the step; when it was asked for
  std::optional<int64_t> num_zeros;          // zeros in the gradient, when it was asked for
  std::vector<ObservedValues> observations;  // what the model reported, over the global batch
  double learning_rate = 0;                  // used in this step
  std::optional<double> next_learning_rate;  // the next step's
  double loss_scale = 1;
  bool is_skipped = false;  // the optimizer did not move
  bool is_nan = false;      // a loss was not finite

  double elapsed_ms = 0;               // wall time, without evaluation and checkpoints
  int64_t tokens = 0;                  // in the global batch
  std::optional<int64_t> loss_tokens;  // those of them that count in the loss, where not all do
  int64_t image_size = 0;              // pixels of a side, where samples are pictures; else 0
  int num_devices = 1;
  double flops = 0;  // of the global batch by Primus's formula, which counts attention as if every key were seen, and
                     // neither prediction modules nor routers
  double model_flops = 0;   // with these too
  double causal_flops = 0;  // the same with attention only to keys that are seen: half, fewer with windows

  double peak_flops_per_device = 0;  // a second, in the precision of the products; 0: not known
  int64_t memory_used_bytes = 0;
  int64_t memory_total_bytes = 0;
  int64_t memory_reserved_bytes = 0;   // what the process takes of it
  int64_t memory_allocated_bytes = 0;  // what tensors take now, between two steps
  int64_t memory_peak_bytes = 0;       // what tensors took at most

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

// One evaluation.
struct ValidationRecord {
  int64_t iteration = 0;
  int64_t consumed_samples = 0;    // in training, until then
  std::string set = "validation";  // "validation-1" when there are several; "test"
  // "iteration 100"; after training "iteration 100 on validation set" or "… on test set".
  std::string when;
  std::vector<std::pair<std::string, double>> losses;
};

// A text that the model wrote during training.
struct GenerationRecord {
  int64_t iteration = 0;
  // Token ids with spaces between them when there is no tokenizer. UTF-8 without what a terminal
  // obeys (core/visible_text.h).
  std::string prompt, continuation;
};

// A picture that the model drew during training.
struct PictureRecord {
  int64_t iteration = 0;
  std::string prompt;               // as GenerationRecord's
  int64_t height = 0, width = 0;    // pixels
  std::string png;                  // the file's bytes
  std::string small_png;            // the picture again, no side longer than a page shows
  std::optional<std::string> file;  // where it was written
};

// Something that happened to a run and that a person will want to find again.
struct EventRecord {
  int64_t iteration = 0;
  std::string kind;  // "loss_spike", "large_gradient", "rollback", "step_fault"
  std::string text;  // one sentence
  // Samples of the run, counted from 0, that the event is about: [begin, end).
  int64_t begin_sample = 0, end_sample = 0;
};

// What renders records. Called from one thread.
class MetricsSink {
 public:
  virtual ~MetricsSink() = default;
  virtual void on_step(const StepRecord& record) = 0;
  virtual void on_validation(const ValidationRecord&) {}
  virtual void on_generation(const GenerationRecord&) {}
  virtual void on_picture(const PictureRecord&) {}
  virtual void on_event(const EventRecord&) {}
  // After the last step of the run.
  virtual void on_end() {}
};

}  // namespace megalith
