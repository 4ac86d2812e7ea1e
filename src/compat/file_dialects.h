// Finds the trainer that a configuration file is of, and the arguments that are its words.
//
//   megalith train --config 70B_lora.yaml batch_size=4 ~lr_scheduler   torchtune's recipe, changed as by `tune run`
//   megalith train --config lora-1b.yml learning_rate=1e-4             axolotl's, LLaMA-Factory's or TRL's file
//   megalith trl sft --config sft.yaml --learning_rate 1e-4            flags are TRL's (config/dialects/entries.table)
#pragma once

#include "config/resolve.h"

namespace megalith {

// Has the arguments' configuration file read by the reader of its trainer, with the trainer's words, which are removed
// from the arguments.
void adopt_file_dialect(ConfigInputs& inputs);

}  // namespace megalith
