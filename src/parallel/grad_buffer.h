// Gradient buffers: the gradients of all trainable parameters of a chunk in one contiguous tensor per dtype, cut into
// buckets that are reduced over the data-parallel ranks as soon as they are complete.
//
// Buckets are launched in one fixed order on every rank (that of the buffer, last layers first), each only after the
// one before; what is missing at the end of the step is flushed in that order, so a parameter without a contribution
// hangs nobody. Gradients are summed: the loss is already divided by the global number of valid tokens.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/group.h"
#include "nn/parameter.h"

namespace megalith {

struct GradBufferOptions {
  int64_t bucket_elements = 40'000'000;  // a bucket is closed once it holds this many
  bool overlap = true;                   // launch from backward; otherwise all at the end
};

class GradBuffer {
 public:
  // params  trainable ones, in registration order; each gets its view. They outlive the buffer.
  // group   ranks that hold replicas and see other data; may be of size one
  GradBuffer(const std::vector<Parameter*>& params, std::shared_ptr<Group> group, const GradBufferOptions& options);
  ~GradBuffer();
  GradBuffer(const GradBuffer&) = delete;

  void begin_step();
  // Reduction starts only in the backward pass of the last microbatch.
  void begin_microbatch(bool is_last);
  // Zeroes what got no contribution, launches what is missing, waits for all.
  void finish_step();

  const std::vector<Parameter*>& parameters() const { return params_; }
  int64_t num_bytes() const;

 private:
  struct Bucket {
    at::Tensor tensor;  // a run of the buffer
    std::vector<Parameter*> params;
    int64_t num_pending = 0;
    Work work;
  };
  void on_ready(Parameter& param);
  void launch_ready_buckets();

  std::vector<Parameter*> params_;
  std::shared_ptr<Group> group_;
  GradBufferOptions options_;
  std::vector<at::Tensor> buffers_;
  std::vector<Bucket> buckets_;
  size_t next_bucket_ = 0;
};

}  // namespace megalith
