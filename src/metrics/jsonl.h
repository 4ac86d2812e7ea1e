// metrics_file: one JSON object an optimizer step, one line an object.
//
//   {"iteration":3,"train_iters":50,"lm_loss":9.81,"grad_norm":4.2,"learning_rate":3e-05,"elapsed_ms":210.3,
//    "tokens_per_s_per_device":9740.1,"tflops_per_device":0.91,…}
//
// Numbers that are not finite, and norms that were not computed, are null. Losses have '_' for blanks: lm_loss.
//
// Lines are appended. A run that was killed may have left its last line unfinished: opening drops that. Lines of steps
// that a resumed run does again stay; the later line of an iteration is the one that counts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "metrics/append_file.h"
#include "metrics/step_record.h"

namespace megalith {

class Logger;

class JsonlSink : public MetricsSink {
 public:
  // Creates the file and its folder. UserError when that fails. A line that cannot be written later (a full disk) is
  // dropped whole, with one warning.
  JsonlSink(std::filesystem::path path, Logger& log);

  void on_step(const StepRecord& record) override;

 private:
  AppendFile file_;
};

// The line, without its break.
std::string json_line(const StepRecord& record);

}  // namespace megalith
