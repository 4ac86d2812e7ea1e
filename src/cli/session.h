// What commands that run a model do first: resolve the configuration, choose the device, set the process up.
#pragma once

#include <memory>

#include "cli/command.h"
#include "comm/groups.h"
#include "train/config.h"

namespace megalith {

struct Session {
  std::unique_ptr<Resolved> resolved;
  Groups groups;
  at::Device device = at::kCPU;
};

// Sets threads, determinism and memory counting for this process, and says what resolving had to say.
Session start_session(CommandContext& context, std::unique_ptr<Resolved> resolved);

}  // namespace megalith
