// Waits of the host for the device where there should be none: in a training step (--fail_on_host_sync).
//
// Three things see a wait: StreamEvent::wait() and synchronize() of ours; LibTorch's sync debug mode, which knows the
// copies and operators that wait on NVIDIA's GPUs; and the pretend accelerator of the tests. All are told where: by the
// ranges that are open on the thread (RecordFunction's: operators, nodes of backward, named parts of a step).
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <stdexcept>
#include <string_view>

namespace megalith {

// The message names what waited, and the place, the innermost range first.
class HostSyncError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Runs `work`, in which neither this thread nor those of its backward may make the host wait for an accelerator:
// HostSyncError where one does. (LibTorch's mode for CUDA is the process's.) On the CPU, which has done everything when
// it was issued, only runs it. Not to be nested.
void without_host_sync(const c10::Device& device, const std::function<void()>& work);

// Whether LibTorch tells of its own waits for such a device. Where it does not (AMD's GPUs, a build without CUDA's
// headers), only those of ours are seen.
bool sees_waits_of_libtorch(const c10::Device& device);

// To be called where the host is about to wait for `what` ("an event"). Returns where that is allowed.
void note_host_sync(std::string_view what);

}  // namespace megalith
