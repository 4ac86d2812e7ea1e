// What commands that run a model do first: resolve the configuration, choose the device, set the process up, meet the
// other ranks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cli/command.h"
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

// Runs what follows start_session(). When it throws, the other ranks are told why before the exception goes on.
template <typename Body>
auto run_in_session(Session& session, const Body& body) {
  try {
    return body();
  } catch (const CommunicationError&) {
    throw;  // another rank is at fault
  } catch (const std::exception& error) {
    if (session.world) session.world->report_failure(error.what());
    throw;
  }
}

}  // namespace megalith
