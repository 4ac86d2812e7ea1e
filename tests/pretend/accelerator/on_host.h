// What the operators of pretend devices share: a device's memory seen from the host, and the order of its streams.
#pragma once

#include <ATen/core/Tensor.h>

namespace megalith::pretend {

// The tensor's memory as a tensor of the CPU: no copy.
at::Tensor as_host(const at::Tensor& x);

// The host waits until the thread's stream has done what it was given.
void wait_for_stream(c10::DeviceIndex device);

// An operator comes after what its stream was given before. (What the main stream still has to do is only for the
// host.)
void before_operator_on(at::Device device);

}  // namespace megalith::pretend
