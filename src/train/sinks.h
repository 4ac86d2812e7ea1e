// Which sinks a run's records go to.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/log.h"
#include "metrics/step_record.h"
#include "train/config.h"

namespace megalith {

// Console lines, metrics file, loss picture and the terminal's progress line, as the configuration says.
// model_text  "llama, 12.6 M parameters": for the picture's subtitle
std::vector<std::unique_ptr<MetricsSink>> make_sinks(const Resolved& resolved, const std::string& model_text,
                                                     Logger& log);

}  // namespace megalith
