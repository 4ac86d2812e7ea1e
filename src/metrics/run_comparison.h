// One web page on several runs: their curves on common axes, how fast they were, and the options in which they differ.
// One file, as the page of a run is (metrics/run_page.h): no network, nothing to install.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "metrics/run_history.h"

namespace megalith {

struct ComparedRun {
  std::string name;    // as it was given
  std::string model;   // "llama, 12.6 M parameters"; may be empty
  std::string status;  // of its last start; may be empty
  RunHistory history;
  std::map<std::string, std::string> options;  // that differ from their defaults
};

// An option that not all runs have alike; "" where a run leaves it at its default.
struct DifferingOption {
  std::string name;
  std::vector<std::string> values;  // by run
};
std::vector<DifferingOption> differing_options(const std::vector<ComparedRun>& runs);

std::string render_run_comparison(const std::vector<ComparedRun>& runs);

}  // namespace megalith
