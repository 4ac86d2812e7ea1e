// Adapters made part of the weights that they stand beside, and taken out again:
//
//   W' = W + scale * B A                                       in float32, rounded once
//   W' = m / |W + scale * B A| * (W + scale * B A)             with lengths (DoRA), row by row
//
// Source: Hu et al. 2021, arXiv:2106.09685, section 4.1; the same sums as PEFT's merge_and_unload().
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "checkpoint/convert.h"
#include "nn/adapter_options.h"

namespace megalith {

// One linear's, in canonical form.
struct AdapterMatrices {
  at::Tensor down, up;         // A (r, in), B (out, r), float32
  at::Tensor length = {};      // m (out); undefined: none
  bool is_transposed = false;  // the linear's canonical weight is (in, out)
};

struct ReadAdapter {
  LoraOptions options;
  std::map<std::string, AdapterMatrices> matrices;  // by the canonical name of the linear's weight
};

// UserError for a folder that holds no adapters, those of another model by checksum, targets or shapes, and several.
ReadAdapter read_adapter_for(const std::filesystem::path& adapter, const StoredModel& base,
                             NonfiniteWeights nonfinite = NonfiniteWeights::kRefused);

// W (canonical) with the adapter in it, in float32 (float64 for such weights).
at::Tensor merged_weight(const at::Tensor& weight, const AdapterMatrices& matrices, double scale);

// The model's adapted weights with the adapters in them, in `dtype`; they lie in memory from then on.
void merge_adapter(const ReadAdapter& adapter, at::ScalarType dtype, StoredModel& model);

// How far the weights of `merged`, with the adapters taken out of them again, are from those of `base`, at most: as a
// part of the largest element of the merged matrix; infinite where that is no number.
double unmerged_difference(const ReadAdapter& adapter, const StoredModel& merged, const StoredModel& base);

}  // namespace megalith
