// What commands that run a model do first: resolve the configuration, choose the device, set the process up, meet the
// other ranks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cli/command.h"
#include "comm/collective_watch.h"
#include "comm/groups.h"
#include "device/gpu_settings.h"
#include "launch/c10d_group.h"
#include "launch/launch.h"
#include "train/config.h"

namespace megalith {

struct Session {
  std::unique_ptr<Resolved> resolved;
  std::unique_ptr<C10dWorld> world;  // null in a world of one
  Groups groups;
  at::Device device = at::kCPU;
  std::vector<GpuSettingInForce> gpu_settings = {};
  Logger* log = nullptr;  // of the command
  double meeting_ms = 0;  // until all ranks had come and the world's connections stood; 0 in a world of one

  std::shared_ptr<CollectiveWatch> watch = {};  // of the groups' collectives; null without check_determinism

  // The last rank prints iteration lines and writes metrics, as in Megatron-LM: it is of the last pipeline stage, which
  // knows the loss.
  bool is_reporting() const { return groups.world->is_last(); }
  // For the start-up report: the device, and what was set for it.
  std::string device_text() const;
  // Returns when all ranks are done.
  void finish();
};

// Which rank of how many this process is; errors from now on come with the rank.
Launch join_launch(CommandContext& context);

// Sets threads, determinism and memory counting for this process, says what resolving had to say, and meets the other
// ranks that were launched; resolved is for a world of launch.world_size.
Session start_session(CommandContext& context, std::unique_ptr<Resolved> resolved, const Launch& launch = {});

// The text of store_secret_file; empty without one.
std::string store_secret(const ParallelOptions& parallel);

// That the program ends with for an error.
int exit_code_of(const std::exception& error);

// Tells the other ranks why this one ends. The first of those that end with the same words goes on to say them for all;
// the others get SilentExit.
void share_failure(C10dWorld& world, int rank, int world_size, const std::exception& error, Logger& log);

// Runs what follows start_session(). When it throws, the other ranks are told why before the exception goes on.
template <typename Body>
auto run_in_session(Session& session, const Body& body) {
  try {
    return body();
  } catch (const CommunicationError&) {
    throw;  // another rank is at fault
  } catch (const std::exception& error) {
    if (session.world) {
      share_failure(*session.world, session.groups.rank, session.groups.world->size(), error, *session.log);
    }
    throw;
  }
}

// The same for what comes before start_session(), such as reading the configuration: a rank that is refused meets the
// others only to say so.
void share_early_failure(const CommandContext& context, const Launch& launch, const std::exception& error);

template <typename Body>
auto run_before_session(CommandContext& context, const Launch& launch, const Body& body) {
  try {
    return body();
  } catch (const std::exception& error) {
    if (launch.world_size > 1) share_early_failure(context, launch, error);
    throw;
  }
}

}  // namespace megalith
