// LibTorch's sync debug mode: the part of host_sync.cc that needs CUDA's headers. Without them it does nothing.
#pragma once

#include <c10/core/Device.h>

#include <exception>

namespace megalith {

bool libtorch_tells_of_waits(const c10::Device& device);

// Makes operators and copies that wait for a CUDA device throw, in every thread; or no longer.
void make_libtorch_fail_on_waits(const c10::Device& device, bool is_on);

// True if LibTorch threw it because of that.
bool is_wait_of_libtorch(const std::exception& error);

}  // namespace megalith
