// The tokenizer's files inside a checkpoint, in its folder tokenizer/: where the recorded paths do not exist, as on
// another machine, these are read.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "config/record.h"

namespace megalith {

// A file of a checkpoint besides its tensors.
struct KeptFile {
  std::string name;  // "tokenizer/vocab.txt"
  std::string content;
};

// These files in tokenizer/; those that do not exist are left out.
std::vector<KeptFile> keep_tokenizer(const std::vector<std::filesystem::path>& files);

// Replaces the record's paths that do not exist by those inside the checkpoint, where it has them.
void find_kept_tokenizer(const std::filesystem::path& checkpoint, Configuration& configuration);

}  // namespace megalith
