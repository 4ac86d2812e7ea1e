// Rows that are tokens already, as TRL, axolotl and transformers' collators take them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/json.h"

namespace megalith {

struct SftTokens {
  std::vector<int64_t> ids;
  std::vector<uint8_t> counts;  // of each: 1 if it is learned
};

// Members of a row; nullptr for those it lacks. Each but input_ids is a list of the same length.
struct SftTokenKeys {
  const OrderedJson* input_ids = nullptr;
  const OrderedJson* labels = nullptr;           // the token itself, or -100: not learned
  const OrderedJson* attention_mask = nullptr;   // 0 for padding, which is left out
  const OrderedJson* completion_mask = nullptr;  // 0: not learned
  const OrderedJson* assistant_masks = nullptr;  // 0: not learned
};

// Without labels and masks all tokens are learned; with several, those that all of them take. UserError for
// lengths that differ, labels of other tokens, and padding that is learned or in the middle.
SftTokens tokens_of(const SftTokenKeys& keys, const std::string& where);

}  // namespace megalith
