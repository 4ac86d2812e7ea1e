// Devices of ranks that are threads of one process, each rank with one of its own. The ranks reach into one another's
// memory, so it must be memory that the host can read: an accelerator that pretends. Without this, ranks as threads
// compute on the CPU.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace megalith {

class ThreadDevices {
 public:
  virtual ~ThreadDevices() = default;

  virtual at::Device device_of(int rank) const = 0;
  // A tensor of the CPU over the memory of `tensor`, behind what the caller's stream was given before. The memory must
  // outlive it.
  virtual at::Tensor host_view(const at::Tensor& tensor) const = 0;
  // Runs `work` when the caller's stream of `device` comes to it, which may be at once.
  virtual void in_stream_order(at::Device device, std::function<void()> work) const = 0;
};

}  // namespace megalith
