// Shared by the operators of pretend devices: a device's memory seen from the host, and the order of its streams.
#pragma once

#include <ATen/core/Tensor.h>

namespace megalith::pretend {

// The tensor's memory as a tensor of the CPU: no copy.
at::Tensor as_host(const at::Tensor& x);

// Runs what the thread's stream was given.
void wait_for_stream(c10::DeviceIndex device);

// The host waits for the thread's stream; what it issues from then on comes after that on every stream.
void host_waits_for_stream(c10::DeviceIndex device);

// An operator reads or writes the tensor's memory on the thread's stream (memory.h).
void note_use_of(const at::Tensor& x, bool is_written);

// An operator comes after what its stream was given before. (What the main stream still has to do is only for the
// host.)
void before_operator_on(at::Device device);

}  // namespace megalith::pretend
