// tensorboard_dir: TensorBoard scalars under Megatron-LM's tags.
//
//   learning-rate, batch-size, skipped-train-samples, each loss ("lm loss"), loss-scale, world-size, grad-norm,
//   num-zeros, params-norm            over iterations; with the suffix " vs samples" over samples
//   iteration-time (s), throughput (TFLOP/s/device), token_throughput(tokens/sec/gpu)
//   mem-reserved-bytes, mem-allocated-bytes, mem-max-allocated-bytes
//   "lm loss validation", "lm loss validation ppl", likewise "test"; both axes
//   sample                            a text or picture, over iterations
//
// A run's file, events.out.tfevents.TIME.HOST.PROCESS, is complete on disk after each step. Source: Megatron-LM
// megatron/training/training.py, training_log (core_r0.14.0).
#pragma once

#include <memory>
#include <string>

#include "metrics/append_file.h"
#include "metrics/log_options.h"
#include "metrics/step_record.h"
#include "metrics/tagged_scalars.h"

namespace megalith {

class TensorboardSink : public MetricsSink {
 public:
  // Requires options.tensorboard_dir; creates it. UserError on failure.
  TensorboardSink(const LogOptions& options, Logger& log);

  void on_step(const StepRecord& record) override;
  void on_validation(const ValidationRecord& record) override;
  void on_generation(const GenerationRecord& record) override;
  void on_picture(const PictureRecord& record) override;
  void on_event(const EventRecord& record) override;

  const std::filesystem::path& path() const { return file_->path(); }

 private:
  // both: over iterations and samples.
  void write(int64_t iteration, int64_t consumed_samples, const Scalars& both, const Scalars& over_iterations);

  LogOptions options_;
  std::unique_ptr<AppendFile> file_;
};

}  // namespace megalith
