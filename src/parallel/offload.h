// Activations kept in host memory between forward and backward, copied to pinned memory on a side stream; fetching an
// entry prefetches the one stored before, which backward needs next. On the CPU, plain copies exercise the code. Source
// of the idea: Rhu et al. 2016 (vDNN), arXiv:1602.08124.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <vector>

#include "device/stream.h"

namespace megalith {

class HostOffload {
 public:
  explicit HostOffload(at::Device device);
  ~HostOffload();
  HostOffload(const HostOffload&) = delete;

  // Starts copying these tensors (contiguous, on the device, no autograd). The returned function, called at most once,
  // gives them back on the device, ordered after the current stream, and prefetches the previous entry. Dropping it
  // frees the entry; it may outlive the HostOffload.
  std::function<std::vector<at::Tensor>()> store(const std::vector<at::Tensor>& tensors);

  int64_t host_bytes() const;
  int64_t peak_host_bytes() const;

 private:
  struct Entry;
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace megalith
