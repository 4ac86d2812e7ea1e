// Detects unwanted waits of the host for the device in a training step (--fail_on_host_sync).
//
// Waits are seen by our StreamEvent::wait() and synchronize(), LibTorch's sync debug mode (NVIDIA's GPUs), and the
// tests' pretend accelerator. Their place is given by the thread's open RecordFunction ranges (operators, nodes of
// backward, named parts of a step).
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <stdexcept>
#include <string_view>

namespace megalith {

// Names what waited, and where, the innermost range first.
class HostSyncError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Runs `work`; HostSyncError if this thread or its backward makes the host wait for an accelerator. (LibTorch's CUDA
// mode is process-wide.) On the CPU just runs it. Not to be nested.
void without_host_sync(const c10::Device& device, const std::function<void()>& work);

// True if LibTorch reports its own waits for such a device; otherwise (AMD's GPUs, builds without CUDA's headers) only
// ours are seen.
bool sees_waits_of_libtorch(const c10::Device& device);

// Call before the host waits for `what` ("an event"). Returns if that is allowed.
void note_host_sync(std::string_view what);

}  // namespace megalith
