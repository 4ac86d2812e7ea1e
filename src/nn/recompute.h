// Recomputation of a body: its first pass keeps only the inputs, backward runs it again and differentiates that run.
//
// Dropout is counter-based (core/philox.h), so nothing of a generator is kept: the second run drops the same elements.
// Source: Chen et al. 2016, arXiv:1604.06174.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "nn/block_runner.h"
#include "nn/kept.h"

namespace megalith {

// What is kept of a body's inputs between its two runs: gets them, detached, after the first run, and says for each
// what gives it back (on its device, the same bits) before the second.
using KeepInputs = std::function<std::vector<Kept>(const std::vector<at::Tensor>& inputs)>;

// body(inputs), differentiable; entries of inputs and outputs may be undefined.
//
// parameters  those that the body sends gradients to, among others perhaps. From the first pass until the end of this
//             body's backward none of them becomes ready (Parameter::hold), for their contributions are announced in
//             backward only.
// keep        null: the inputs stay where they are
// Bodies may be nested: in the first pass of the outer one an inner one records nothing, in its second pass the inner
// one keeps its own inputs. Without a graph to record it is body(inputs) and no more.
std::vector<at::Tensor> recomputed(const BlockBody& body, const std::vector<at::Tensor>& inputs,
                                   const std::vector<Parameter*>& parameters, const KeepInputs& keep = {});

}  // namespace megalith
