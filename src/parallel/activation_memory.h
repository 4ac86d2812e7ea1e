// Measures activation memory: runs each block forward and backward, with recomputation, on the meta device and counts
// its bytes (device/storage_watch.h).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "nn/block_runner.h"
#include "parallel/pipeline/schedule.h"
#include "parallel/recompute_options.h"

namespace megalith {

struct BlockMemory {
  Block block;
  int64_t kept = 0;  // from forward to backward, including a kept input
  int64_t peak = 0;  // in either pass, kept included
};

// Called before a block's forward and backward pass; what it returns lives until the pass has ended.
using PassScope = std::function<std::shared_ptr<void>(bool is_backward)>;

// Runs each block forward and at once backward; outputs have the right shapes. Model and inputs are on the meta device;
// parameters have gradient buffers.
class MeasuringRunner : public BlockRunner {
 public:
  // are_layers_alike  measures layers with equal parameters and plans once
  // scope             around measured passes; may be empty
  MeasuringRunner(RecomputePlan plan, bool are_layers_alike, PassScope scope = {});

  std::vector<at::Tensor> run(const Block& block, const std::vector<at::Tensor>& inputs,
                              const BlockBody& body) override;

  const std::vector<BlockMemory>& blocks() const { return blocks_; }

 private:
  struct Measured {
    BlockMemory memory;
    std::vector<at::Tensor> outputs;
  };
  Measured measure(const Block& block, const std::vector<at::Tensor>& inputs, const BlockBody& body) const;
  std::string kind_of(const Block& block, const std::vector<at::Tensor>& inputs) const;

  RecomputePlan plan_;
  bool are_layers_alike_;
  PassScope scope_;
  std::map<std::string, Measured> measured_;
  std::vector<BlockMemory> blocks_;
};

struct ActivationCost {
  int64_t kept = 0;  // from forward to backward
  int64_t peak = 0;  // during its passes: backward frees a block's before the previous block's
};
// blocks  of one chunk in running order. Offloaded inputs keep nothing on the device; they return during the next
//         block's backward.
ActivationCost activation_cost(const std::vector<BlockMemory>& blocks, const RecomputePlan& plan);

// Peak over a rank's actions; chunks: each chunk's cost.
int64_t pipeline_activation_peak(const std::vector<Action>& actions, const std::vector<ActivationCost>& chunks);

}  // namespace megalith
