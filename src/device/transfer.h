// Copies between host and device without waiting.
#pragma once

#include <ATen/core/Tensor.h>

#include "device/stream.h"

namespace megalith {

// True unless the CPU or kMeta.
bool has_own_memory(at::Device device);

// An empty host tensor whose copies to and from `device` are asynchronous: pinned for an accelerator.
at::Tensor empty_for_copies(at::IntArrayRef sizes, at::ScalarType dtype, at::Device device);

// A host tensor on the device: to an accelerator through pinned memory, kept until the current stream has passed the
// copy. Other tensors: Tensor::to().
at::Tensor sent_to(const at::Tensor& tensor, at::Device device);

// A tensor on its way to the host, after earlier work on the current stream. From the CPU: the tensor itself.
class HostCopy {
 public:
  HostCopy();  // of nothing
  explicit HostCopy(const at::Tensor& tensor);

  // Waits until it has come; idempotent.
  const at::Tensor& wait() const;

 private:
  at::Tensor host_;
  StreamEvent has_come_;
};

}  // namespace megalith
