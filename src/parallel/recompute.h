// Runs a model's blocks so that layers are computed again in backward, within whatever data parallelism does around
// them: parameters are gathered for a block's backward before it is computed again, once.
#pragma once

#include <vector>

#include "nn/block_runner.h"
#include "parallel/offload.h"
#include "parallel/recompute_options.h"

namespace megalith {

class RecomputeRunner : public BlockRunner {
 public:
  // outer    what runs around everything, DataParallel::runner(); null: nothing
  // offload  takes what the plan's offloaded layers keep; not null when there are any
  // Both outlive the runner. Without autograd, as in evaluation, blocks run only through outer.
  RecomputeRunner(RecomputePlan plan, BlockRunner* outer, HostOffload* offload);

  std::vector<at::Tensor> run(const Block& block, const std::vector<at::Tensor>& inputs,
                              const BlockBody& body) override;

 private:
  RecomputePlan plan_;
  BlockRunner* outer_;
  HostOffload* offload_;
};

}  // namespace megalith
