// Fine-tuning on instructions: the rows that sft_data_path names are made into tokens and masks first, once.
#pragma once

#include <cstdint>
#include <string>

#include "core/log.h"
#include "train/config.h"

namespace megalith {

// Instructions are read with the tokenizer of the model that is loaded, unless another is named.
void name_tokenizer_of_instructions(Resolved& resolved);

// Puts the prefix of prepared files (data/sft_set.h) in the place of the files and folders that derived.data names for
// instructions. They lie in data_cache_path, or beside the first of the rows in {path}.tokens, under a name that
// follows from the rows' paths, sizes and times, the tokenizer and the chat template: so they are made once, by one
// process of those that start together, while the others wait.
//
// UserErrors of prepare_sft(); a run without a tokenizer. Data without instructions are left as they are.
void prepare_instructions(Resolved& resolved, Logger& log);

// Sequences of one pass over the training part of the rows. prepare_instructions() comes before. UserError as
// make_sft_sets().
int64_t count_training_sequences(const Resolved& resolved);

}  // namespace megalith
