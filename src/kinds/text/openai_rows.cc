#include "kinds/text/openai_rows.h"

#include <fmt/format.h>

#include <utility>

#include "core/error.h"
#include "kinds/text/sft_messages.h"
#include "tokenizer/chat_template.h"

namespace megalith {
namespace {

constexpr const char *kPreferred = "preferred_output", *kOther = "non_preferred_output";

// Sets a key of the row being made, once.
void set_key(OrderedJson& made, const std::string& key, const OrderedJson& value, const std::string& written,
             const std::string& where) {
  if (is_empty_json(value)) return;
  if (made.contains(key) && !is_empty_json(made[key])) {
    throw UserError(fmt::format("{}: the row has {} and {}", where, written, key),
                    "give one of them; --sft_ignore_keys passes over a key");
  }
  made[key] = value;
}

// Tools of the older form: bare functions.
OrderedJson tools_of_functions(const OrderedJson& value, const std::string& where) {
  OrderedJson tools = OrderedJson::array();
  for (const OrderedJson& function : list_of(value, "functions", where)) {
    if (!function.is_object()) throw UserError(where + ": functions holds what is no object");
    tools.push_back({{"type", "function"}, {"function", function}});
  }
  return tools;
}

void add_input(OrderedJson& made, const OrderedJson& written, const SftOptions& options, const std::string& where) {
  const std::string what = where + ": input";
  OrderedJson input = written;
  if (input.is_string()) input = parse_ordered_json(json_as<std::string>(Json(input), what), what);
  if (!input.is_object() || !input.contains("messages")) {
    throw UserError(what + " is no object with messages",
                    fmt::format("a row with {} is {{\"input\": {{\"messages\": […]}}, \"{}\": […], \"{}\": […]}}",
                                kPreferred, kPreferred, kOther));
  }
  for (const auto& [key, value] : input.items()) {
    if (key == "messages") {
      set_key(made, "prompt", list_of(value, "input.messages", where), "input.messages", where);
    } else if (key == "functions" && !value.is_null()) {
      set_key(made, "tools", tools_of_functions(value, where), "input.functions", where);
    } else if (key == "tools" || key == "parallel_tool_calls") {
      set_key(made, key, value, "input." + key, where);
    } else if (is_silent(key, value, options.sft_ignore_keys)) {
      throw UserError(fmt::format("{}: nothing reads input.{} of the row", where, key),
                      fmt::format("--sft_ignore_keys {} passes over it", key));
    }
  }
}

}  // namespace

bool has_openai_keys(const OrderedJson& row) {
  if (!row.is_object()) return false;
  const bool has_functions = row.contains("functions") && !row["functions"].is_null();
  return has_functions || row.contains(kPreferred) || row.contains(kOther);
}

OrderedJson in_usual_keys(const OrderedJson& row, const SftOptions& options, const std::string& where) {
  const bool is_preference = row.contains(kPreferred) || row.contains(kOther);
  OrderedJson made = OrderedJson::object();
  for (const auto& [key, value] : row.items()) {
    if (is_preference && key == "input") {
      add_input(made, value, options, where);
    } else if (key == "functions" && !value.is_null()) {
      set_key(made, "tools", tools_of_functions(value, where), key, where);
    } else {
      set_key(made, key == kPreferred ? "chosen" : key == kOther ? "rejected" : key, value, key, where);
    }
  }
  for (const auto& [name, key] : {std::pair(kPreferred, "chosen"), std::pair(kOther, "rejected")}) {
    if (is_preference && !made.contains(key)) throw UserError(fmt::format("{}: the row has no {}", where, name));
  }
  if (is_preference && !made.contains("prompt")) throw UserError(where + ": the row has no message in input");
  return made;
}

void use_tool_calls(OrderedJson& message, const std::string& where) {
  if (!message.contains("function_call")) return;
  const OrderedJson call = message["function_call"];
  message.erase("function_call");
  if (is_empty_json(call)) return;
  if (message.contains("tool_calls") && !is_empty_json(message["tool_calls"])) {
    throw UserError(where + ": a message has function_call and tool_calls", "give its calls once, as tool_calls");
  }
  message["tool_calls"] = calls_of(call, where);
}

void check_parallel_calls(const OrderedJson& value, const SftRow& row, const std::string& where) {
  if (!value.is_boolean()) {
    throw UserError(fmt::format("{}: parallel_tool_calls is {}", where, value.dump().substr(0, 100)),
                    "it is true or false");
  }
  if (value == true) return;
  for (const SftMessages& chat : row.chats) {
    for (size_t i = 0; i < chat.list.size(); ++i) {
      const OrderedJson& message = chat.list[i];
      if (!message.contains("tool_calls") || message["tool_calls"].size() < 2) continue;
      throw UserError(fmt::format("{}: parallel_tool_calls is false, and message {} has {} calls", where, i + 1,
                                  message["tool_calls"].size()),
                      "give each call a message of its own, or parallel_tool_calls true");
    }
  }
}

}  // namespace megalith
