// Tells if a rank's process still runs, within its machine and PID namespace.
#pragma once

#include <string>
#include <string_view>

namespace megalith {

// "<boot>/<numbering> <process> <start>".
std::string own_process();

enum class ProcessState {
  kRuns,     // even if stopped
  kEnded,    // even as a zombie
  kUnknown,  // another machine, or malformed
};

ProcessState state_of_process(std::string_view process);

}  // namespace megalith
