// Set-up of commands that run a model: resolves the configuration, chooses the device, sets up the process, meets the
// other ranks.
#pragma once

#include <filesystem>
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
  double meeting_ms = 0;  // until all ranks came and were connected; 0 in a world of one

  std::shared_ptr<CollectiveWatch> watch = {};  // for the groups' collectives; null without check_determinism
  std::filesystem::path config_root = {};  // of the command

  // The last rank prints iteration lines and writes metrics, as in Megatron-LM: the last pipeline stage knows the loss.
  bool is_reporting() const { return groups.world->is_last(); }
  // For the start-up report: the device and its settings.
  std::string device_text() const;
  // Returns once all ranks are done.
  void finish();
};

// This process's rank and world; from now on errors name the rank.
Launch join_launch(CommandContext& context);

// Sets threads, determinism and memory counting for this process, logs notes of resolving, and meets the other launched
// ranks; resolved is for a world of launch.world_size.
//   outlives_ranks  makes no groups: TrainingEras does
Session start_session(CommandContext& context, std::unique_ptr<Resolved> resolved, const Launch& launch = {},
                      bool outlives_ranks = false);

// The text of store_secret_file; empty without one.
std::string store_secret(const ParallelOptions& parallel);

// Exit code of the program for an error.
int exit_code_of(const std::exception& error);

// Tells the other ranks why this one ends. The first of several ranks with the same message returns to report it; the
// others get SilentExit.
void share_failure(C10dWorld& world, const std::exception& error, Logger& log);

// Runs code after start_session(). If it throws, tells the other ranks why, then rethrows.
template <typename Body>
auto run_in_session(Session& session, const Body& body) {
  try {
    return body();
  } catch (const CommunicationError&) {
    throw;  // another rank is at fault
  } catch (const std::exception& error) {
    if (session.world) {
      share_failure(*session.world, error, *session.log);
    }
    throw;
  }
}

// The same before start_session(), such as while reading the configuration: a refused rank meets the others only to say
// so.
void share_early_failure(const CommandContext& context, const Launch& launch, const std::exception& error);

// Ends ranks that would train with others whose run is dry.
void tell_dry_run(const CommandContext& context, const Launch& launch);

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
