// Process set-up; see session.h.
#include "cli/session.h"

#include <cstdlib>

#include "device/deterministic.h"
#include "device/device.h"
#include "device/memory.h"
#include "device/threads.h"

namespace megalith {

Session start_session(CommandContext& context, std::unique_ptr<Resolved> resolved) {
  for (const std::string& note : resolved->notes) context.log.note("{}", note);
  for (const auto& [name, value] : resolved->exports) ::setenv(name.c_str(), value.c_str(), /*overwrite=*/1);
  const RuntimeOptions& runtime = resolved->config.runtime;
  count_cpu_memory();
  set_num_threads(runtime.threads, /*ranks_on_this_machine=*/1);
  enable_amx();
  if (runtime.device.deterministic_mode) set_deterministic(true);
  const at::Device device = select_device(runtime.device.device, /*local_rank=*/0);
  if (resolved->derived.dtype == at::kBFloat16 && !has_native_bf16(device)) {
    context.log.note("bf16 is emulated on this processor, and slower than fp32");
  }
  return {std::move(resolved), Groups::single(), device};
}

}  // namespace megalith
