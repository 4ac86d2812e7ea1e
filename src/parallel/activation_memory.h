// The memory of activations, measured: each block of a model runs forward and backward once on the meta device, and
// what it holds between the two and at most is counted (device/storage_watch.h). What the blocks do around their
// computation, such as recomputation, is part of what is measured.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "nn/block_runner.h"
#include "parallel/pipeline/schedule.h"
#include "parallel/recompute_options.h"

namespace megalith {

// What one run of a block takes on this rank.
struct BlockMemory {
  Block block;
  int64_t kept = 0;  // between its forward and its backward, its input included where that is kept
  int64_t peak = 0;  // at most in either pass, what is kept included
};

// Runs each block forward and backward at once and gives what follows it tensors of the right shapes. The model and its
// inputs are on the meta device, its parameters have gradient buffers.
class MeasuringRunner : public BlockRunner {
 public:
  // are_layers_alike: layers with the same parameters and the same plan are measured once.
  MeasuringRunner(RecomputePlan plan, bool are_layers_alike);

  std::vector<at::Tensor> run(const Block& block, const std::vector<at::Tensor>& inputs,
                              const BlockBody& body) override;

  // In the order of the runs.
  const std::vector<BlockMemory>& blocks() const { return blocks_; }

 private:
  struct Measured {
    BlockMemory memory;
    std::vector<at::Tensor> outputs;
  };
  static Measured measure(const Block& block, const std::vector<at::Tensor>& inputs, const BlockBody& body);
  std::string kind_of(const Block& block, const std::vector<at::Tensor>& inputs) const;

  RecomputePlan plan_;
  bool are_layers_alike_;
  std::map<std::string, Measured> measured_;
  std::vector<BlockMemory> blocks_;
};

// Bytes of activations that one microbatch holds on the device.
struct ActivationCost {
  int64_t kept = 0;  // between its forward and its backward
  int64_t peak = 0;  // at most while it is under way: backward frees a block's before it comes to the one before
};
// blocks  of one chunk in the order in which they run. Those whose inputs are offloaded keep nothing on the device, and
//         their inputs come back while the block behind them is under way.
ActivationCost activation_cost(const std::vector<BlockMemory>& blocks, const RecomputePlan& plan);

// At most while a rank works through its list of a schedule; chunks: of each of its chunks.
int64_t pipeline_activation_peak(const std::vector<Action>& actions, const std::vector<ActivationCost>& chunks);

}  // namespace megalith
