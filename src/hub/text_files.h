// Which files hold texts, by their names.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megalith {

// Whether a file's name is one of texts: JSON lines, plain text, Parquet, Arrow, CSV, TSV, also compressed. Hidden ones
// are not; nor is .json, which describes data sets more often than it holds them.
bool is_texts_name(std::string_view file);

// Whether a file or one of its folders has a name that begins with the word: data/train_sft-00000-of-00003.parquet is
// of train_sft, and of train.
bool is_of_split(std::string_view file, std::string_view split);

// The files that a name within a repository means, in order: one file; or those of texts below a folder (all, when
// inner is empty) that are of the split. Without a split, where some are called train, only these: validation and test
// are for measuring.
//   repo  for messages
// UserError: none is meant, or several configurations (folders at the top) are.
std::vector<std::string> choose_texts(const std::vector<std::string>& files, const std::string& inner,
                                      const std::string& repo, const std::optional<std::string>& split = {});

}  // namespace megalith
