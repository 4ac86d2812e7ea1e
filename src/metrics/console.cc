#include "metrics/console.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <utility>

#include "core/log.h"
#include "metrics/perplexity.h"

namespace megalith {

LineWriter standard_output(Logger& log, std::function<void()> on_closed) {
  return [&log, on_closed = std::move(on_closed)](std::string_view text) {
    log.set_status("");
    std::fflush(stdout);  // stdio's earlier output first
    while (!text.empty()) {
      const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) {
        if (on_closed && (errno == EPIPE || errno == EIO)) on_closed();
        return;
      }
      text.remove_prefix(static_cast<size_t>(written));
    }
  };
}

ConsoleSink::ConsoleSink(const LogOptions& options, LineWriter write)
    : options_(options),
      write_(std::move(write)),
      averages_(options.log_avg_skip_iterations, options.log_avg_reset_interval) {}

void ConsoleSink::on_step(const StepRecord& record) {
  run_.add(record);
  interval_.add(record);
  if (!is_line_due(record, options_.log_interval)) return;
  write_(line(record) + "\n");
  interval_ = {};
}

std::string ConsoleSink::line(const StepRecord& record) {
  const LineAverages::Values now{interval_.elapsed_ms / static_cast<double>(interval_.num_steps),
                                 interval_.flops_per_s_per_device() / 1e12, interval_.tokens_per_s_per_device()};
  const LineAverages::Values mean = averages_.add(record.iteration, now);

  std::string text = fmt::format(" iteration {:8d}/{:8d} | consumed samples: {:12d} |", record.iteration,
                                 record.train_iters, record.consumed_samples);
  const auto add = [&text](auto format, const auto&... values) {
    text += fmt::format(fmt::runtime(format), values...);
    text += " |";
  };
  if (record.skipped_samples > 0) add(" skipped samples: {:12d}", record.skipped_samples);
  add(" elapsed time per iteration (ms): {:.1f}/{:.1f}", now.elapsed_ms, mean.elapsed_ms);
  if (options_.log_throughput) {
    add(" mem usages: {:.4f}", record.memory_used_fraction());
    add(" throughput per GPU (TFLOP/s/GPU): {:.1f}/{:.1f}", now.tflops_per_device, mean.tflops_per_device);
    add(" tokens per GPU (tokens/s/GPU): {:.1f}/{:.1f}", now.tokens_per_s_per_device, mean.tokens_per_s_per_device);
    if (record.image_size > 0) {
      add(" images per GPU (images/s/GPU): {:.2f} | image size: {}", interval_.images_per_s_per_device(),
          record.image_size);
    }
    if (record.loss_tokens) {
      add(" tokens in the loss per GPU (tokens/s/GPU): {:.1f}", interval_.loss_tokens_per_s_per_device());
    }
  }
  add(" learning rate: {:.6E}", record.next_learning_rate.value_or(record.learning_rate));
  add(" global batch size: {:5d}", record.global_batch_size);
  for (const StepInterval::Loss& loss : interval_.losses) {
    if (is_shown(loss.name, loss.sum)) add(" {}: {:.6E}", loss.name, loss.mean());
  }
  add(" loss scale: {:.1f}", record.loss_scale);
  if (record.grad_norm) add(" grad norm: {:.3f}", *record.grad_norm);
  if (record.num_zeros) add(" num zeros: {:.1f}", static_cast<double>(*record.num_zeros));
  if (record.params_norm) add(" params norm: {:.3f}", *record.params_norm);
  add(" number of skipped iterations: {:3d}", interval_.num_skipped);
  add(" number of nan iterations: {:3d}", interval_.num_nan);
  return text;
}

void ConsoleSink::on_validation(const ValidationRecord& record) {
  std::string text = fmt::format(" {} loss at {} | ", record.set, record.when);
  for (const auto& [name, value] : record.losses) {
    text += fmt::format("{} value: {:.6E} | ", name, value);
    if (has_perplexity(name)) text += fmt::format("{} PPL: {:.6E} | ", name, perplexity(value));
  }
  const std::string dashes(text.size() + 1, '-');
  write_(fmt::format("{}\n{}\n{}\n", dashes, text, dashes));
}

void ConsoleSink::on_generation(const GenerationRecord& record) {
  std::string text = fmt::format(" sample at iteration {}:\n    ", record.iteration);
  for (const char c : record.prompt + record.continuation) {
    text += c;
    if (c == '\n') text += "    ";
  }
  write_(text + "\n");
}

void ConsoleSink::on_picture(const PictureRecord& record) {
  write_(fmt::format(" picture at iteration {}: {}{}\n", record.iteration, record.prompt,
                     record.file ? ", " + *record.file : ""));
}

void ConsoleSink::on_end() {
  const RunSummary summary = run_.summary();
  if (summary.num_steps == 0) return;
  write_(fmt::format(
      "throughput per GPU: {:.4f}\nelapsed time per iteration: {:.4f}\ntokens/GPU/s: {:.6f}\n"
      "mem usages: {:.4f}\n",
      summary.tflops_per_device, summary.elapsed_ms, summary.tokens_per_s_per_device, summary.memory_used_fraction));
}

}  // namespace megalith
