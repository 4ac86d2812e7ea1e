// A recipe's state (matmul_recipe.h) between passes of a chunk, whose runner calls:
//
//   begin_step   begin_forward 0   end_forward 0   begin_forward 1 …   begin_backward 0   end_backward 0 …   end_step
//
// A chunk's passes never overlap; microbatches come in any order. Outside of a step nothing is remembered.
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

  // Weights are constant in a step.
  virtual void begin_step() = 0;
  virtual void end_step() = 0;

  // end_…() is collective over this stage's ranks.
  virtual void begin_forward(int microbatch) = 0;
  virtual void end_forward(int microbatch, const Groups& groups) = 0;
  virtual void begin_backward(int microbatch) = 0;
  virtual void end_backward(int microbatch, const Groups& groups) = 0;

  // For checkpoints, the same on every rank of this stage. Values written between steps take effect.
  struct State {
    std::string key;
    Placement placement;
    at::Tensor tensor;
  };
  virtual const std::vector<State>& states() = 0;

  // Copies kept during a step.
  virtual int64_t weight_bytes() const = 0;
};

}  // namespace megalith
