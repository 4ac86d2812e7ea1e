// Replicated data parallelism: every rank holds all gradients of a chunk in buckets (buckets.h), summed over
// data-parallel ranks: the loss is already divided by the global number of valid tokens. Bytes exclude padding.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/groups.h"
#include "parallel/buckets.h"
#include "parallel/data_parallel.h"

namespace megalith {

class GradBuffer : public DataParallel {
 public:
  // params  in registration order; trainable ones get views. They and groups outlive the buffer.
  GradBuffer(const std::vector<Parameter*>& params, const Groups& groups, const GradBufferOptions& options);

  void begin_step() override { reducer_.begin_step(); }
  void begin_microbatch(bool is_last) override { reducer_.begin_microbatch(is_last); }
  void finish_step() override;
  // Parts are the parameters' own memory.
  void publish() override {}
  void wait_for_parameters() override {}
  void initialise(uint64_t seed, bool only_adapters) override;

  const std::vector<OwnedPart>& parts() const override { return parts_; }
  const std::vector<OwnedPart>& model_parts() const override { return model_parts_; }
  BlockRunner* runner() override { return nullptr; }
  int64_t parameter_bytes() const override;
  int64_t gradient_bytes() const override { return reducer_.num_bytes(); }

 private:
  const std::vector<Parameter*> params_;
  const Groups& groups_;
  GradReducer reducer_;
  std::vector<OwnedPart> parts_, model_parts_;
};

}  // namespace megalith
