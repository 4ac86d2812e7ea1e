// Devices of ranks as threads, one each. Ranks reach into each other's memory, so the host must be able to read it: a
// pretend accelerator. By default ranks as threads compute on the CPU.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace megalith {

class ThreadDevices {
 public:
  virtual ~ThreadDevices() = default;

  virtual at::Device device_of(int rank) const = 0;
  // A CPU tensor over the memory of `tensor`, after earlier work on the caller's stream. The memory must outlive it.
  virtual at::Tensor host_view(const at::Tensor& tensor) const = 0;
  // Runs `work` when the caller's stream of `device` reaches it, possibly at once.
  virtual void in_stream_order(at::Device device, std::function<void()> work) const = 0;
};

}  // namespace megalith
