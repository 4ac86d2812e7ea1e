// Starts of adapters that follow from the model's weights: A and B as parts of a decomposition (PiSSA, OLoRA), lengths
// of rows (DoRA).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>
#include <utility>

#include "comm/groups.h"
#include "nn/adapter_options.h"
#include "parallel/data_parallel.h"
#include "train/setup.h"

namespace megalith {

// (A (rank, in), B (rows, rank)) of a weight (rows, in) in fp32 or fp64, such that scale * B A is
//   PiSSA  U S V' of the `rank` largest singular values, half of S / scale in each; with a number of iterations as
//          torch.svd_lowrank, whose random matrix is drawn by (seed, name)
//   OLoRA  scale times the first columns of Q times the first rows of R
// Of each row of A the largest element is positive, so that every library gives the same. Source: PEFT,
// tuners/lora/layer.py.
std::pair<at::Tensor, at::Tensor> decomposed(const at::Tensor& weight, int64_t rank, double scale,
                                             const AdapterStart& start, uint64_t seed, std::string_view name);

// Sets A, B, A0 and B0 (nn/low_rank_adapter.h) from the whole canonical weights, whatever the layout. The ranks share
// the matrices out. data.publish() must follow. Collective over the world.
void begin_decomposed(const DataParallel& data, const BuiltModel& built, const LoraOptions& options, uint64_t seed,
                      const Groups& groups);

}  // namespace megalith
