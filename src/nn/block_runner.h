// Blocks, the units of memory techniques, and the hook that runs them: recomputation keeps only a block's inputs,
// offloading moves what it keeps to the host, FSDP gathers its parameters before and frees them after. Runners nest.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "nn/module.h"

namespace megalith {

struct Block {
  std::string name;                    // for the trace: "model.layers.3"
  int64_t index = 0;                   // within this chunk
  std::vector<const Module*> modules;  // own the block's parameters
  std::vector<std::string> uses;       // names of other blocks' parameters that the body reads
  // Layers may be recomputed; the parts before and after them (embedding, final norm, head) may not, and may share
  // parameters.
  bool is_layer = true;
  int64_t layer = -1;  // its first layer; negative for non-layers
  // The body reads inputs[0] and inputs[1] only as their rounded sum (ResidualStream), which is all to keep.
  bool adds_inputs = false;
};

// Captures all but inputs by value: backward may call it again. Tensors may be undefined.
using BlockBody = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;

class BlockRunner {
 public:
  virtual ~BlockRunner() = default;
  virtual std::vector<at::Tensor> run(const Block& block, const std::vector<at::Tensor>& inputs,
                                      const BlockBody& body) = 0;
};

inline std::vector<at::Tensor> run_block(BlockRunner* runner, const Block& block, const std::vector<at::Tensor>& inputs,
                                         const BlockBody& body) {
  return runner == nullptr ? body(inputs) : runner->run(block, inputs, body);
}

}  // namespace megalith
