// Which process a rank is, and whether that still runs: the survivors of a killed rank name it by this.
//
// A process can be looked for only on its own machine, and there among those that share the numbering of processes
// (containers have their own).
#pragma once

#include <string>
#include <string_view>

namespace megalith {

// This process in words that any other can be given: "<boot>/<numbering> <process> <start>".
std::string own_process();

enum class ProcessState {
  kRuns,     // or is stopped, or waits
  kEnded,    // also when nobody has asked for its exit code yet
  kUnknown,  // on another machine, or the words are none of own_process()
};

ProcessState state_of_process(std::string_view process);

}  // namespace megalith
