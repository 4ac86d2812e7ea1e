// Shared state of FSDP units with runs in host memory (fsdp_cpu_offload): copy stream and gradients in flight.
//
//   gather       run ──copy──▶ its place in the whole buffer ──all-gather──▶        on the copy stream
//   reduction    reduce-scatter ──▶ sum on the device ──copy──▶ run, or a landing   during computation
//
// A step's first gradient goes to the run itself; the CPU adds later ones on arrival. The host waits for the oldest
// landing before starting a third. Source of the idea: PyTorch's CPUOffloadPolicy for fully_shard.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <vector>

#include "device/stream.h"

namespace megalith {

class HostRuns {
 public:
  explicit HostRuns(at::Device device);
  ~HostRuns();
  HostRuns(const HostRuns&) = delete;

  // Pinned host memory.
  at::Tensor make_run(int64_t num_elements, at::ScalarType dtype) const;

  // Later work on the copy stream waits for the current stream.
  void follow_current() const;
  const c10::Stream& copies() const { return copies_; }

  // Starts copying a device sum to a run, which it `replaces`, or is added to by settle() at the latest. The event
  // fires when the sum has been read.
  StreamEvent land(const at::Tensor& sum, const at::Tensor& run, bool replaces);
  // Waits until everything in flight has arrived and been added, and gathered runs have been read.
  void settle();

  int64_t landing_bytes() const { return landing_bytes_; }

 private:
  struct Landing {
    at::Tensor landed, run;  // landed: undefined if copied to the run itself
    bool replaces = false;
    StreamEvent come;
  };
  at::Tensor take_landing(const at::Tensor& like);
  void settle_oldest();

  at::Device device_;
  c10::Stream copies_;
  std::deque<Landing> under_way_;
  std::vector<at::Tensor> free_;
  int64_t landing_bytes_ = 0;
};

}  // namespace megalith
