// Starting another program and waiting for its end: the trainer behind `megalith launch`, and what CVS does with docker
// and dmesg.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace megalith {

struct Process {
  std::vector<std::string> words;                       // the program, looked for on the PATH, and its arguments
  std::map<std::string, std::string> environment = {};  // beside that of this process
  std::string output_file = {};                         // takes both outputs, behind what is there
  bool captures = true;    // without output_file: both outputs come back; else the console's
  bool has_input = false;  // reads this process's input; else there is none
};

struct ProcessResult {
  int exit_code = 0;  // 127: it could not be started, which `errors` says; 128 + N: signal N ended it
  std::string output = {}, errors = {};
};

// Tests bring their own.
using ProcessRunner = std::function<ProcessResult(const Process& process)>;

// SIGTERM and SIGINT that come meanwhile go to the program, whose end is awaited all the same: what was started is
// never left behind.
ProcessResult run_process(const Process& process);

}  // namespace megalith
