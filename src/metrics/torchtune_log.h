// log_style torchtune: torchtune's log lines, beside log_format's.
//
//   Writing logs to out/logs/log_1769860800.txt
//   Step 1 | loss:12.251 lr:3e-06 tokens_per_second_per_gpu:6310.4217 peak_memory_alloc:5.2513 peak_memory_reserved:6.5
//
// The first line appears once, with log_file's path. Tokens are those in the loss, over all ranks' time; memory is in
// GiB; grad_norm is last if gradients are clipped. Evaluations have val_loss.
// Source: meta-pytorch/torchtune, torchtune/training/metric_logging.py, recipes/full_finetune_distributed.py.
#pragma once

#include <cstdint>

#include "metrics/console.h"
#include "metrics/log_options.h"

namespace megalith {

class TorchtuneLog : public MetricsSink {
 public:
  TorchtuneLog(const LogOptions& options, bool clips_gradients, LineWriter write);

  void on_step(const StepRecord& record) override;
  void on_validation(const ValidationRecord& record) override;

 private:
  int64_t log_interval_;
  bool clips_gradients_;
  LineWriter write_;
};

}  // namespace megalith
