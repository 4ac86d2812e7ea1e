// What FSDP's units share when their runs lie in host memory (fsdp_cpu_offload): the stream of the copies, and
// gradients that are on their way.
//
//   gather       run ──copy──▶ its place in the whole buffer ──all-gather──▶        on the stream of the copies
//   reduction    reduce-scatter ──▶ sum on the device ──copy──▶ run, or a landing   beside the computation
//
// The first gradient of a step lands in the run itself; what later microbatches bring is added by the CPU when it has
// come. So that landings stay few, the host waits for the oldest before a third is under way. Source of the idea:
// PyTorch's CPUOffloadPolicy for fully_shard.
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

  // Host memory for a run: pinned.
  at::Tensor make_run(int64_t num_elements, at::ScalarType dtype) const;

  // What follows on the stream of the copies comes behind the current stream.
  void follow_current() const;
  const c10::Stream& copies() const { return copies_; }

  // Starts the copy of a sum on the device into a run; it `replaces` what is there, or is added to it, which may be as
  // late as settle(). The event says when the sum has been read.
  StreamEvent land(const at::Tensor& sum, const at::Tensor& run, bool replaces);
  // Waits until all that is under way has come, and been added; runs that were being gathered have been read.
  void settle();

  // What landings take beside the runs.
  int64_t landing_bytes() const { return landing_bytes_; }

 private:
  struct Landing {
    at::Tensor landed, run;  // landed: undefined where it comes into the run itself
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
