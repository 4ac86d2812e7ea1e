// Starts the run of a CVS case on this machine, with or without a container, as CVS's tests do: every step is a
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
  std::filesystem::path source_root;    // has examples/; the scripts' folder without a container
  std::filesystem::path machine = "/";  // root under which devices are looked for; tests use another
  // Addresses of a host name; none if unknown. Null: no look-up.
  std::function<std::vector<std::string>(const std::string& host)> resolve = nullptr;
};

struct CvsLaunched {
  CvsFindings findings;
  std::filesystem::path log;  // written by the script; empty if it was not started
};

// <log_dir>/<trainer>-logs[/RUN]/out-node<i>/training.log; RUN of a sweep with Megatron-LM.
std::filesystem::path cvs_log_path(const CvsConfig& config, const CvsCase& of, int64_t node);

// Folder for our run.json: next to the log, of a run over several nodes next to the first node's.
std::filesystem::path cvs_run_folder(const CvsConfig& config, const CvsCase& of, int64_t node);

// Variables of the script, as CVS exports them, without the token.
std::map<std::string, std::string> cvs_exports(const CvsConfig& config, const CvsCase& of, int64_t node_rank);

// Pulls the image if absent, removes a stale container of the name, starts and checks it, runs the script to its end,
// and always removes the container.
CvsLaunched launch_cvs_run(const CvsConfig& config, const CvsCase& of, const CvsLaunch& launch,
                           const ProcessRunner& run);

}  // namespace megalith
