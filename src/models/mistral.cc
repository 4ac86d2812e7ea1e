// Mistral 7B: Llama with sliding-window attention. Files without a window are Llama's architecture.
// Source: Jiang et al. 2023, arXiv:2310.06825; the window is Beltagy et al. 2020, arXiv:2004.05150.
#include "models/families.h"
#include "models/hf_shared_rows.h"

namespace megalith {

extern const ModelFamily kMistral = {
    .name = "mistral",
    .hf_model_type = "mistral",
    .hf_class = "MistralForCausalLM",
    .hf_rows = [] {
      return hf_decoder_rows()
          .field("max_position_embeddings", &ModelConfig::max_position_embeddings, 4096 * 32)
          .custom("layer_types",
                  [](const Json& file, ModelConfig&) { check_hf_layer_types(file, {"sliding_attention"}); })
          .join(hf_window_rows(4096));
    }};

}  // namespace megalith
