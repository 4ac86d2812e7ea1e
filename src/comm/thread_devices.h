// Devices of ranks as threads, one each, with memory that the host can read.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace megalith {

class ThreadDevices {
 public:
  virtual ~ThreadDevices() = default;

  virtual at::Device device_of(int rank) const = 0;
  // A CPU tensor over the same memory, which must outlive it, after the stream's earlier work.
  virtual at::Tensor host_view(const at::Tensor& tensor) const = 0;
  // Runs `work` when the caller's stream reaches it, possibly at once.
  virtual void in_stream_order(at::Device device, std::function<void()> work) const = 0;
};

}  // namespace megalith
