#include "metrics/training_progress.h"

#include <fmt/format.h>

#include "core/log.h"
#include "core/strings.h"

namespace megalith {

void TrainingProgress::on_step(const StepRecord& record) {
  line_ = fmt::format("step {} of {} ({:.0f} %)", record.iteration, record.train_iters,
                      100.0 * static_cast<double>(record.iteration) / static_cast<double>(record.train_iters));
  if (!record.losses.empty()) line_ += fmt::format(", loss {:.3f}", record.losses.front().second);
  line_ += fmt::format(", {} tok/s/device", format_count(record.tokens_per_s_per_device()));
  if (const auto left_s = time_left_.after(record)) line_ += fmt::format(", ETA {}", format_duration(*left_s));
  log_.set_status(line_);
}

void TrainingProgress::on_end() { log_.set_status(""); }

}  // namespace megalith
