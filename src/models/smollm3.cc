// SmolLM3: Llama whose every fourth layer does not rotate queries and keys (NoPE).
// Source: Hugging Face 2025, "SmolLM3"; Yang et al. 2025, arXiv:2501.18795.
#include "models/families.h"
#include "models/hf_shared_rows.h"

namespace megalith {

extern const ModelFamily kSmolLm3 = {
    .name = "smollm3",
    .hf_model_type = "smollm3",
    .hf_class = "SmolLM3ForCausalLM",
    .hf_rows = [] {
      return hf_decoder_rows()
          .fixed("attention_bias", false, "biases in SmolLM3's attention are not provided")
          .fixed("mlp_bias", false, "biases in the MLP are not provided")
          .fixed("use_sliding_window", false, "windows are not provided in this family")
          .opposite("tie_word_embeddings", &ModelConfig::untie_embeddings_and_output_weights, true)
          .field("max_position_embeddings", &ModelConfig::max_position_embeddings, 32768)
          .nullable("num_key_value_heads", &ModelConfig::num_query_groups, 4, &ModelConfig::num_attention_heads,
                    &ModelConfig::num_kv_heads)
          .field("rope_theta", &ModelConfig::rotary_base, 2e6)
          .join(hf_unrotated_layers_rows())
          .written("pad_token_id", nullptr);  // the class takes 128004, which a small vocabulary lacks
    }};

}  // namespace megalith
