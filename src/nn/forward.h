// A forward pass's state beside the activations, which are flattened batch-first.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ops/attention/attention.h"

namespace megalith {

// Keys and values of past positions.
struct KvCache {
  struct Slot {
    at::Tensor k, v;   // (b, capacity, g, d)
    at::Tensor state;  // (b, n, c): a convolution's last n inputs
  };
  std::vector<Slot> slots;  // by layer; grown by its mixer
  int64_t length = 0;       // filled; advanced by the caller
  int64_t capacity = 0;
  // Set by an encoder-decoder's first forward.
  at::Tensor memory;
  std::map<int64_t, at::Tensor> memory_keys;
};

// A chunk's forward pass; recomputation writes it again.
struct ExpertRecord {
  at::Tensor counts;  // (e) int64: this rank's tokens per expert, before dropping
  // 0-d wide, of the whole microbatch, without coefficients like Megatron-LM's logs; undefined if off.
  at::Tensor balance_loss;  // aux_loss, seq_aux_loss or global_aux_loss
  at::Tensor z_loss;
  at::Tensor num_dropped;  // 0-d int64, of this rank; undefined without a capacity
  // (1, e) fp64, of global_aux_loss in training: what recomputation takes again, since the step's counts have grown.
  at::Tensor mean_counts;
};
using ExpertRecords = std::map<int64_t, ExpertRecord>;  // by layer

struct ForwardContext {
  int64_t b = 0, s = 0;
  at::Tensor position_ids;  // (b, s) int64; undefined: from the cache's length or 0 on
  at::Tensor row_ids;       // (b, s) int64: global token numbers; undefined without dropout
  ops::AttentionMask mask;
  // S > 0: cp ranks share a sequence of S tokens by the zig-zag (comm/sequence_shard.h), which the mask's
  // query_positions (s) index, key_documents (b, S) and key_lengths cover; row_ids are consecutive over it. 0: whole
  // sequences.
  int64_t row_length = 0;
  int64_t encoder_s = 0;    // of encoder-decoder models
  bool is_training = true;  // dropout is active
  KvCache* cache = nullptr;
  // Null: not recorded.
  std::shared_ptr<ExpertRecords> expert_records;
  // Factor of per-microbatch objectives (expert balance).
  double objective_scale = 0;

  at::Tensor dropout_rows() const { return is_training ? row_ids : at::Tensor(); }
};

struct TensorSpec {
  std::string name;
  std::vector<int64_t> shape;
  at::ScalarType dtype = at::kFloat;
};

struct Bundle {
  std::vector<std::pair<std::string, at::Tensor>> tensors;

  const at::Tensor* find(std::string_view name) const;
  const at::Tensor& at(std::string_view name) const;  // InternalError if absent
  void set(std::string name, at::Tensor tensor);
};

struct LossTerm {
  std::string name;   // as logged: "lm loss"
  at::Tensor sum;     // 0-d wide, detached: of weight * loss over this rank's tokens
  at::Tensor weight;  // 0-d wide, detached
  // 0-d: sum times the caller's factor. Undefined if the gradient enters elsewhere (expert balance).
  at::Tensor objective;
};

// Known before forward: fused losses compute gradients there.
struct ObjectiveScales {
  // Loss scale / the global batch's weight. 0-d fp64 on the model's device or the CPU; undefined: 1.
  at::Tensor per_weight;
  double per_microbatch = 1;  // loss scale / microbatches

  ObjectiveScales times(double factor) const;
};

}  // namespace megalith
