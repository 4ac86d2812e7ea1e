// Megatron-LM's GPT: every architecture that its flags describe and that is no other family's, such as RMSNorm with
// learned positions or a squared ReLU. No Hugging Face class has it; its tensors have the names of Llama's.
// Source: Shoeybi et al. 2019, arXiv:1909.08053.
#include "models/families.h"

namespace megalith {

extern const ModelFamily kGpt = {.name = "gpt"};

}  // namespace megalith
