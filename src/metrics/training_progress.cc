// See training_progress.h.
#include "metrics/training_progress.h"

#include <fmt/format.h>

#include "core/log.h"
#include "core/strings.h"

namespace megalith {

void TrainingProgress::on_step(const StepRecord& record) {
  if (num_steps_++ == 0) since_first_.restart();
  const int64_t left = record.train_iters - record.iteration;
  line_ = fmt::format("step {} of {} ({:.0f} %)", record.iteration, record.train_iters,
                      100.0 * static_cast<double>(record.iteration) / static_cast<double>(record.train_iters));
  if (!record.losses.empty()) line_ += fmt::format(", loss {:.3f}", record.losses.front().second);
  line_ += fmt::format(", {} tok/s/device", format_count(record.tokens_per_s_per_device()));
  if (left > 0) {
    const double step_s =
        num_steps_ > 1 ? since_first_.elapsed_s() / static_cast<double>(num_steps_ - 1) : record.elapsed_ms / 1e3;
    line_ += fmt::format(", ETA {}", format_duration(step_s * static_cast<double>(left)));
  }
  log_.set_status(line_);
}

void TrainingProgress::on_end() { log_.set_status(""); }

}  // namespace megalith
