// Recognises text files by name.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megalith {

// JSON lines, plain text, Parquet, Arrow, CSV, TSV, also compressed. Not hidden files, nor .json, which mostly
// describes data sets.
bool is_texts_name(std::string_view file);

// A file's or folder's name begins with the word: data/train_sft-00000-of-00003.parquet is of train_sft and of train.
bool is_of_split(std::string_view file, std::string_view split);

// Sorted: one file, or the texts below a folder (or everywhere) of the split; without a split preferably train's, as
// others are for measuring. UserError: none, or several configurations (folders at the top).
//   repo  for messages
std::vector<std::string> choose_texts(const std::vector<std::string>& files, const std::string& inner,
                                      const std::string& repo, const std::optional<std::string>& split = {});

}  // namespace megalith
