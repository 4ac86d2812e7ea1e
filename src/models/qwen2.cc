// Qwen2.5: Llama with biases on the query, key and value projections.
// Source: Qwen team 2024, arXiv:2412.15115.
#include "models/families.h"
#include "models/hf_shared_rows.h"

namespace megalith {

extern const ModelFamily kQwen2 = {
    .name = "qwen2",
    .hf_model_type = "qwen2",
    .hf_class = "Qwen2ForCausalLM",
    .hf_rows = [] {
      return hf_decoder_rows()
          .field("max_position_embeddings", &ModelConfig::max_position_embeddings, 32768)
          .always(&ModelConfig::add_qkv_bias, true)
          .join(hf_upper_window_rows());
    }};

}  // namespace megalith
