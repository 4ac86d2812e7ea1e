// OLMo 2: Llama with norms after attention and the MLP instead of before, and norms over all queries and all keys of a
// token. OLMo 3: a window in three of four layers, which have no rotary scaling. Source: OLMo team 2024,
// arXiv:2501.00656; OLMo team 2025, arXiv:2512.13961.
#include "models/families.h"
#include "models/hf_shared_rows.h"

namespace megalith {

namespace olmo {
namespace {

HfRows rows_of_2() {
  return hf_decoder_rows()
      .fixed("attention_bias", false, "biases in OLMo's attention are not provided")
      .field("rms_norm_eps", &ModelConfig::norm_epsilon, 1e-5)
      .always(&ModelConfig::norm_placement, NormPlacement::kPost)
      .always(&ModelConfig::qk_layernorm, true)
      .always(&ModelConfig::qk_layernorm_scope, HeadNormScope::kProjection)
      .join(hf_rope_rows({}))
      .written("pad_token_id", nullptr);  // the classes take 1, whose embedding would get no gradient
}

HfRows rows_of_3() {
  return rows_of_2()
      .join(hf_rope_rows({"llama3", "yarn"}))
      .join(hf_windowed_layers_rows(4096, 4))
      .then([](ModelConfig& config) {
        if (config.use_rope_scaling && config.attention_window() > 0) config.rotary_base_local = config.rotary_base;
      });
}

}  // namespace
}  // namespace olmo

extern const ModelFamily kOlmo2 = {.name = "olmo2",
                                   .hf_model_type = "olmo2",
                                   .hf_class = "Olmo2ForCausalLM",
                                   .hf_rows = olmo::rows_of_2};
extern const ModelFamily kOlmo3 = {.name = "olmo3",
                                   .hf_model_type = "olmo3",
                                   .hf_class = "Olmo3ForCausalLM",
                                   .hf_rows = olmo::rows_of_3};

}  // namespace megalith
