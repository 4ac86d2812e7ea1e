// Lists of messages in rows of instruction data: OpenAI's and ShareGPT's.
#pragma once

#include <string>
#include <string_view>

#include "kinds/text/sft_row.h"

namespace megalith {

// True for null, and for an empty text, list or object.
bool is_empty_json(const OrderedJson& value);

// A list, possibly as a JSON text, as in Parquet files. UserError for anything else.
OrderedJson list_of(const OrderedJson& value, std::string_view key, const std::string& where);

// The object without the keys of sft_ignore_keys, and with those that sft_rename_keys names for rows, or for messages.
// A message's speaker and words stay: rows may have keys of their names. UserError for a malformed name, and a key that
// is there under both names.
OrderedJson renamed(const OrderedJson& object, const SftOptions& options, bool is_message, const std::string& where);

// Converts ShareGPT's names to role and content, its function calls to tool_calls, and `weight`, `train` and the like
// to counts. A single message becomes a list of one. UserError for what is not a list of messages, an unknown speaker,
// and marks that cannot be honoured.
SftMessages messages_of(const OrderedJson& value, std::string_view key, const SftOptions& options,
                        const std::string& where);

// Calls of functions in the form of chat templates: from one, {"name": …, "arguments": …}, possibly as a JSON text, or a
// list of them.
OrderedJson calls_of(const OrderedJson& value, const std::string& where);

// UserError unless the system comes first, then user and assistant alternate, with tools' answers after the assistant.
void check_order(const OrderedJson& messages, const std::string& where);

// Tools in the form of chat templates; null if there are none.
OrderedJson tools_of(const OrderedJson* value, bool is_share_gpt, const std::string& where);

}  // namespace megalith
