#include "device/host_sync_cuda.h"

#include <string_view>

#ifdef MEGALITH_CUDA_HEADERS
#include <c10/cuda/CUDAFunctions.h>
#endif

namespace megalith {

#ifdef MEGALITH_CUDA_HEADERS
bool libtorch_tells_of_waits(const c10::Device& device) { return device.is_cuda(); }

void make_libtorch_fail_on_waits(const c10::Device& device, bool is_on) {
  using c10::cuda::SyncDebugMode;
  if (!device.is_cuda()) return;
  c10::cuda::warning_state().set_sync_debug_mode(is_on ? SyncDebugMode::L_ERROR : SyncDebugMode::L_DISABLED);
}
#else
bool libtorch_tells_of_waits(const c10::Device&) { return false; }
void make_libtorch_fail_on_waits(const c10::Device&, bool) {}
#endif

bool is_wait_of_libtorch(const std::exception& error) {
  return std::string_view(error.what()).find("called a synchronizing CUDA operation") != std::string_view::npos;
}

}  // namespace megalith
