// Llama 2, 3, 3.1, 3.2 and 3.3: RMSNorm, rotary positions, grouped heads, gated MLP, no biases.
// Source: Touvron et al. 2023, arXiv:2307.09288; Dubey et al. 2024, arXiv:2407.21783.
#include "models/families.h"
#include "models/hf_shared_rows.h"

namespace megalith {

extern const ModelFamily kLlama = {
    .name = "llama",
    .hf_model_type = "llama",
    .hf_class = "LlamaForCausalLM",
    .hf_rows = [] {
      return hf_decoder_rows()
          .fixed("attention_bias", false,
                 "biases of only q, k and v are Qwen2's; Llama's output bias is not provided")
          .fixed("mlp_bias", false, "biases in the MLP are not provided")
          .written("pretraining_tp", 1);
    }};

}  // namespace megalith
