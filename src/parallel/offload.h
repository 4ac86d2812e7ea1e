// Activations that wait in host memory between forward and backward.
//
// A copy to pinned memory runs on a side stream beside the computation; when backward asks for an entry, the one that
// was stored before it, which backward wants next, is already under way. On the CPU the copies are plain ones into
// other memory: nothing is gained, everything is exercised. Source of the idea: Rhu et al. 2016 (vDNN),
// arXiv:1602.08124.
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

  // Starts the copy of these tensors (contiguous, of the device, no autograd; entries of the same storage are copied
  // apart). What is returned gives them back on the device, ordered after everything on the current stream, and starts
  // fetching what was stored before them; it is called at most once. Dropping it frees the entry. It may outlive the
  // HostOffload.
  std::function<std::vector<at::Tensor>()> store(const std::vector<at::Tensor>& tensors);

  // Bytes that wait in host memory now, and the most so far.
  int64_t host_bytes() const;
  int64_t peak_host_bytes() const;

 private:
  struct Entry;
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace megalith
