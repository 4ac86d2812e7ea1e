// Lists of messages in rows of instruction data: OpenAI's and ShareGPT's.
#pragma once

#include <string>
#include <string_view>

#include "kinds/text/sft_row.h"

namespace megalith {

// A value that says nothing: null, and an empty text, list or object.
bool is_empty_json(const OrderedJson& value);

// A list, perhaps as a JSON text, as in Parquet files. UserError for anything else.
OrderedJson list_of(const OrderedJson& value, std::string_view key, const std::string& where);

// ShareGPT's names become role and content, its function calls tool_calls. `weight`, `train` and the like become
// counts. A single message is a list of one. UserError for what is no list of messages, an unknown speaker, and marks
// that cannot be followed.
SftMessages messages_of(const OrderedJson& value, std::string_view key, const SftOptions& options,
                        const std::string& where);

// UserError unless the system is first, and then user and assistant by turns, with tools' answers after the assistant.
void check_order(const OrderedJson& messages, const std::string& where);

// Tools as chat templates take them; null if there are none.
OrderedJson tools_of(const OrderedJson* value, bool is_share_gpt, const std::string& where);

}  // namespace megalith
