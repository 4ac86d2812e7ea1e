// What travels through a forward pass beside the activations.
//
// Activations are (t, h), t = b * s flattened batch-first, so that sequence parallelism is a split of dim 0.
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

// Keys and values of the positions seen so far, one slot a layer; for generation.
struct KvCache {
  struct Slot {
    at::Tensor k, v;  // (b, capacity, g, d)
  };
  std::vector<Slot> slots;  // by layer number in the whole model; grown by the attention layers
  int64_t length = 0;       // positions filled; advanced by the caller after each forward
  int64_t capacity = 0;
  // A model with an encoder sets them in its first forward: what the encoder gave, and keys and values of it by layer.
  at::Tensor memory;
  std::map<int64_t, at::Tensor> memory_keys;
};

// What the layers with experts tell of one forward pass of a chunk, by layer. A layer that is computed again in
// backward writes the same once more, which nobody reads.
struct ExpertRecord {
  at::Tensor counts;  // (e) int64: this rank's tokens that chose each expert, before any were dropped
  // Of the whole microbatch, so the same on its tp and cp ranks; 0-d wide; undefined where the term is off. Divided by
  // their coefficients, as Megatron-LM logs them.
  at::Tensor balance_loss;  // aux_loss or seq_aux_loss
  at::Tensor z_loss;
  at::Tensor num_dropped;  // 0-d int64: choices of this rank's tokens that the capacity dropped; undefined without one
};
using ExpertRecords = std::map<int64_t, ExpertRecord>;  // by layer number in the whole model

struct ForwardContext {
  int64_t b = 0, s = 0;     // of this rank's tokens
  at::Tensor position_ids;  // (b, s) int64; undefined: counted on from the cache's length, or from 0
  at::Tensor row_ids;       // (b, s) int64: global number of each token, keys dropout; may be undefined without dropout
  ops::AttentionMask mask;
  // S above 0: the sequence is one of S tokens that the cp ranks share, each holding its zig-zag chunks
  // (comm/sequence_shard.h). Then the mask's queries are this rank's tokens, and its keys the whole sequence:
  // query_positions (s) are indices in it, key_documents are (b, S), and key_lengths count its tokens. row_ids of a
  // sequence are consecutive over all of it. 0: every rank has the whole sequence.
  int64_t row_length = 0;
  int64_t encoder_s = 0;    // tokens of the sequences that an encoder reads, of a model that has one beside its decoder
  bool is_training = true;  // dropout is active
  KvCache* cache = nullptr;
  // Where layers with experts write; null: nobody asks.
  std::shared_ptr<ExpertRecords> expert_records;
  // Factor by which objectives defined per microbatch (expert balance) enter backward; ObjectiveScales::per_microbatch.
  double objective_scale = 0;

  // The tokens' numbers where something may be dropped; undefined outside of training.
  at::Tensor dropout_rows() const { return is_training ? row_ids : at::Tensor(); }
};

// What a tensor will look like, before it is there.
struct TensorSpec {
  std::string name;
  std::vector<int64_t> shape;
  at::ScalarType dtype = at::kFloat;
};

// Named tensors: what passes between pipeline stages.
struct Bundle {
  std::vector<std::pair<std::string, at::Tensor>> tensors;

  const at::Tensor* find(std::string_view name) const;
  const at::Tensor& at(std::string_view name) const;  // InternalError when absent
  void set(std::string name, at::Tensor tensor);
};

// One term of the objective.
struct LossTerm {
  std::string name;   // as logged: "lm loss"
  at::Tensor sum;     // 0-d wide, detached: sum of weight * loss over this rank's part of the microbatch
  at::Tensor weight;  // 0-d wide, detached: sum of the weights
  // 0-d: sum times the factor that the caller gave. Backward starts here with gradient one. Undefined where the
  // gradient enters elsewhere (expert balance, nn/expert_router.h).
  at::Tensor objective;
};

// Factors by which terms enter the objective: known before the forward pass, because fused losses compute gradients
// there.
struct ObjectiveScales {
  // For terms normalised by weight: loss scale / weight of the global batch. 0-d fp64, on the model's device, where the
  // ranks counted together without the host's reading it, or on the CPU; undefined: 1.
  at::Tensor per_weight;
  double per_microbatch = 1;  // for terms defined per microbatch: loss scale / microbatches of the global batch

  // The scales of a term that enters with this factor.
  ObjectiveScales times(double factor) const;
};

}  // namespace megalith
