// log_style torchtune: the lines that torchtune's loggers write, beside those of log_format, for tools that read them.
//
//   Writing logs to out/logs/log_1769860800.txt
//   Step 1 | loss:12.251 lr:3e-06 tokens_per_second_per_gpu:6310.4217 peak_memory_alloc:5.2513 peak_memory_reserved:6.5
//
// The first line stands once, where log_file says it. Tokens are those in the loss, over all ranks' time; memory is in
// GiB, and grad_norm is behind it where gradients are clipped. An evaluation's line has val_loss.
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
