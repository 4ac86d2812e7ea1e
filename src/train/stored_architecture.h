// The architecture recorded in a Hugging Face folder or checkpoint, as option values overridden by anything set.
#pragma once

#include <string>

#include "train/config.h"

namespace megalith {

// The architecture of --load_hf as option values. Set options override it, and are checked against the weights when
// loading.
void apply_hf_architecture(Resolved& resolved);

// Architecture and tokenizer of the newest readable checkpoint in --load; nothing if there is none (a run then starts
// afresh). Integrity and architecture are checked when weights are loaded. UserError when none of several can be read.
void apply_checkpoint_architecture(Resolved& resolved, const std::string& load);

// The form of the adapters in --adapter, or in the newest checkpoint of --load, as values of lora.*; nothing without
// adapters. UserError as read_adapter_folder().
void apply_adapter_form(Resolved& resolved);

}  // namespace megalith
