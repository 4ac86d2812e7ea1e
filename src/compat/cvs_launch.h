// Starting the run of a CVS case on this machine, in a container or without one, as CVS's tests do: every step is a
// finding. Each node starts its own part of a run over several nodes; the last one has the iterations.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "compat/cvs_judge.h"
#include "compat/process.h"

namespace megalith {

struct CvsLaunch {
  std::string engine;                   // "docker", "podman", "none"
  int64_t node_rank = 0;                // this machine's place among the nodes
  std::filesystem::path source_root;    // has examples/; where the scripts are without a container
  std::filesystem::path machine = "/";  // below which devices are looked for; another one in tests
  // Addresses of a host's name, none when nobody knows it. Null: it is not looked up.
  std::function<std::vector<std::string>(const std::string& host)> resolve = nullptr;
};

struct CvsLaunched {
  CvsFindings findings;
  std::filesystem::path log;  // that the script wrote; empty when it was not started
};

// <log_dir>/megatron-logs/out-node<i>/training.log
std::filesystem::path cvs_log_path(const CvsConfig& config, int64_t node);

// Where a run of ours leaves run.json: beside its log, and for one over several nodes beside the first node's.
std::filesystem::path cvs_run_folder(const CvsConfig& config, const CvsCase& of, int64_t node);

// The variables of the script, as CVS exports them; without the token.
std::map<std::string, std::string> cvs_exports(const CvsConfig& config, const CvsCase& of, int64_t node_rank);

// Pulls the image when it is absent, removes a stale container of the name, starts it and looks into it, runs the
// script, and removes the container again, whatever happened. Waits until the script ends.
CvsLaunched launch_cvs_run(const CvsConfig& config, const CvsCase& of, const CvsLaunch& launch,
                           const ProcessRunner& run);

}  // namespace megalith
