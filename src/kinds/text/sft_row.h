// What a row of instruction data says, in the keys of any trainer. A key that nothing reads is an error.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/json.h"
#include "data/sft_options.h"
#include "kinds/text/sft_rows.h"

namespace megalith {

// UserError, with the keys, for keys of no form, and for KTO's rows, whose answers may be bad.
SftForm sft_form_of(const OrderedJson& row, const std::optional<std::string>& column, const std::string& where);

// A conversation as chat templates take it.
struct SftMessages {
  OrderedJson list = OrderedJson::array();
  std::vector<bool> counts;  // of each message: an answer, and not marked as one that is not learned
  bool is_share_gpt = false;

  void add(const SftMessages& more);
};

// A question and its answer as texts.
struct SftTexts {
  bool is_instruction = false;  // of the form kAlpaca
  std::string system, question, input, answer;
  std::vector<std::pair<std::string, std::string>> history;
};

// Either texts or chats has an item, or two of a pair: the chosen and the rejected answer, each with its question.
struct SftRow {
  SftForm form = SftForm::kText;
  std::vector<SftTexts> texts;
  std::vector<SftMessages> chats;
  OrderedJson tools, variables;  // of the chat template; null if there are none
};

// UserError, with the place, for rows that cannot be used.
SftRow read_sft_row(const OrderedJson& row, const SftOptions& options, const std::string& where);

// The conversation that a question and an answer as texts make.
SftMessages messages_of_texts(const SftTexts& texts);

// Keys that say something and are not known as harmless, such as id or source, nor in `ignored`.
bool is_silent(const std::string& key, const OrderedJson& value, const std::vector<std::string>& ignored);

}  // namespace megalith
