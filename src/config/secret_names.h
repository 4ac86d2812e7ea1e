// Variables of the environment that hold secrets, by their names.
#pragma once

#include <string>

namespace megalith {

// True for HF_TOKEN and WANDB_API_KEY, not for NUM_TOKENS and TOKENIZER.
bool is_name_of_secret(const std::string& name);

}  // namespace megalith
