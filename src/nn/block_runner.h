// Blocks: the parts of a model that memory techniques treat as one, and the hook through which they run.
//
// A model runs each of its blocks through the BlockRunner that it was given. What happens around the computation is
// the runner's: recomputation keeps only the inputs and computes again in backward, offloading moves what is kept to
// the host, FSDP gathers the block's parameters before and frees them after, an overlapped parameter gathering waits
// for those that the block reads. Runners wrap one another; they know no model.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "nn/module.h"

namespace megalith {

// One run of a module, or of several that belong together.
struct Block {
  std::string name;                    // "model.layers.3", as the trace says it
  int64_t index = 0;                   // order in which this chunk's blocks run, from 0
  std::vector<const Module*> modules;  // own the block's parameters
  // A layer among equals, which may be recomputed, resharded after use and gathered ahead; otherwise what stands before
  // and behind them (embedding, final norm and head), whose parameters may be shared between blocks.
  bool is_layer = true;
  int64_t layer = -1;  // number in the whole model of its first layer; below 0 for what is no layer
  // The body reads inputs[0] and inputs[1], where both are defined, only through their sum, rounded to their dtype
  // (ResidualStream): so only the sum need be kept.
  bool adds_inputs = false;
};

// Activations in, activations out; an entry may be undefined. Differentiable; reads everything else that it needs
// (masks, angles, dropout keys) by value, since it may be called again in backward.
using BlockBody = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;

class BlockRunner {
 public:
  virtual ~BlockRunner() = default;
  virtual std::vector<at::Tensor> run(const Block& block, const std::vector<at::Tensor>& inputs,
                                      const BlockBody& body) = 0;
};

// Runs it through the runner, or plainly without one.
inline std::vector<at::Tensor> run_block(BlockRunner* runner, const Block& block, const std::vector<at::Tensor>& inputs,
                                         const BlockBody& body) {
  return runner == nullptr ? body(inputs) : runner->run(block, inputs, body);
}

}  // namespace megalith
