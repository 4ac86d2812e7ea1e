// OpenAI's rows of preferences and its older calls of functions, in the keys that other rows have. Source: OpenAI's
// reference of the fine-tuning API (preference input and chat input objects).
#pragma once

#include <string>

#include "kinds/text/sft_row.h"

namespace megalith {

// True if in_usual_keys() changes the row.
bool has_openai_keys(const OrderedJson& row);

// `input` with messages, tools and parallel_tool_calls, preferred_output and non_preferred_output become prompt, chosen
// and rejected beside them; functions become tools. UserError for keys below input that nothing reads, and for what is
// there under both names.
OrderedJson in_usual_keys(const OrderedJson& row, const SftOptions& options, const std::string& where);

// A message's function_call becomes tool_calls. UserError for a message with both.
void use_tool_calls(OrderedJson& message, const std::string& where);

// UserError unless `value`, a row's parallel_tool_calls, is true or false, and if it is false and a message of the row
// has several calls.
void check_parallel_calls(const OrderedJson& value, const SftRow& row, const std::string& where);

}  // namespace megalith
