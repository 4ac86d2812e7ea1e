// Input embeddings. Token tables are split by rows over tp: ranks sum what they look up, zeros for others' tokens,
// scattered over tokens under sequence parallelism. Other tables are whole.
#pragma once

#include <string>
#include <vector>

#include "nn/forward.h"
#include "nn/module.h"

namespace megalith {

class Group;

// The canonical (vocab, hidden) tensor, split over tp.
struct VocabularyWeight {
  std::string name;          // "model.embed_tokens.weight"
  int64_t vocab = 0;
  int64_t padded_vocab = 0;  // a multiple of tp; padding is in no piece
  int64_t hidden = 0;
  std::vector<std::string> aliases = {};
  std::vector<int> pipeline_ranks = {};  // that share it

  int64_t local_rows(const Group& tp) const;
  int64_t local_start(const Group& tp) const;       // local row 0's canonical row
  int64_t local_valid_rows(const Group& tp) const;  // without padding
  Placement placement(const Group& tp) const;
};

class VocabParallelEmbedding : public Module {
 public:
  // tied  the table to use; null: own
  VocabParallelEmbedding(const LayerContext& context, const VocabularyWeight& weight, double init_std,
                         Parameter* tied = nullptr);

  // tokens (t) int64, below vocab -> (t', h).
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

struct SharedRows {
  std::vector<int> pipeline_ranks = {};  // that share it
  Parameter* tied = nullptr;             // the table to use; null: own
};

// A small table, whole on every rank.
class LearnedRows : public Module {
 public:
  Parameter& weight() { return *weight_; }

 protected:
  LearnedRows(const LayerContext& context, const std::string& name, int64_t num_rows, int64_t hidden, double init_std,
              const SharedRows& shared = {});

  // ids (t) int64 of all tokens -> (t', h). An id outside the table gives zeros.
  at::Tensor rows(at::Tensor ids);
  int64_t num_rows() const;
  at::TensorOptions long_options() const;

 private:
  friend struct LearnedRowsFunction;

  Group* tp_;
  bool is_sequence_parallel_;
  Kernels kernels_;
  Parameter* weight_;
};

// Learned absolute positions. Source: arXiv:1705.03122.
class LearnedPositions : public LearnedRows {
 public:
  // name: of (num_positions, h), "transformer.wpe.weight".
  // num_positions: max_position_embeddings.
  LearnedPositions(const LayerContext& context, const std::string& name, int64_t num_positions, int64_t hidden,
                   double init_std, const SharedRows& shared = {})
      : LearnedRows(context, name, num_positions, hidden, init_std, shared) {}

  // (t', h). UserError for a position outside the table; on a GPU, zeros instead.
  at::Tensor forward(const ForwardContext& forward) { return rows(position_ids(forward)); }

 private:
  at::Tensor position_ids(const ForwardContext& forward) const;
};

// Token types (e.g. segments). Source: arXiv:1810.04805.
class TokenTypes : public LearnedRows {
 public:
  TokenTypes(const LayerContext& context, const std::string& name, int64_t num_types, int64_t hidden, double init_std)
      : LearnedRows(context, name, num_types, hidden, init_std) {}

  // types (b, s) int64; undefined: all 0. UserError for a type outside the table, if on the CPU.
  at::Tensor forward(const at::Tensor& types, const ForwardContext& forward);
};

}  // namespace megalith
