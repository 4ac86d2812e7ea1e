// Qwen3, dense: Llama with a norm of each query and key head before its rotation.
// Source: Qwen team 2025, arXiv:2505.09388.
#include "models/families.h"
#include "models/hf_shared_rows.h"

namespace megalith {

extern const ModelFamily kQwen3 = {
    .name = "qwen3",
    .hf_model_type = "qwen3",
    .hf_class = "Qwen3ForCausalLM",
    .hf_rows = [] {
      return hf_decoder_rows()
          .fixed("attention_bias", false, "biases in Qwen3's attention are not provided")
          .field("max_position_embeddings", &ModelConfig::max_position_embeddings, 32768)
          .field("head_dim", &ModelConfig::kv_channels, 128, &ModelConfig::query_head_dim)
          .always(&ModelConfig::qk_layernorm, true)
          .join(hf_upper_window_rows());
    }};

}  // namespace megalith
