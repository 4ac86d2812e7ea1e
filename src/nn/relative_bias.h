// A number that attention adds to each score, by the head and by how far the key lies from the query.
//
// Distances are put in buckets: each near one has its own, farther ones share them by powers, and all from
// max_distance on share the last. Where a query sees keys on both sides, half of the buckets are for each side. One
// table serves all layers of a stack, so its gradient is the sum over them.
//
// Source: Raffel et al. 2019, arXiv:1910.10683, section 2.1.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "nn/module.h"

namespace megalith {

struct RelativeBiasOptions {
  int64_t num_heads = 0;  // of the whole
  int64_t num_buckets = 32, max_distance = 128;
  bool is_bidirectional = false;  // keys behind the query are seen too
  double init_std = 0.02;
  std::vector<int> pipeline_ranks = {};  // several places in the pipeline that hold the table; gradients are summed
};

class RelativeBias : public Module {
 public:
  // name  canonical, of the (buckets, heads) tensor
  // tied  the table of another chunk of this rank, which this one then uses; nullptr: it owns one.
  // tp divides the heads; a rank has the columns of its own.
  RelativeBias(const LayerContext& context, const std::string& name, const RelativeBiasOptions& options,
               Parameter* tied = nullptr);

  // What queries first_query … first_query + sq - 1 add to their scores of keys 0 … sk - 1: (1, n, sq, sk) of this
  // rank's heads, wide, differentiable.
  at::Tensor forward(int64_t sq, int64_t sk, int64_t first_query = 0);

  Parameter& weight() { return *weight_; }

 private:
  friend struct RelativeBiasFunction;

  const at::Tensor& bucket_ids(int64_t sq, int64_t sk, int64_t first_query);

  RelativeBiasOptions options_;
  Kernels kernels_;
  at::Device device_;
  Parameter* weight_;
  // The last ids: every microbatch asks for the same.
  std::vector<int64_t> ids_shape_;
  at::Tensor ids_;  // (sq sk) int64
};

// The bucket of each relative position, key - query, as transformers computes it in float32. relative: int64 on the
// CPU.
at::Tensor relative_position_buckets(const at::Tensor& relative, const RelativeBiasOptions& options);

}  // namespace megalith
