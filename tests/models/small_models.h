// A small model of each family whose parts others lack, as its preset or Hugging Face folder would have it.
#pragma once

#include "models/model_config.h"

namespace megalith::test {

ModelConfig small_bert(NormPlacement placement);
ModelConfig small_gpt2();
ModelConfig small_gemma(bool is_third);
ModelConfig small_mixtral();
ModelConfig small_llama4();
ModelConfig small_deepseek(bool is_v3);
ModelConfig small_olmo(bool is_3);
ModelConfig small_qwen3_moe();
ModelConfig small_glm();
ModelConfig small_gpt_oss();
ModelConfig small_lfm2(bool has_experts);
ModelConfig small_t5(bool is_v1_1);

}  // namespace megalith::test
