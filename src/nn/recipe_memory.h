// RecipeMemory: what a recipe (nn/matmul_recipe.h) remembers between the passes of a model chunk, and the moments at
// which it must know where a step is. Whoever runs the chunk calls; layers and models know nothing of it.
//
//   begin_step   begin_forward 0   end_forward 0   begin_forward 1 …   begin_backward 0   end_backward 0 …   end_step
//
// Forward and backward passes of one chunk never overlap; those of different microbatches may come in any order.
// Outside of a step (evaluation, generation) nothing is remembered.
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

  // The weights stand still from begin_step() to end_step(): what is made of them is kept in between.
  virtual void begin_step() = 0;
  virtual void end_step() = 0;

  // The end of a pass is collective over the ranks of this stage of the pipeline.
  virtual void begin_forward(int microbatch) = 0;
  virtual void end_forward(int microbatch, const Groups& groups) = 0;
  virtual void begin_backward(int microbatch) = 0;
  virtual void end_backward(int microbatch, const Groups& groups) = 0;

  // What a run that goes on needs, the same on every rank of this stage. The tensors are the memory's own: what is
  // read into them between two steps is used from then on.
  struct State {
    std::string key;  // as checkpoints have it
    Placement placement;
    at::Tensor tensor;
  };
  virtual const std::vector<State>& states() = 0;

  // What is made of the weights and kept during a step takes so much.
  virtual int64_t weight_bytes() const = 0;
};

}  // namespace megalith
