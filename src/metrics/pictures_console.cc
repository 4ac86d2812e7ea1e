#include "metrics/pictures_console.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

namespace megalith {

PicturesConsole::PicturesConsole(int64_t log_interval, LineWriter write)
    : log_interval_(log_interval), write_(std::move(write)) {}

void PicturesConsole::on_step(const StepRecord& record) {
  interval_.add(record);
  if (!is_line_due(record, log_interval_)) return;
  constexpr double kGib = 1024.0 * 1024.0 * 1024.0;
  const double rate = interval_.images_per_s_per_device();
  const double loss = interval_.losses.empty() ? NAN : interval_.losses.front().mean();
  write_(fmt::format("step: {}/{} | step_loss: {:.5f} | step_time_total: {:.4f} | fps: {:.4f} | fps_gpu: {:.4f} | "
                     "tflops/s: {:.4f} | memory: {:.2f}GiB\n",
                     record.iteration, record.train_iters, loss,
                     interval_.elapsed_ms / 1e3 / static_cast<double>(interval_.num_steps), rate * record.num_devices,
                     rate, interval_.flops_per_s_per_device() / 1e12,
                     static_cast<double>(record.memory_used_bytes) / kGib));
  interval_ = {};
}

}  // namespace megalith
