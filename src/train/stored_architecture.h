// The architecture of a Hugging Face folder or checkpoint as option values, which set options override.
#pragma once

#include <string>

#include "train/config.h"

namespace megalith {

// --load_hf's architecture. Set options override it, and are checked against the weights when loading.
void apply_hf_architecture(Resolved& resolved);

// Architecture and tokenizer of the newest readable checkpoint in --load; nothing if there is none (a run then starts
// afresh). Checked when weights are loaded. UserError when none of several can be read.
void apply_checkpoint_architecture(Resolved& resolved, const std::string& load);

// lora.* values of the adapters in --adapter, or in --load's newest checkpoint; nothing without adapters. UserError as
// read_adapter_folder().
void apply_adapter_form(Resolved& resolved);

}  // namespace megalith
