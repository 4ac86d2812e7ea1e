// Megatron-LM's GPT: architectures that only its flags describe, such as RMSNorm with learned positions or a squared
// ReLU. Has no Hugging Face class; tensors have Llama's names.
// Source: Shoeybi et al. 2019, arXiv:1909.08053.
#include "models/families.h"

namespace megalith {

extern const ModelFamily kGpt = {.name = "gpt"};

}  // namespace megalith
