#include "metrics/torchtune_log.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "metrics/interval.h"

namespace megalith {
namespace {

constexpr double kBytesOfGib = 1024.0 * 1024.0 * 1024.0;

double in_gib(int64_t bytes) { return static_cast<double>(bytes) / kBytesOfGib; }

}  // namespace

TorchtuneLog::TorchtuneLog(const LogOptions& options, bool clips_gradients, LineWriter write)
    : log_interval_(options.log_interval), clips_gradients_(clips_gradients), write_(std::move(write)) {
  if (options.log_file) write_(fmt::format("Writing logs to {}\n", *options.log_file));
}

void TorchtuneLog::on_step(const StepRecord& record) {
  if (!is_line_due(record, log_interval_)) return;
  const double tokens = record.loss_tokens ? record.loss_tokens_per_s_per_device() : record.tokens_per_s_per_device();
  // Readers expect digits on both sides of the point.
  std::string line = fmt::format(
      "Step {} | loss:{} lr:{} tokens_per_second_per_gpu:{:.4f} peak_memory_alloc:{:.6f} "
      "peak_memory_reserved:{:.6f} ",
      record.iteration, record.losses.empty() ? NAN : record.losses.front().second, record.learning_rate, tokens,
      in_gib(record.memory_peak_bytes), in_gib(record.memory_reserved_bytes));
  if (clips_gradients_ && record.grad_norm) line += fmt::format("grad_norm:{} ", *record.grad_norm);
  write_(line + "\n");
}

void TorchtuneLog::on_validation(const ValidationRecord& record) {
  if (record.losses.empty()) return;
  write_(fmt::format("Step {} | val_loss:{} \n", record.iteration, record.losses.front().second));
}

}  // namespace megalith
