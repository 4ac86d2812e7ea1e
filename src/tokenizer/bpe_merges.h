// The member "merges" of a BPE component.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "tokenizer/merge_table.h"
#include "tokenizer/vocabulary.h"

namespace megalith {

// Reads ["a b", …] or [["a", "b"], …]; a merge's rank is its index in the list.
//   spelling       the tokens as spelled in the file
//   prefix_length  bytes of the right token that the merged one leaves out
// UserError for merges that use or make a token that is not in the vocabulary.
MergeTable read_merges(const nlohmann::json& model, const Vocabulary& spelling, size_t prefix_length,
                       std::string_view where);

}  // namespace megalith
