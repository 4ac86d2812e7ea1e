// A rank's process and whether it still runs, to name a killed rank. Visible only on its machine and within its PID
// namespace (containers have their own).
#pragma once

#include <string>
#include <string_view>

namespace megalith {

// This process as "<boot>/<numbering> <process> <start>".
std::string own_process();

enum class ProcessState {
  kRuns,     // or stopped, or waiting
  kEnded,    // including zombies
  kUnknown,  // on another machine, or malformed
};

ProcessState state_of_process(std::string_view process);

}  // namespace megalith
