// Recognises text files by their names.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megalith {

// JSON lines, plain text, Parquet, Arrow, CSV, TSV, also compressed. Not hidden files, nor .json, which more often
// describes data sets.
bool is_texts_name(std::string_view file);

// True if the file or one of its folders begins with the word: data/train_sft-00000-of-00003.parquet is of train_sft,
// and of train.
bool is_of_split(std::string_view file, std::string_view split);

// The files meant by a name within a repository, in order: one file, or the texts below a folder (all, if inner is
// empty) that are of the split. Without a split, prefers those called train: validation and test are for measuring.
//    repo  for messages
// UserError: there is none, or several configurations (folders at the top).
std::vector<std::string> choose_texts(const std::vector<std::string>& files, const std::string& inner,
                                      const std::string& repo, const std::optional<std::string>& split = {});

}  // namespace megalith
