// Merges adapters into weights, and takes them out:
//
//   W' = W + scale * B A                                       in float32, rounded once
//   W' = m / |W + scale * B A| * (W + scale * B A)             with lengths (DoRA), row by row
//
// Source: Hu et al. 2021, arXiv:2106.09685, section 4.1; equal to PEFT's merge_and_unload().
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "checkpoint/convert.h"
#include "nn/adapter_options.h"

namespace megalith {

// One linear's, canonical.
struct AdapterMatrices {
  at::Tensor down, up;         // A (r, in), B (out, r), float32
  at::Tensor length = {};      // m (out); undefined: none
  bool is_transposed = false;  // the weight is (in, out)
  double scale = 1;
};

struct ReadAdapter {
  LoraOptions options;
  std::map<std::string, AdapterMatrices> matrices;  // by the weight's name
  std::map<std::string, at::Tensor> modules = {};   // saved whole, replace the model's; by name, float32
};

// UserError: no or several adapters, or another model's by checksum, targets or shapes.
ReadAdapter read_adapter_for(const std::filesystem::path& adapter, const StoredModel& base,
                             NonfiniteWeights nonfinite = NonfiniteWeights::kRefused);

// From the canonical W, in float32 (or float64 as W).
at::Tensor merged_weight(const at::Tensor& weight, const AdapterMatrices& matrices);

// In `dtype`, in memory.
void merge_adapter(const ReadAdapter& adapter, at::ScalarType dtype, StoredModel& model);

// Largest deviation of `merged` without its adapters from `base`, relative to the matrix's largest element; infinite if
// not finite.
double unmerged_difference(const ReadAdapter& adapter, const StoredModel& merged, const StoredModel& base);

}  // namespace megalith
