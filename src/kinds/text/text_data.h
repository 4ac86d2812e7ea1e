// Training on texts: tokenizes the files in data paths once, before the run.
#pragma once

#include <string>

#include "core/log.h"
#include "train/config.h"

namespace megalith {

// True if a data path names a file or folder of texts, not a prefix of token files.
bool names_texts(const std::string& value);

// Replaces data paths that name files or folders of texts (JSON lines, plain text, Parquet, Arrow, CSV; under "text",
// ended by the end-of-document token) by token files in data_cache_path or {path}.tokens. Names derive from the texts'
// paths, sizes and times and the tokenizer; one process makes the files once while the others wait.
//
// Other data, and picture models' data, are unchanged. UserErrors of prepare_data(), or without a tokenizer.
void prepare_texts(Resolved& resolved, Logger& log);

}  // namespace megalith
