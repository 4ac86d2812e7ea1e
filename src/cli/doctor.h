// The parts of `megalith doctor`: checks by each machine, and checks by all ranks together.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cli/command.h"
#include "comm/groups.h"
#include "core/error.h"
#include "core/finding.h"
#include "launch/launch.h"
#include "train/config.h"
#include "verify/collective_check.h"
#include "verify/speed_check.h"

namespace megalith {

struct DoctorOptions {
  bool json = false, hub = false, bench = false;
  std::optional<bool> collectives;  // unset: if there are several ranks
  int64_t largest_message_mib = 64, disk_probe_mib = 32;
  std::vector<std::string> node_groups;  // "2", "all"
  std::optional<std::string> report_dir;

  std::vector<UserError> check() const;
  void visit(OptionVisitor& v);
};

// The planned run, for the checks.
struct DoctorCase {
  const Resolved& resolved;  // validated as a whole only with has_model
  const DoctorOptions& options;
  EnvironmentMap environment;  // including the configuration file's exports
  Launch launch;
  bool has_model = false;
  bool uses_gpu = false;
};

// Findings of devices, memory, versions, ports, shared memory, NUMA, limits, disk and environment, in this order. Only
// one rank per machine probes the disks.
Findings check_environment(const DoctorCase& one);

// Speed of this rank's device (--bench), as table rows and as findings of the topic "speed".
struct SpeedReport {
  std::vector<SpeedRow> rows;
  std::string device;  // "GPU 0, MI300X"
  std::optional<ExpectedSpeeds> expected;
  Findings findings;
};
SpeedReport check_device_speed(const DoctorCase& one);

struct DoctorNode {
  std::string host;
  std::vector<std::string> failures;  // one line each
};

// Findings of all ranks together; the same on all of them.
struct WorldReport {
  Findings findings;                 // topics "collectives", and "disk" for the folder shared by all nodes
  Findings shared;                   // warnings and errors of all ranks, with the ranks that share them
  std::vector<Bandwidth> bandwidth;  // empty if not measured
  std::vector<DoctorNode> nodes;
  bool is_complete = false;          // the ranks met and nothing broke; else `findings` are only this rank's
};

// Meets the ranks, compares their identities and options, and runs the collectives.
//   own      this rank's findings, to be shared
//   on_hang  called on another thread if a collective hangs: this function will not return then
WorldReport check_world(const DoctorCase& one, const Findings& own,
                        const std::function<void(const std::string& message)>& on_hang);

// Collectives by groups of nodes (node_groups), as findings and failures of report.nodes, which it fills.
void check_node_groups(Group& world, const GroupFactory& factory, const DoctorCase& one, WorldReport& report);

// report.md, passing_nodes.txt and failing_nodes.txt, which srun's --nodelist and --exclude take.
void write_node_report(const std::string& folder, const std::vector<DoctorNode>& nodes, const std::string& text);

}  // namespace megalith
