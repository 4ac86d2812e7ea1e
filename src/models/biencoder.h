// Two encoders, of questions and of texts, or one for both, and the loss that compares their vectors: Megatron-LM's
// model for the inverse cloze task. A text's vector is the hidden state of its first token behind the final norm, with
// biencoder_projection_dim a linear layer behind that.
//
//   query_model    embedding, layers, vector    of the questions
//   context_model  embedding, layers, vector    of the texts
//   retrieval      the loss (nn/retrieval_head.h)
//
// With biencoder_shared_query_context_model there is one, shared_model, which reads both as one batch.
//
// Canonical names are those of Hugging Face's BertModel, or MegatronBertModel for its norms, below the encoder's name:
// query_model.encoder.layer.0.attention.self.query.weight. The linear layer is query_model.projection_enc, as in
// Megatron-LM. Files of a BERT serve each encoder: its parameters also have the names that they have there.
//
// A ModelInput has the texts' tokens and context, and the questions' in `more`.
//
// Tensor, context and pipeline parallelism are refused, as in Megatron-LM.
// Source: Lee et al. 2019, arXiv:1906.00300; megatron/model/biencoder_model.py.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "models/text_units.h"

namespace megalith {

namespace input {
inline constexpr InputSpec kQueryTokens{"query_tokens", {InputSize::kRows, InputSize::kTokens}};
// Tokens from this index on are padding. Absent: none are.
inline constexpr InputSpec kQueryKeyLengths{"query_key_lengths", {InputSize::kRows}};
// The global number of each token, none of which is a token of a text. Absent without dropout.
inline constexpr InputSpec kQueryRowIds{"query_row_ids", {InputSize::kRows, InputSize::kTokens}};
}  // namespace input
inline constexpr InputSpec kQueryInputs[] = {input::kQueryTokens, input::kQueryKeyLengths, input::kQueryRowIds};

// The kinds of its units beside those of a Transformer.
inline constexpr const char *kVectorUnit = "vector", *kRetrievalUnit = "retrieval";

std::vector<Unit> biencoder_units(const ModelConfig& config);

// The ranks that share a sample or a layer.
struct SampleRanks {
  int64_t tp = 1, cp = 1, pp = 1;
};
// One error for each axis that a biencoder cannot be spread over.
std::vector<UserError> check_biencoder_ranks(const SampleRanks& ranks);

// The linear layer after an encoder, which no BERT has.
bool is_of_projection(const std::string& parameter);

class Biencoder : public UnitChunk {
 public:
  // The configuration passed check_model_config() and has a vocab_size; UserErrors otherwise, and for ranks that it
  // cannot be spread over. The part is all of biencoder_units().
  Biencoder(const ModelConfig& config, const LayerContext& context, const ModelPart& part);

  // Only a loss, with the losses of the rows as token_losses (b, 1), and accuracies. UserError for logits.
  ModelOutput forward(const ModelInput& input, const Bundle& boundary, HeadOutput head) override;
  // The vectors (b, vector_size) of questions or of texts, differentiable; tokens (b, s) and context are theirs.
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
