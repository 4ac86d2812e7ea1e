// Fine-tuning on instructions: tokenizes the rows in sft_data_path once, before the run.
#pragma once

#include <cstdint>
#include <string>

#include "core/log.h"
#include "train/config.h"

namespace megalith {

// Replaces instruction files and folders in derived.data by prefixes of prepared files (sft_set.h) in data_cache_path
// or {path}.tokens of the first rows. Names derive from the rows' paths, sizes and times, the tokenizer and the chat
// template; one process makes the files once while the others wait.
//
// UserErrors of prepare_sft(), or without a tokenizer. Other data are unchanged.
void prepare_instructions(Resolved& resolved, Logger& log);

// Training sequences in one pass over the rows. Call after prepare_instructions(). UserErrors of make_sft_sets().
int64_t count_training_sequences(const Resolved& resolved);

}  // namespace megalith
