// A learned bias of attention scores by head and distance between key and query. Near distances have a bucket each,
// farther ones share logarithmic buckets, from max_distance on the last. Bidirectional attention has half of the
// buckets for each side. One table serves all layers of a stack.
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
  bool is_bidirectional = false;  // keys after the query are visible
  double init_std = 0.02;
  std::vector<int> pipeline_ranks = {};  // pipeline ranks that share the table; their gradients are summed
};

class RelativeBias : public Module {
 public:
  // name  canonical, of the (buckets, heads) tensor
  // tied  the table of this rank's other chunk to use; nullptr: it owns one
  // tp divides the heads; a rank has its own heads' columns.
  RelativeBias(const LayerContext& context, const std::string& name, const RelativeBiasOptions& options,
               Parameter* tied = nullptr);

  // The bias for queries first_query … first_query + sq - 1 and keys 0 … sk - 1: (1, n, sq, sk) of this rank's heads,
  // wide, differentiable.
  at::Tensor forward(int64_t sq, int64_t sk, int64_t first_query = 0);

  Parameter& weight() { return *weight_; }

 private:
  friend struct RelativeBiasFunction;

  const at::Tensor& bucket_ids(int64_t sq, int64_t sk, int64_t first_query);

  RelativeBiasOptions options_;
  Kernels kernels_;
  at::Device device_;
  Parameter* weight_;
  // Cached: every microbatch asks for the same.
  std::vector<int64_t> ids_shape_;
  at::Tensor ids_;  // (sq sk) int64
};

// Buckets of relative positions (key - query), in float32 like transformers. relative: int64 on the CPU.
at::Tensor relative_position_buckets(const at::Tensor& relative, const RelativeBiasOptions& options);

}  // namespace megalith
