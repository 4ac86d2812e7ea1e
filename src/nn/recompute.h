// Forward keeps only inputs; backward runs the body again and differentiates that. Dropout is counter-based
// (core/philox.h): no generator state is kept. Source: arXiv:1604.06174.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "nn/block_runner.h"
#include "nn/kept.h"

namespace megalith {

// Called with detached inputs after the first run; returns what restores their bits on their device.
using KeepInputs = std::function<std::vector<Kept>(const std::vector<at::Tensor>& inputs)>;

// body(inputs), differentiable; tensors may be undefined.
//
// parameters  all to which the body sends gradients; none is ready before the end of the body's backward
//             (Parameter::hold), which announces contributions
// keep        null: inputs stay where they are
// Nested bodies record nothing in the outer one's first pass, and keep their own inputs in the second.
std::vector<at::Tensor> recomputed(const BlockBody& body, const std::vector<at::Tensor>& inputs,
                                   const std::vector<Parameter*>& parameters, const KeepInputs& keep = {});

}  // namespace megalith
