// The chunk of a decoder-only transformer that a pipeline stage holds: embedding, layers, final norm, head.
//
// Canonical names are Hugging Face's for Llama and its kin: model.embed_tokens, model.layers.N.…, model.norm, lm_head.
// Between stages travels one tensor, "hidden" (t, h): the residual stream.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "models/model.h"
#include "nn/decoder_layer.h"
#include "nn/dropout.h"
#include "nn/embedding.h"
#include "nn/lm_head.h"
#include "nn/norm.h"
#include "nn/rotary_embedding.h"

namespace megalith {

class Transformer : public Model {
 public:
  // The configuration passed check_model_config() and has a vocab_size; UserErrors otherwise.
  Transformer(const ModelConfig& config, const LayerContext& context, const StageRange& stage);

  ModelOutput forward(const ModelInput& input, const Bundle& boundary, HeadOutput head) override;
  const ModelConfig& config() const override { return config_; }
  at::ScalarType dtype() const override { return dtype_; }
  std::vector<TensorSpec> boundary(int64_t b, int64_t s) const override;
  Parameter* embedding_weight() override { return embedding_ ? &embedding_->weight() : nullptr; }
  const std::vector<Block>& blocks() const override { return blocks_; }
  std::vector<BlockCost> block_costs(const CostShape& shape) const override;

 private:
  std::vector<Block> make_blocks() const;
  at::Tensor embed(const ModelInput& input) const;
  RotaryAngles rotary_angles(const ForwardContext& forward) const;
  ModelOutput head_output(const ModelInput& input, ResidualStream stream, HeadOutput head) const;

  ModelConfig config_;
  at::ScalarType dtype_;
  int64_t token_split_;             // ranks over which sequence parallelism splits the tokens
  at::Tensor inverse_frequencies_;  // on the device; undefined on a meta model
  std::unique_ptr<VocabParallelEmbedding> embedding_;
  std::optional<HiddenDropout> embedding_dropout_;
  std::vector<std::unique_ptr<DecoderLayer>> layers_;
  std::unique_ptr<RmsNorm> final_norm_;
  std::unique_ptr<LmHead> head_;
  std::vector<Block> blocks_;
};

}  // namespace megalith
