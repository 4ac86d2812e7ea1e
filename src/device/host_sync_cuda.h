// LibTorch's sync debug mode: host_sync.cc's part that needs CUDA's headers. Without them it does nothing.
#pragma once

#include <c10/core/Device.h>

#include <exception>

namespace megalith {

// Whether the mode is there for such a device.
bool libtorch_tells_of_waits(const c10::Device& device);

// From now on operators and copies that make the host wait for a CUDA device throw, in every thread; or no longer.
void make_libtorch_fail_on_waits(const c10::Device& device, bool is_on);

// Whether LibTorch threw it because of that.
bool is_wait_of_libtorch(const std::exception& error);

}  // namespace megalith
