// Which sinks a run's records go to.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/log.h"
#include "metrics/step_record.h"
#include "train/config.h"

namespace megalith {

struct SinkSettings {
  std::string model_text;                                   // "llama, 12.6 M parameters": for the picture's subtitle
  int64_t iteration = 0;                                    // that the run goes on after; 0: it begins
  std::string run_id = {};                                  // of this start of the program; empty: a new one
  std::function<void(std::string_view)> also_printed = {};  // gets what the console does
  std::function<void()> on_closed_output = {};              // standard output has no reader any more
  std::vector<std::string> command = {};                    // the words of the command line
  std::string commit = {};                                  // that the program was built from
};

// Console lines, metrics file, pictures, TensorBoard, W&B, MLflow and the terminal's progress line, as the
// configuration says.
std::vector<std::unique_ptr<MetricsSink>> make_sinks(const Resolved& resolved, const SinkSettings& settings,
                                                     Logger& log);

}  // namespace megalith
