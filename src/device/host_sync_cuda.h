// LibTorch's sync debug mode; nothing without CUDA's headers.
#pragma once

#include <c10/core/Device.h>

#include <exception>

namespace megalith {

bool libtorch_tells_of_waits(const c10::Device& device);

// Makes operators and copies that wait throw, in all threads.
void make_libtorch_fail_on_waits(const c10::Device& device, bool is_on);

bool is_wait_of_libtorch(const std::exception& error);

}  // namespace megalith
