// The state of a forward pass beside the activations.
//
// Activations are (t, h), t = b * s flattened batch-first, so sequence parallelism splits dim 0. In nn/, (t', h) is
// this rank's (t / tp, h) under sequence parallelism, otherwise (t, h).
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

// Keys and values of past positions; for generation.
struct KvCache {
  struct Slot {
    at::Tensor k, v;  // (b, capacity, g, d)
  };
  std::vector<Slot> slots;  // by layer index in the whole model; grown by the attention layers
  int64_t length = 0;       // positions filled; the caller advances it after each forward
  int64_t capacity = 0;
  // Set by an encoder-decoder model's first forward: the encoder's output, and its keys and values by layer.
  at::Tensor memory;
  std::map<int64_t, at::Tensor> memory_keys;
};

// Statistics of one forward pass of a chunk, by layer. Recomputation writes the same again.
struct ExpertRecord {
  at::Tensor counts;  // (e) int64: this rank's tokens per chosen expert, before dropping
  // Over the whole microbatch, so equal on its tp and cp ranks; 0-d wide; undefined if the term is off. Divided by
  // their coefficients, as Megatron-LM logs them.
  at::Tensor balance_loss;  // aux_loss or seq_aux_loss
  at::Tensor z_loss;
  at::Tensor num_dropped;  // 0-d int64: choices of this rank's tokens dropped by the capacity; undefined without one
};
using ExpertRecords = std::map<int64_t, ExpertRecord>;  // by layer index in the whole model

struct ForwardContext {
  int64_t b = 0, s = 0;
  at::Tensor position_ids;  // (b, s) int64; undefined: counted from the cache's length, or from 0
  at::Tensor row_ids;       // (b, s) int64: global number of each token, keys dropout; may be undefined without dropout
  ops::AttentionMask mask;
  // S > 0: the cp ranks share a sequence of S tokens, each holding its zig-zag chunks (comm/sequence_shard.h). The
  // mask's queries are then this rank's tokens and its keys the whole sequence's: query_positions (s) index it,
  // key_documents are (b, S), key_lengths count its tokens; row_ids are consecutive over it. 0: every rank has the
  // whole sequence.
  int64_t row_length = 0;
  int64_t encoder_s = 0;    // sequence length of the encoder, in encoder-decoder models
  bool is_training = true;  // dropout is active
  KvCache* cache = nullptr;
  // Written by expert layers; null: not recorded.
  std::shared_ptr<ExpertRecords> expert_records;
  // Factor by which objectives defined per microbatch (expert balance) enter backward; ObjectiveScales::per_microbatch.
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
  at::Tensor sum;     // 0-d wide, detached: sum of weight * loss over this rank's part of the microbatch
  at::Tensor weight;  // 0-d wide, detached: sum of the weights
  // 0-d: sum times the caller's factor; backward starts here with gradient one. Undefined if the gradient enters
  // elsewhere (expert balance, nn/expert_router.h).
  at::Tensor objective;
};

// Known before forward, because fused losses compute gradients there.
struct ObjectiveScales {
  // For terms normalised by weight: loss scale / weight of the global batch. 0-d fp64 on the model's device, or on the
  // CPU; undefined: 1.
  at::Tensor per_weight;
  double per_microbatch = 1;  // for terms defined per microbatch: loss scale / microbatches of the global batch

  ObjectiveScales times(double factor) const;
};

}  // namespace megalith
