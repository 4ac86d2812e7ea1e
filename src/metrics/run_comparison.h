// A self-contained web page comparing runs: curves on common axes, speed, differing options.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "metrics/run_history.h"

namespace megalith {

struct ComparedRun {
  std::string name;    // as given
  std::string model;   // "llama, 12.6 M parameters"; may be empty
  std::string status;  // the last start's; may be empty
  RunHistory history;
  std::map<std::string, std::string> options;  // not default
};

// "" where a run has the default.
struct DifferingOption {
  std::string name;
  std::vector<std::string> values;  // by run
};
std::vector<DifferingOption> differing_options(const std::vector<ComparedRun>& runs);

std::string render_run_comparison(const std::vector<ComparedRun>& runs);

}  // namespace megalith
