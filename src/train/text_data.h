// Training on texts: what a data path names is made into token files first, once.
#pragma once

#include <string>

#include "core/log.h"
#include "train/config.h"

namespace megalith {

// Whether a data path names a file or folder of texts, and not the prefix of token files.
bool names_texts(const std::string& value);

// Puts prepared token files in the place of every data path that names a file or folder of texts (JSON lines, plain
// text, Parquet, Arrow, CSV; the texts are under "text", and end with the end-of-document token). They lie in
// data_cache_path, or beside the texts in {path}.tokens, under a name that follows from the texts' paths, sizes and
// times and from the tokenizer: so they are made once, by one process of those that start together, while the others
// wait.
//
// Data without texts are left as they are, those of a model of pictures too. UserErrors of prepare_data(); a run
// without a tokenizer.
void prepare_texts(Resolved& resolved, Logger& log);

}  // namespace megalith
