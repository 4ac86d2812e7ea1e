// Running a program of the machine, for what CVS does with docker and dmesg.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace megalith {

struct CvsCommand {
  std::vector<std::string> words;                  // the program, looked for on the PATH, and its arguments
  std::map<std::string, std::string> environment;  // beside that of this process
  std::string output_file = {};                    // takes both outputs, instead of the result
};

struct CvsCommandResult {
  int exit_code = 0;  // 127: there is no such program; 128 + N: signal N ended it
  std::string output, errors;
};

// Tests bring their own.
using CvsCommandRunner = std::function<CvsCommandResult(const CvsCommand& command)>;

// Runs it with nothing on its input, and waits for its end.
CvsCommandResult run_cvs_command(const CvsCommand& command);

}  // namespace megalith
