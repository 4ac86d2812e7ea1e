// Detects waits for the device within a training step (--fail_on_host_sync): our own, LibTorch's in its sync debug mode
// (NVIDIA), the tests' accelerator's. Open RecordFunction ranges name the place.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <stdexcept>
#include <string_view>

namespace megalith {

// Names what waited, and the ranges, innermost first.
class HostSyncError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Throws HostSyncError if this thread or its backward waits for an accelerator. LibTorch's mode is process-wide. Does
// not nest.
void without_host_sync(const c10::Device& device, const std::function<void()>& work);

// False on AMD and without CUDA's headers.
bool sees_waits_of_libtorch(const c10::Device& device);

// Call before waiting for `what` ("an event"); throws if forbidden.
void note_host_sync(std::string_view what);

}  // namespace megalith
