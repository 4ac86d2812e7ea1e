// Token embedding, its rows split over the tensor-parallel ranks: rank i looks up the tokens of its slice, zeros come
// out for the others, and the sum over tp is the embedding (scattered over the tokens under sequence parallelism).
#pragma once

#include <string>
#include <vector>

#include "nn/module.h"

namespace megalith {

class Group;

// One canonical (vocab, hidden) tensor of a vocabulary-parallel table or head.
struct VocabularyWeight {
  std::string name;          // "model.embed_tokens.weight"
  int64_t vocab = 0;         // rows of the canonical tensor
  int64_t padded_vocab = 0;  // rows over all ranks; tp divides it. Rows from `vocab` on belong to no piece.
  int64_t hidden = 0;
  std::vector<std::string> aliases = {};
  bool is_shared = false;  // first and last pipeline stage hold it both; their gradients are summed

  int64_t local_rows(const Group& tp) const;
  int64_t local_start(const Group& tp) const;       // canonical row of local row 0
  int64_t local_valid_rows(const Group& tp) const;  // without padding
  Placement placement(const Group& tp) const;
};

class VocabParallelEmbedding : public Module {
 public:
  VocabParallelEmbedding(const LayerContext& context, const VocabularyWeight& weight, double init_std);

  // tokens (t) int64, each below vocab -> (t, h), or this rank's (t / tp, h) under sequence parallelism.
  // Differentiable.
  at::Tensor forward(const at::Tensor& tokens);

  Parameter& weight() { return *weight_; }

 private:
  friend struct EmbeddingFunction;

  Group* tp_;
  bool is_sequence_parallel_;
  Kernels kernels_;
  int64_t start_;
  Parameter* weight_;
};

}  // namespace megalith
