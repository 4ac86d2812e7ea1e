// Creates the sinks of a run's records.
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
  int64_t iteration = 0;                                    // to resume after; 0: the start
  std::string run_id = {};                                  // of this start; empty: a new one
  std::function<void(std::string_view)> also_printed = {};  // receives the console's text too
  std::function<void()> on_closed_output = {};              // standard output has lost its reader
  std::vector<std::string> era_texts = {};                  // how the ranks changed so far, for the end's table
  std::vector<std::string> command = {};
  std::string commit = {};
};

// Console, metrics file, pictures, TensorBoard, W&B, MLflow and the terminal's progress line, as configured.
std::vector<std::unique_ptr<MetricsSink>> make_sinks(const Resolved& resolved, const SinkSettings& settings,
                                                     Logger& log);

}  // namespace megalith
