// Parses a row of instruction data, with the keys of any trainer. Unread keys are an error.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/json.h"
#include "data/sft_options.h"
#include "kinds/text/sft_rows.h"
#include "kinds/text/sft_tokens.h"

namespace megalith {

// UserError, with the keys, for keys of no form.
SftForm sft_form_of(const OrderedJson& row, const std::optional<std::string>& column, const std::string& where);

// A conversation in the form of chat templates.
struct SftMessages {
  OrderedJson list = OrderedJson::array();
  std::vector<bool> counts;  // per message: an answer that is learned
  bool is_share_gpt = false;

  void add(const SftMessages& more);
};

// A question and its answer as texts.
struct SftTexts {
  bool is_instruction = false;  // of the form kAlpaca
  std::string system, question, input, answer;
  std::vector<std::pair<std::string, std::string>> history;
  bool learns_history = true;  // false: a pair's or a rating's answer is the last one
};

// Either texts or chats has one item, or two for a pair: the chosen and the rejected answer, each with its question.
// Rows of tokens have neither.
struct SftRow {
  SftForm form = SftForm::kText;
  bool is_bad = false;  // of kRated
  SftTokens tokens;     // of kTokens
  std::vector<SftTexts> texts;
  std::vector<SftMessages> chats;
  OrderedJson tools, variables;  // of the chat template; null if there are none
};

// UserError, with the location, for unusable rows.
SftRow read_sft_row(const OrderedJson& row, const SftOptions& options, const std::string& where);

// The conversation of a question and an answer given as texts.
SftMessages messages_of_texts(const SftTexts& texts);

// True for a key with a value that is neither known as harmless, such as id or source, nor in `ignored`.
bool is_silent(const std::string& key, const OrderedJson& value, const std::vector<std::string>& ignored);

}  // namespace megalith
