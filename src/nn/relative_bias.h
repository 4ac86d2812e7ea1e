// A learned bias of attention scores by head and distance. Near distances have a bucket each, farther ones share
// logarithmic buckets; from max_distance on, the last. Bidirectional attention halves the buckets per side. Source:
// arXiv:1910.10683, section 2.1 (T5).
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "nn/module.h"

namespace megalith {

struct RelativeBiasOptions {
  int64_t num_heads = 0;  // over all tp ranks
  int64_t num_buckets = 32, max_distance = 128;
  bool is_bidirectional = false;  // later keys are visible
  double init_std = 0.02;
  std::vector<int> pipeline_ranks = {};  // that share the table
};

class RelativeBias : public Module {
 public:
  // name: of (buckets, heads). tied: the table to use; null: own. InternalError unless tp divides the heads.
  RelativeBias(const LayerContext& context, const std::string& name, const RelativeBiasOptions& options,
               Parameter* tied = nullptr);

  // Queries first_query … first_query + sq - 1, keys 0 … sk - 1: (1, n, sq, sk) wide.
  at::Tensor forward(int64_t sq, int64_t sk, int64_t first_query = 0);

  Parameter& weight() { return *weight_; }

 private:
  friend struct RelativeBiasFunction;

  const at::Tensor& bucket_ids(int64_t sq, int64_t sk, int64_t first_query);

  RelativeBiasOptions options_;
  Kernels kernels_;
  at::Device device_;
  Parameter* weight_;
  // Cache: microbatches are alike.
  std::vector<int64_t> ids_shape_;
  at::Tensor ids_;  // (sq sk) int64
};

// relative: int64 (key - query) on the CPU. In float32 like transformers.
at::Tensor relative_position_buckets(const at::Tensor& relative, const RelativeBiasOptions& options);

}  // namespace megalith
