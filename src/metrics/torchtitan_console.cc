#include "metrics/torchtitan_console.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <utility>

namespace megalith {
namespace {

constexpr double kGib = 1024.0 * 1024.0 * 1024.0;

// "1,234,567" in any locale.
std::string with_commas(int64_t value) {
  std::string digits = fmt::format("{}", std::abs(value));
  for (auto at = static_cast<std::ptrdiff_t>(digits.size()) - 3; at > 0; at -= 3) {
    digits.insert(static_cast<size_t>(at), ",");
  }
  return value < 0 ? "-" + digits : digits;
}

// With two decimals.
std::string with_commas_and_cents(double value) {
  const std::string text = fmt::format("{:.2f}", value);
  if (!std::isfinite(value)) return text;
  const size_t point = text.find('.');
  return with_commas(std::stoll(text.substr(0, point))) + text.substr(point);
}

std::string memory_text(int64_t used, int64_t total) {
  const double share = total > 0 ? 100 * static_cast<double>(used) / static_cast<double>(total) : 0;
  return fmt::format("{:5.2f}GiB({:.2f}%)", static_cast<double>(used) / kGib, share);
}

}  // namespace

std::string wall_clock_text() {
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  std::tm local{};
  localtime_r(&seconds, &local);
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  return fmt::format("{:%Y-%m-%d %H:%M:%S},{:03}", local, ms);
}

TorchtitanConsole::TorchtitanConsole(int64_t log_interval, LineWriter write, WallClock clock)
    : log_interval_(log_interval), write_(std::move(write)), clock_(std::move(clock)) {}

void TorchtitanConsole::print(const std::string& message) {
  write_(fmt::format("[titan] {} - root - INFO - {}\n", clock_(), message));
}

void TorchtitanConsole::on_step(const StepRecord& record) {
  if (!has_begun_) print(fmt::format("Training starts at step {}", record.iteration));
  interval_.add(record);
  most_reserved_bytes_ = std::max(most_reserved_bytes_, record.memory_reserved_bytes);
  total_bytes_ = record.memory_total_bytes;
  const bool is_first = !std::exchange(has_begun_, true);
  if (!is_first && !is_line_due(record, log_interval_)) return;
  const double flops = interval_.flops_per_s_per_device();
  const std::string mfu = record.peak_flops_per_device > 0
                              ? fmt::format("{:.2f}%", 100 * flops / record.peak_flops_per_device)
                              : std::string("N/A");
  print(fmt::format("step: {:2}  loss: {:>8.5f}  grad_norm: {:>7.4f}  memory: {}  tps: {}  tflops: {}  mfu: {}",
                    record.iteration, record.losses.empty() ? NAN : record.losses.front().second,
                    record.grad_norm.value_or(NAN), memory_text(most_reserved_bytes_, total_bytes_),
                    with_commas(std::llround(interval_.tokens_per_s_per_device())), with_commas_and_cents(flops / 1e12),
                    mfu));
  interval_ = {};
  most_reserved_bytes_ = 0;
}

void TorchtitanConsole::on_validation(const ValidationRecord& record) {
  if (record.losses.empty()) return;
  print(fmt::format("validate step: {:2}  loss: {:>7.4f}  memory: {}", record.iteration, record.losses.front().second,
                    memory_text(most_reserved_bytes_, total_bytes_)));
}

void TorchtitanConsole::on_end() { print("Training completed"); }

}  // namespace megalith
