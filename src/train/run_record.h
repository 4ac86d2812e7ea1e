// run.json in the folder of a run (--output_dir), or record_file: who started it when, where, with which program and
// options, and how each start ended. A run that is started again adds a start.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "train/config.h"

namespace megalith {

// One start of the program.
struct RunStart {
  std::string run_id;
  std::string begin, end;  // UTC; end is empty while it runs, and after a kill
  std::string status;      // "running", "finished", "stopped by a signal", "stopped as configured", "failed: …"
  int64_t first_iteration = 0, last_iteration = 0;  // done before it, and when it ended
  std::string version, commit, torch_version;
  std::vector<std::string> command;     // the words of the command line
  std::string directory;                // that relative paths count from
  std::vector<std::string> hosts;       // by rank
  std::map<std::string, int64_t> axes;  // ranks on each: {"cp": 1, "dp": 4, …}
  std::string back_end, interface;      // of the collectives; empty in a world of one
  double meeting_ms = 0;                // until all ranks had come and were connected
  std::optional<int64_t> exit_code;     // of the program; nothing while it runs, and after a kill
  std::string device;
  std::string model;                           // "llama, 12.6 M parameters"
  std::map<std::string, std::string> options;  // what config.yaml has
};

// UserError when the file is not what write_run_record() wrote.
std::vector<RunStart> read_run_record(const std::filesystem::path& path);
void write_run_record(const std::filesystem::path& path, const std::vector<RunStart>& starts);

// config.yaml: what is not default, so that `megalith train --config` runs it again. What a model's folder, a
// checkpoint or output_dir gave is left out, because it comes from there again, and so is overwrite, which would begin
// anew.
std::string run_configuration(const Resolved& resolved);
std::map<std::string, std::string> run_options(const Resolved& resolved);

// The record of this start, kept up to date in the file; on one rank. Failures after the first write are warnings.
class RunRecord {
 public:
  // begins_anew  forgets earlier starts
  RunRecord(std::filesystem::path path, RunStart start, bool begins_anew, Logger& log);
  void end(const std::string& status, int64_t last_iteration, int64_t exit_code);

 private:
  std::filesystem::path path_;
  std::vector<RunStart> starts_;
  Logger& log_;
};

}  // namespace megalith
