// The parts of `megalith doctor`: what each machine checks by itself, and what the ranks check together.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cli/command.h"
#include "core/finding.h"
#include "launch/launch.h"
#include "train/config.h"
#include "verify/collective_check.h"
#include "verify/speed_check.h"

namespace megalith {

struct DoctorOptions {
  bool json = false, hub = false, bench = false;
  std::optional<bool> collectives;  // unset: when there are several ranks
  int64_t largest_message_mib = 64, disk_probe_mib = 32;

  void visit(OptionVisitor& v);
};

// Everything that a check may need of the run that is planned.
struct DoctorCase {
  const Resolved& resolved;  // checked as a whole only when has_model
  const DoctorOptions& options;
  EnvironmentMap environment;  // with what the configuration file exports
  Launch launch;
  bool has_model = false;
  bool uses_gpu = false;
};

// Findings of devices, memory, versions, ports, shared memory, NUMA, limits, disk and environment, in this order. Only
// one rank of each machine probes the disks.
Findings check_environment(const DoctorCase& one);

// What this rank's device reaches (--bench), as rows of a table and as findings of the topic "speed".
struct SpeedReport {
  std::vector<SpeedRow> rows;
  std::string device;  // "GPU 0, MI300X"
  std::optional<ExpectedSpeeds> expected;
  Findings findings;
};
SpeedReport check_device_speed(const DoctorCase& one);

// What the ranks found together; the same on all of them.
struct WorldReport {
  Findings findings;                 // of the topic "collectives", and of "disk" for the folder of all nodes
  Findings shared;                   // own findings of all ranks that are warnings or errors, with who shares them
  std::vector<Bandwidth> bandwidth;  // empty when not measured
  bool is_complete = false;          // the ranks met and nothing broke; else `findings` are only this rank's
};

// Meets the ranks, compares what they are and what they were asked, and runs the collectives.
//   own      this rank's findings, to be shared
//   on_hang  called on another thread when a collective does not end: this function will not return then
WorldReport check_world(const DoctorCase& one, const Findings& own,
                        const std::function<void(const std::string& message)>& on_hang);

}  // namespace megalith
