// Runs blocks so that backward recomputes layers, inside any data parallelism: a block's parameters are gathered once,
// before its recomputation.
#pragma once

#include <vector>

#include "nn/block_runner.h"
#include "parallel/offload.h"
#include "parallel/recompute_options.h"

namespace megalith {

class RecomputeRunner : public BlockRunner {
 public:
  // outer    runs around everything, DataParallel::runner(); may be null
  // offload  keeps the plan's offloaded inputs; not null if there are any
  // Both outlive the runner. Without autograd, blocks run only through outer.
  RecomputeRunner(RecomputePlan plan, BlockRunner* outer, HostOffload* offload);

  std::vector<at::Tensor> run(const Block& block, const std::vector<at::Tensor>& inputs,
                              const BlockBody& body) override;

 private:
  RecomputePlan plan_;
  BlockRunner* outer_;
  HostOffload* offload_;
};

}  // namespace megalith
