// Process set-up; see session.h.
#include "cli/session.h"

#include <cstdlib>

#include "device/deterministic.h"
#include "device/device.h"
#include "device/memory.h"
#include "device/threads.h"

namespace megalith {

Launch join_launch(CommandContext& context) {
  const Launch launch = discover_launch(context.environment);
  context.log.set_rank(launch.rank, launch.world_size);
  return launch;
}

Session start_session(CommandContext& context, std::unique_ptr<Resolved> resolved, const Launch& launch) {
  const Mesh mesh = Mesh::from_options(resolved->config.parallel, launch.world_size);
  if (launch.world_size > 1) {
    // "rank 5 dp1 tp1 pp0", without the number
    const std::string position = mesh.describe(launch.rank);
    const size_t space = position.find(' ', sizeof("rank"));
    context.log.set_rank(launch.rank, launch.world_size, space == std::string::npos ? "" : position.substr(space + 1));
  }
  for (const std::string& note : resolved->notes) context.log.note("{}", note);
  for (const auto& [name, value] : resolved->exports) ::setenv(name.c_str(), value.c_str(), /*overwrite=*/1);
  const RuntimeOptions& runtime = resolved->config.runtime;
  count_cpu_memory();
  set_num_threads(runtime.threads, launch.local_world_size);
  enable_amx();
  if (runtime.device.deterministic_mode) set_deterministic(true);
  const at::Device device = select_device(runtime.device.device, launch.local_rank);
  if (resolved->derived.dtype == at::kBFloat16 && !has_native_bf16(device)) {
    context.log.note("bf16 is emulated on this processor, and slower than fp32");
  }
  if (launch.world_size == 1) return {std::move(resolved), nullptr, Groups::single(), device};
  const double timeout_s = resolved->config.parallel.distributed_timeout_minutes * 60;
  auto world = std::make_unique<C10dWorld>(launch, device, timeout_s);
  Groups groups(mesh, launch.rank, world->factory());
  return {std::move(resolved), std::move(world), std::move(groups), device};
}

void Session::finish() {
  if (world) world->finish();
}

}  // namespace megalith
