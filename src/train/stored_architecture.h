// The architecture that a Hugging Face folder or a checkpoint records, as option values below everything that a person
// sets.
#pragma once

#include <string>

#include "train/config.h"

namespace megalith {

// Architecture of --load_hf, as option values by name. What the person set wins, and is checked against the weights
// when they are loaded.
void apply_hf_architecture(Resolved& resolved);

// Architecture and tokenizer of the newest readable checkpoint in --load; nothing when there is none (then a run starts
// afresh). Which checkpoint is intact is settled when its weights are loaded, and the architectures are compared there.
// UserError when none of several can be read.
void apply_checkpoint_architecture(Resolved& resolved, const std::string& load);

// The form of the adapters in --adapter, or in the newest checkpoint of --load, as values of lora.*; nothing when
// neither has any. UserError as read_adapter_folder().
void apply_adapter_form(Resolved& resolved);

}  // namespace megalith
