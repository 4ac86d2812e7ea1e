// Asynchronous copies between host and device.
#pragma once

#include <ATen/core/Tensor.h>

#include "device/stream.h"

namespace megalith {

// False for the CPU and kMeta.
bool has_own_memory(at::Device device);

// Host tensor for asynchronous copies: pinned for an accelerator.
at::Tensor empty_for_copies(at::IntArrayRef sizes, at::ScalarType dtype, at::Device device);

// Host to accelerator: through pinned memory, kept until the current stream passed the copy. Others: Tensor::to().
at::Tensor sent_to(const at::Tensor& tensor, at::Device device);

// Ordered after the current stream's work. From the CPU, the tensor itself.
class HostCopy {
 public:
  HostCopy();  // of nothing
  explicit HostCopy(const at::Tensor& tensor);

  // Blocks until it arrived; idempotent.
  const at::Tensor& wait() const;

 private:
  at::Tensor host_;
  StreamEvent has_come_;
};

}  // namespace megalith
