#include "kinds/text/sft_tokens.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "kinds/text/sft_messages.h"

namespace megalith {
namespace {

constexpr int64_t kNotLearned = -100;  // torch's ignore_index

std::vector<int64_t> numbers_of(const OrderedJson& value, const char* key, const std::string& where) {
  std::vector<int64_t> numbers;
  for (const OrderedJson& item : list_of(value, key, where)) {
    if (!item.is_number_integer() && !item.is_boolean()) {
      throw UserError(fmt::format("{}: {} holds {}", where, key, item.dump().substr(0, 40)),
                      "a row of tokens has lists of whole numbers");
    }
    numbers.push_back(item.is_boolean() ? (item == true ? 1 : 0) : json_as<int64_t>(Json(item), where));
  }
  return numbers;
}

// Empty if the row has none.
std::vector<int64_t> beside(const OrderedJson* value, const char* key, bool is_mask, size_t count,
                            const std::string& where) {
  if (value == nullptr) return {};
  std::vector<int64_t> numbers = numbers_of(*value, key, where);
  if (numbers.size() != count) {
    throw UserError(fmt::format("{}: {} has {} numbers, and input_ids {}", where, key, numbers.size(), count),
                    "they belong to each other one by one");
  }
  const auto wrong = std::ranges::find_if(numbers, [](int64_t number) { return number != 0 && number != 1; });
  if (is_mask && wrong != numbers.end()) {
    throw UserError(fmt::format("{}: {} holds {}", where, key, *wrong), "a mask is of 0 and 1");
  }
  return numbers;
}

}  // namespace

SftTokens tokens_of(const SftTokenKeys& keys, const std::string& where) {
  const std::vector<int64_t> ids =
      keys.input_ids == nullptr ? std::vector<int64_t>() : numbers_of(*keys.input_ids, "input_ids", where);
  const auto mask = [&](const OrderedJson* value, const char* key) {
    return beside(value, key, /*is_mask=*/true, ids.size(), where);
  };
  const auto labels = beside(keys.labels, "labels", /*is_mask=*/false, ids.size(), where);
  const auto attention = mask(keys.attention_mask, "attention_mask");
  const auto completion = mask(keys.completion_mask, "completion_mask");
  const auto assistant = mask(keys.assistant_masks, "assistant_masks");
  const auto is_on = [](const std::vector<int64_t>& list, size_t i) { return list.empty() || list[i] != 0; };
  size_t begin = 0, end = ids.size();
  while (begin < end && !is_on(attention, begin)) ++begin;
  while (end > begin && !is_on(attention, end - 1)) --end;
  SftTokens made;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (!labels.empty() && labels[i] != kNotLearned && labels[i] != ids[i]) {
      throw UserError(fmt::format("{}: labels has {} at {}, and input_ids {}", where, labels[i], i, ids[i]),
                      "a label is the token at its own place, or -100: the shift by one is made here");
    }
    const bool is_padding = i < begin || i >= end;
    if (is_padding && !labels.empty() && labels[i] != kNotLearned) {
      throw UserError(fmt::format("{}: attention_mask is 0 at {}, and labels {}", where, i, labels[i]),
                      "padding is not learned: -100");
    }
    if (is_padding) continue;
    if (!is_on(attention, i)) {
      throw UserError(fmt::format("{}: attention_mask is 0 at {}, between tokens", where, i),
                      "only padding at either end has 0");
    }
    const bool counts = is_on(completion, i) && is_on(assistant, i) && (labels.empty() || labels[i] != kNotLearned);
    made.ids.push_back(ids[i]);
    made.counts.push_back(counts ? 1 : 0);
  }
  if (made.ids.empty()) throw UserError(where + ": input_ids has no token");
  return made;
}

}  // namespace megalith
