// See within_memory.h.
#include "cli/within_memory.h"

#include <stdexcept>

#include "device/peak_flops.h"
#include "train/step_plan.h"

namespace megalith {

int run_within_memory(const Session& session, const Launch& launch, const MemoryMeasure& measure,
                      const std::function<int(const MemoryEstimate&)>& body) {
  const Resolved& run = *session.resolved;
  const MemoryMeasure measured = [&](const Resolved& resolved, int rank) {
    const MemoryEstimate all = measure(resolved, rank);
    return session.device.is_cpu() ? all.of_one_memory() : all;
  };
  const MemoryEstimate estimate = measured(run, launch.rank);
  const std::optional<MemoryThere> there = memory_there(session.device, launch.local_world_size);
  const std::optional<KnownGpu> gpu = gpu_of(session.device);
  const SpeedOf speed_of = gpu && estimate.gradients > 0 ? speed_on(gpu->name, session.config_root) : SpeedOf{};
  check_memory(run, estimate, session.device, there, measured, speed_of);
  std::string text;
  try {
    return body(estimate);
  } catch (const std::exception& error) {
    if (!is_out_of_memory(error)) throw;
    // The run's of now: with fault_tolerance, ranks may have changed.
    text = out_of_memory_text(error, *session.resolved, estimate, session.device, there, measured, speed_of);
  }
  throw std::runtime_error(text);
}

}  // namespace megalith
