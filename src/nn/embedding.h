// Embeddings of a model's input.
//
// By token: the rows of the table are split over the tensor-parallel ranks. Rank i looks up the tokens of its slice,
// zeros come out for the others, and the sum over tp is the embedding (scattered over the tokens under sequence
// parallelism). By learned position or type of token: every rank has the whole table.
#pragma once

#include <string>
#include <vector>

#include "nn/forward.h"
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
  std::vector<int> pipeline_ranks = {};  // several places in the pipeline that hold it; their gradients are summed

  int64_t local_rows(const Group& tp) const;
  int64_t local_start(const Group& tp) const;       // canonical row of local row 0
  int64_t local_valid_rows(const Group& tp) const;  // without padding
  Placement placement(const Group& tp) const;
};

class VocabParallelEmbedding : public Module {
 public:
  // tied  the table of another embedding, which this one then uses; nullptr: it owns one.
  VocabParallelEmbedding(const LayerContext& context, const VocabularyWeight& weight, double init_std,
                         Parameter* tied = nullptr);

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

// Where a table of few learned rows lies in a pipeline.
struct SharedRows {
  std::vector<int> pipeline_ranks = {};  // several places in the pipeline that hold it; their gradients are summed
  Parameter* tied = nullptr;             // the table of another module, which this one then uses; nullptr: it owns one
};

// A table of few learned rows, which every rank has whole.
class LearnedRows : public Module {
 public:
  Parameter& weight() { return *weight_; }

 protected:
  // name  canonical, of the (num_rows, h) tensor
  LearnedRows(const LayerContext& context, const std::string& name, int64_t num_rows, int64_t hidden, double init_std,
              const SharedRows& shared = {});

  // ids (t) int64, of all tokens -> (t, h), or this rank's (t / tp, h) under sequence parallelism. Differentiable. An
  // id outside the table has a row of zeros.
  at::Tensor rows(at::Tensor ids);
  int64_t num_rows() const;
  at::TensorOptions long_options() const;  // of ids on the table's device

 private:
  friend struct LearnedRowsFunction;

  Group* tp_;
  bool is_sequence_parallel_;
  Kernels kernels_;
  Parameter* weight_;
};

// Absolute positions, each with a learned row of h that is added to its token's embedding.
// Source: Gehring et al. 2017, arXiv:1705.03122; in GPT, Radford et al. 2018.
class LearnedPositions : public LearnedRows {
 public:
  // name           canonical, of the (num_positions, h) tensor: "transformer.wpe.weight"
  // num_positions  max_position_embeddings
  LearnedPositions(const LayerContext& context, const std::string& name, int64_t num_positions, int64_t hidden,
                   double init_std, const SharedRows& shared = {})
      : LearnedRows(context, name, num_positions, hidden, init_std, shared) {}

  // The rows of the positions of b * s tokens: (t, h), or this rank's (t / tp, h) under sequence parallelism.
  // Differentiable. UserError for a position outside the table; ids that a GPU holds are not looked at, and such a
  // position then has a row of zeros.
  at::Tensor forward(const ForwardContext& forward) { return rows(position_ids(forward)); }

 private:
  at::Tensor position_ids(const ForwardContext& forward) const;
};

// Types of tokens, such as which of two segments a token belongs to, each with a learned row that is added likewise.
// Source: Devlin et al. 2019, arXiv:1810.04805.
class TokenTypes : public LearnedRows {
 public:
  TokenTypes(const LayerContext& context, const std::string& name, int64_t num_types, int64_t hidden, double init_std)
      : LearnedRows(context, name, num_types, hidden, init_std) {}

  // types (b, s) int64; undefined: all 0. UserError, where a CPU holds them, for a type outside the table.
  at::Tensor forward(const at::Tensor& types, const ForwardContext& forward);
};

}  // namespace megalith
