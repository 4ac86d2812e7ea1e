// Starts another program and waits for it: the trainer for `megalith launch`, docker and dmesg for CVS.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace megalith {

struct Process {
  std::vector<std::string> words;                       // the program, searched on PATH, and its arguments
  std::map<std::string, std::string> environment = {};  // added to that of this process
  std::string output_file = {};                         // both outputs are appended to it
  bool captures = true;    // without output_file: captures both outputs; else they go to the console
  bool has_input = false;  // reads this process's input; else has none
};

struct ProcessResult {
  int exit_code = 0;  // 127: could not be started, see `errors`; 128 + N: ended by signal N
  std::string output = {}, errors = {};
};

// Replaced in tests.
using ProcessRunner = std::function<ProcessResult(const Process& process)>;

// Forwards SIGTERM and SIGINT to the program and still waits for its end: no process is left running.
ProcessResult run_process(const Process& process);

}  // namespace megalith
