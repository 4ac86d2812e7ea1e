// Recomputation: the first pass keeps only the inputs; backward runs the body again and differentiates that.
//
// Dropout is counter-based (core/philox.h), so no generator state is kept. Source: Chen et al. 2016, arXiv:1604.06174.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "nn/block_runner.h"
#include "nn/kept.h"

namespace megalith {

// Called with the inputs, detached, after the first run; returns for each what restores it (on its device, the same
// bits) before the second.
using KeepInputs = std::function<std::vector<Kept>(const std::vector<at::Tensor>& inputs)>;

// body(inputs), differentiable; entries of inputs and outputs may be undefined.
//
// parameters  include those to which the body sends gradients. None becomes ready between the first pass and the end of
//             the body's backward (Parameter::hold), because contributions are announced only in backward.
// keep        null: the inputs stay where they are
// Bodies may nest: in the outer one's first pass an inner one records nothing, in its second it keeps its own inputs.
// Without a graph to record this is just body(inputs).
std::vector<at::Tensor> recomputed(const BlockBody& body, const std::vector<at::Tensor>& inputs,
                                   const std::vector<Parameter*>& parameters, const KeepInputs& keep = {});

}  // namespace megalith
