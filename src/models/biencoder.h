// Two encoders (or a shared one) of questions and texts, and the loss that compares their vectors: Megatron-LM's model
// for the inverse cloze task. A text's vector is the hidden state of its first token after the final norm, then a
// linear layer if biencoder_projection_dim is set.
//
//   query_model    embedding, layers, vector    of the questions
//   context_model  embedding, layers, vector    of the texts
//   retrieval      the loss (nn/retrieval_head.h)
//
// biencoder_shared_query_context_model: one encoder, shared_model, reads both as one batch.
//
// Canonical names are those of Hugging Face's BertModel, or MegatronBertModel for its norms, below the encoder's name:
// query_model.encoder.layer.0.attention.self.query.weight; the linear layer is query_model.projection_enc, as in
// Megatron-LM. BERT's names are aliases, so a BERT's file loads into each encoder.
//
// A ModelInput has the texts' tokens and context; the questions' are in `more`.
//
// Refuses tensor, context and pipeline parallelism, as Megatron-LM does.
// Source: Lee et al. 2019, arXiv:1906.00300; megatron/model/biencoder_model.py.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "models/text_units.h"

namespace megalith {

namespace input {
inline constexpr InputSpec kQueryTokens{"query_tokens", {InputSize::kRows, InputSize::kTokens}};
// Index of the first padding token. Absent: no padding.
inline constexpr InputSpec kQueryKeyLengths{"query_key_lengths", {InputSize::kRows}};
// Global number of each token, distinct from those of texts. Absent without dropout.
inline constexpr InputSpec kQueryRowIds{"query_row_ids", {InputSize::kRows, InputSize::kTokens}};
}  // namespace input
inline constexpr InputSpec kQueryInputs[] = {input::kQueryTokens, input::kQueryKeyLengths, input::kQueryRowIds};

inline constexpr const char *kVectorUnit = "vector", *kRetrievalUnit = "retrieval";

std::vector<Unit> biencoder_units(const ModelConfig& config);

// Ranks that share a sample or a layer.
struct SampleRanks {
  int64_t tp = 1, cp = 1, pp = 1;
};
// One error for each axis that cannot split a biencoder.
std::vector<UserError> check_biencoder_ranks(const SampleRanks& ranks);

// True for the linear layer after an encoder, which no BERT has.
bool is_of_projection(const std::string& parameter);

class Biencoder : public UnitChunk {
 public:
  // UserErrors when config fails check_model_config(), lacks vocab_size, or the ranks split it. part: all of
  // biencoder_units().
  Biencoder(const ModelConfig& config, const LayerContext& context, const ModelPart& part);

  // kLoss only: loss, token_losses (b, 1) of the rows, accuracies. UserError for logits.
  ModelOutput forward(const ModelInput& input, const Bundle& boundary, HeadOutput head) override;
  // Vectors (b, vector_size) of questions or texts, differentiable, from their tokens (b, s) and context.
  enum class Side { kQuery, kContext };
  at::Tensor vectors(Side side, const at::Tensor& tokens, const ForwardContext& context) const;

  std::vector<std::string> added_losses() const override;

 protected:
  void make_unit(const Unit& unit, const LayerContext& context, int64_t layer) override;
  std::shared_ptr<UnitPass> make_pass(const ModelInput& input, const ForwardContext& context) const override;
  int64_t num_rows(const std::string& tensor, const ForwardContext& context) const override;
  bool skips(const Unit& unit, const UnitPass& pass) const override;

 private:
  TextSide side_of(const at::Tensor& tokens, ForwardContext context) const;

  std::vector<std::string> towers_;  // names: of questions and of texts; one for both
  std::shared_ptr<const LayerViewer> viewer_;
};

std::unique_ptr<Model> build_biencoder(const ModelConfig& config, const LayerContext& context, const ModelPart& part);

}  // namespace megalith
