// run.json in a run's folder (--output_dir), or record_file: each start's user, time, place, program, options and
// outcome. Restarts append.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "train/config.h"

namespace megalith {

struct RunStart {
  std::string run_id;
  std::string begin, end;  // UTC; end is empty while running and after a kill
  std::string status;      // "running", "finished", "stopped by a signal", "stopped as configured", "failed: …"
  int64_t first_iteration = 0, last_iteration = 0;  // done before it, and at its end
  std::string version, commit, torch_version;
  std::vector<std::string> command;
  std::string directory;                // base of relative paths
  std::vector<std::string> hosts;       // by rank
  std::map<std::string, int64_t> axes;  // axis sizes: {"cp": 1, "dp": 4, …}
  std::string back_end, interface;      // of the collectives; empty in a world of one
  double meeting_ms = 0;                // until all ranks were connected
  std::optional<int64_t> exit_code;     // unset while running and after a kill
  std::string device;
  std::string model;                           // "llama, 12.6 M parameters"
  std::map<std::string, std::string> options;  // as in config.yaml
};

// UserError unless written by write_run_record().
std::vector<RunStart> read_run_record(const std::filesystem::path& path);
void write_run_record(const std::filesystem::path& path, const std::vector<RunStart>& starts);

// config.yaml: non-default options, for `megalith train --config`. Omits values that come again from a model's folder,
// a checkpoint or output_dir, and overwrite, which would start afresh.
std::string run_configuration(const Resolved& resolved);
std::map<std::string, std::string> run_options(const Resolved& resolved);

// This start's record, kept up to date in the file by one rank. Failures after the first write are warnings.
class RunRecord {
 public:
  // begins_anew  drops earlier starts
  RunRecord(std::filesystem::path path, RunStart start, bool begins_anew, Logger& log);
  void end(const std::string& status, int64_t last_iteration, int64_t exit_code);

 private:
  std::filesystem::path path_;
  std::vector<RunStart> starts_;
  Logger& log_;
};

}  // namespace megalith
