// Copies between the host's memory and a device that the host does not wait for.
#pragma once

#include <ATen/core/Tensor.h>

#include "device/stream.h"

namespace megalith {

// Whether the device has memory of its own beside the host's: not the CPU, and not kMeta.
bool has_own_memory(at::Device device);

// An empty tensor of host memory that copies to and from `device` need not wait for: pinned beside an accelerator.
at::Tensor empty_for_copies(at::IntArrayRef sizes, at::ScalarType dtype, at::Device device);

// A tensor of host memory on the device: through pinned memory to an accelerator, before what the current stream does
// next. The allocator of pinned memory keeps the copy until the stream has passed it. Any other tensor: Tensor::to().
at::Tensor sent_to(const at::Tensor& tensor, at::Device device);

// A tensor on its way to the host, behind what the current stream was given before. From the CPU: the tensor itself.
class HostCopy {
 public:
  HostCopy();  // of nothing
  explicit HostCopy(const at::Tensor& tensor);

  // Waits until it has come; again: at once.
  const at::Tensor& wait() const;

 private:
  at::Tensor host_;
  StreamEvent has_come_;
};

}  // namespace megalith
