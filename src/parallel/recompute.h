// Runs a model's blocks so that layers are computed again in backward, within whatever data parallelism does around
// them: parameters are gathered for a block's backward before it is computed again, once.
#pragma once

#include <cstdint>
#include <vector>

#include "nn/block_runner.h"
#include "parallel/offload.h"
#include "parallel/pipeline/schedule.h"
#include "parallel/recompute_options.h"

namespace megalith {

class RecomputeRunner : public BlockRunner {
 public:
  // outer    what runs around everything, DataParallel::runner(); null: nothing
  // offload  takes what the plan's offloaded layers keep; not null when there are any
  // Both outlive the runner. Without autograd, as in evaluation, blocks run through outer alone.
  RecomputeRunner(RecomputePlan plan, BlockRunner* outer, HostOffload* offload);

  std::vector<at::Tensor> run(const Block& block, const std::vector<at::Tensor>& inputs,
                              const BlockBody& body) override;

 private:
  RecomputePlan plan_;
  BlockRunner* outer_;
  HostOffload* offload_;
};

// Bytes of activations that one microbatch holds on the device.
struct ActivationCost {
  int64_t kept = 0;  // between its forward and its backward
  // At most while it is under way. Backward frees a block's before it comes to the one before; so it is the largest,
  // over the blocks, of what they and those before them keep, the block's own activations when it is computed again,
  // and the gradients and temporary results of its backward.
  int64_t peak = 0;
};
// blocks  of one chunk in the order in which they run, cut as the plan wants
ActivationCost activation_cost(const std::vector<BlockCost>& blocks, const RecomputePlan& plan);

// At most while a rank works through its list of a schedule; chunks: of each of its chunks.
int64_t pipeline_activation_peak(const std::vector<Action>& actions, const std::vector<ActivationCost>& chunks);

}  // namespace megalith
