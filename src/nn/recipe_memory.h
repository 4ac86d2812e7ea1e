// RecipeMemory: a recipe's state (nn/matmul_recipe.h) between passes of a model chunk. The chunk's runner calls:
//
//   begin_step   begin_forward 0   end_forward 0   begin_forward 1 …   begin_backward 0   end_backward 0 …   end_step
//
// Forward and backward passes of one chunk never overlap; microbatches may come in any order. Outside of a step
// (evaluation, generation) nothing is remembered.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "nn/placement.h"

namespace megalith {

struct Groups;

class RecipeMemory {
 public:
  virtual ~RecipeMemory() = default;

  // Weights do not change in a step, so what is derived from them is kept.
  virtual void begin_step() = 0;
  virtual void end_step() = 0;

  // The end of a pass is collective over the ranks of this pipeline stage.
  virtual void begin_forward(int microbatch) = 0;
  virtual void end_forward(int microbatch, const Groups& groups) = 0;
  virtual void begin_backward(int microbatch) = 0;
  virtual void end_backward(int microbatch, const Groups& groups) = 0;

  // State that a resumed run needs, the same on every rank of this stage. The tensors are live: values read into them
  // between steps take effect.
  struct State {
    std::string key;
    Placement placement;
    at::Tensor tensor;
  };
  virtual const std::vector<State>& states() = 0;

  // Bytes derived from weights and kept during a step.
  virtual int64_t weight_bytes() const = 0;
};

}  // namespace megalith
