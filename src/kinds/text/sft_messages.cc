#include "kinds/text/sft_messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/error.h"
#include "kinds/text/openai_rows.h"
#include "tokenizer/chat_template.h"

namespace megalith {
namespace {

std::string role_of(const OrderedJson& message, const std::string& where) {
  if (!message.is_object()) throw UserError(fmt::format("{}: a message is no object", where));
  const char* key = message.contains("from") ? "from" : "role";
  if (!message.contains(key)) {
    throw UserError(fmt::format("{}: a message has no role: {}", where, message.dump().substr(0, 100)),
                    "a message is {\"role\": …, \"content\": …}, or ShareGPT's {\"from\": …, \"value\": …}");
  }
  return json_as<std::string>(Json(message[key]), fmt::format("{}: {}", where, key));
}

// Maps ShareGPT's speakers to the roles of chat templates.
std::string known_role(const std::string& name, const std::string& where) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 14> kRoles = {
      {{"system", "system"},
       {"developer", "system"},
       {"user", "user"},
       {"human", "user"},
       {"assistant", "assistant"},
       {"gpt", "assistant"},
       {"bot", "assistant"},
       {"model", "assistant"},
       {"chatgpt", "assistant"},
       {"function_call", "assistant"},
       {"tool", "tool"},
       {"observation", "tool"},
       {"ipython", "ipython"},
       {"function", "tool"}}};
  for (const auto& [word, role] : kRoles) {
    if (word == name) return std::string(role);
  }
  throw UserError(fmt::format("{}: the role '{}' is not known", where, name),
                  "roles are system, user, assistant and tool; ShareGPT's system, human, gpt and tool");
}

// Some sets give a message OpenAI's keys and ShareGPT's; only one of them is read.
void check_one_speaker(const OrderedJson& message, const std::string& role, const std::string& where) {
  if (!message.contains("from")) return;
  const auto of_both = [&](const char* key) { return message.contains(key) && !is_empty_json(message[key]); };
  const bool is_same = !of_both("role") || !message["role"].is_string() ||
                       known_role(json_as<std::string>(Json(message["role"]), where), where) == role;
  const bool has_same_words = !of_both("content") || !of_both("value") || message["value"] == message["content"];
  if (is_same && has_same_words) return;
  throw UserError(fmt::format("{}: a message has {}", where, is_same ? "value and content, which differ"
                                                                     : "from and role, which differ"),
                  "give the speaker and the words once: role and content, or ShareGPT's from and value");
}

// OpenAI's weight, axolotl's train, LLaMA-Factory's loss: removed from the message.
std::optional<bool> mark_of(OrderedJson& message, const std::string& where) {
  std::optional<bool> mark;
  for (const char* key : {"weight", "train", "training", "loss", "loss_weight"}) {
    if (!message.contains(key)) continue;
    const OrderedJson value = message[key];
    message.erase(key);
    if (value.is_null()) continue;
    const bool is_on = value == OrderedJson(true) || value == OrderedJson(1);
    if (!is_on && value != OrderedJson(false) && value != OrderedJson(0)) {
      throw UserError(fmt::format("{}: a message's {} is {}", where, key, value.dump()),
                      "an answer is learned or not: 1 or 0, true or false");
    }
    if (mark && *mark != is_on) {
      throw UserError(fmt::format("{}: a message's {} says otherwise than another mark of it", where, key));
    }
    mark = is_on;
  }
  return mark;
}

// Texts, and lists of parts such as {"type": "text", "text": …}.
void check_content(const OrderedJson& content, const std::string& role, const std::string& where) {
  const auto fail = [&](const std::string& found) {
    throw UserError(fmt::format("{}: the content of the {}'s message {}", where, role, found),
                    "it is a text, or a list of parts such as {\"type\": \"text\", \"text\": …}");
  };
  if (content.is_string()) return;
  if (!content.is_array()) fail("is " + content.dump().substr(0, 100));
  for (const OrderedJson& part : content) {
    if (!part.is_object() || !part.contains("type") || !part["type"].is_string()) fail("has a part without a type");
    const auto type = json_as<std::string>(Json(part["type"]), "type");
    if (!part.contains(type) || !part[type].is_string() || type == "image" || type == "audio" || type == "video") {
      fail(fmt::format("has a part of type {}, which is not read", type));
    }
  }
}

// Parquet files have null for members that other messages of the set have.
void drop_absent(OrderedJson& message) {
  for (auto member = message.begin(); member != message.end();) {
    const bool is_absent = member.value().is_null() || (member.key() == "tool_calls" && is_empty_json(member.value()));
    member = is_absent && member.key() != "content" ? message.erase(member) : std::next(member);
  }
}

}  // namespace

OrderedJson calls_of(const OrderedJson& value, const std::string& where) {
  const std::string what = where + ": function_call";
  OrderedJson calls = value;
  if (value.is_string()) calls = parse_ordered_json(json_as<std::string>(Json(value), what), what);
  if (calls.is_object()) calls = OrderedJson::array({calls});
  OrderedJson made = OrderedJson::array();
  for (OrderedJson& call : calls) {
    if (!call.is_object() || !call.contains("name")) {
      throw UserError(what + " is no call of a function", "it is {\"name\": …, \"arguments\": {…}}");
    }
    made.push_back({{"type", "function"}, {"function", std::move(call)}});
  }
  return made;
}

bool is_empty_json(const OrderedJson& value) {
  return value.is_null() || value == "" || (value.is_structured() && value.empty());
}

OrderedJson list_of(const OrderedJson& value, std::string_view key, const std::string& where) {
  const std::string what = fmt::format("{}: {}", where, key);
  try {
    OrderedJson list = value;
    if (value.is_string()) list = parse_ordered_json(json_as<std::string>(Json(value), what), what);
    if (list.is_array()) return list;
  } catch (const UserError&) {  // not a JSON text
  }
  throw UserError(fmt::format("{} is no list, and no JSON text of one", what));
}

OrderedJson renamed(const OrderedJson& object, const SftOptions& options, bool is_message, const std::string& where) {
  constexpr std::string_view kOfMessage = "message.";
  constexpr std::array<std::string_view, 4> kAlwaysRead = {"role", "content", "from", "value"};
  OrderedJson made = object;
  for (const std::string& key : options.sft_ignore_keys) {
    const bool stays = is_message && std::ranges::count(kAlwaysRead, key) > 0;
    if (made.is_object() && !stays) made.erase(key);
  }
  for (const std::string& rename : options.sft_rename_keys) {
    const size_t equals = rename.find('=');
    const bool is_of_message = rename.starts_with(kOfMessage);
    const size_t begin = is_of_message ? kOfMessage.size() : 0;
    if (is_of_message != is_message || !object.is_object()) continue;
    const std::string key = rename.substr(begin, equals - begin), name = rename.substr(equals + 1);
    if (!made.contains(key)) continue;
    if (made.contains(name) && !is_empty_json(made[name])) {
      throw UserError(fmt::format("{}: there are {} and {}, and sft_rename_keys is {}", where, key, name, rename),
                      "leave one of them out with --sft_ignore_keys, and sft_rename_keys without it");
    }
    made[name] = OrderedJson(made[key]);
    made.erase(key);
  }
  return made;
}

void SftMessages::add(const SftMessages& more) {
  for (const OrderedJson& message : more.list) list.push_back(message);
  counts.insert(counts.end(), more.counts.begin(), more.counts.end());
  is_share_gpt = is_share_gpt || more.is_share_gpt;
}

SftMessages messages_of(const OrderedJson& value, std::string_view key, const SftOptions& options,
                        const std::string& where) {
  const OrderedJson list = value.is_object() ? OrderedJson::array({value}) : list_of(value, key, where);
  if (list.empty()) throw UserError(fmt::format("{}: {} is no list of messages", where, key));
  SftMessages messages;
  for (const OrderedJson& written : list) {
    const OrderedJson message = renamed(written, options, /*is_message=*/true, where);
    const std::string name = role_of(message, where), role = known_role(name, where);
    const bool is_share_gpt = message.contains("from");
    check_one_speaker(message, role, where);
    OrderedJson made = {{"role", role}};
    for (const auto& [member, of_message] : message.items()) {
      if (member != "from" && member != "role" && (member != "value" || !is_share_gpt)) made[member] = of_message;
    }
    if (is_share_gpt) {
      messages.is_share_gpt = true;
      OrderedJson words = nullptr;
      for (const char* key : {"content", "value"}) {
        if (message.contains(key) && (words.is_null() || !is_empty_json(message[key]))) words = message[key];
      }
      const bool is_call = name == "function_call" && !words.is_null();
      made["content"] = is_call ? OrderedJson("") : words;
      if (is_call) made["tool_calls"] = calls_of(words, where);
    }
    use_tool_calls(made, where);
    if (made.contains("tool_calls") && !made["tool_calls"].is_null()) {
      made["tool_calls"] = list_of(made["tool_calls"], "tool_calls", where);
    }
    drop_absent(made);
    const bool has_words = made.contains("content") && !made["content"].is_null();
    if (!has_words && !made.contains("tool_calls")) {
      throw UserError(fmt::format("{}: the {}'s message has no content", where, role));
    }
    if (has_words) check_content(made["content"], role, where);
    const std::optional<bool> mark = mark_of(made, where);
    const bool is_answer = role == "assistant";
    if (mark == false && options.train_on_input) {
      throw UserError(
          fmt::format("{}: a message is marked as one that is not learned, and train_on_input learns all", where),
          "leave train_on_input out, or the marks with --sft_ignore_keys");
    }
    if (mark == true && !is_answer && !options.train_on_input) {
      throw UserError(fmt::format("{}: the {}'s message is marked as one that is learned", where, role),
                      "only answers are learned: leave the mark out, or add --train_on_input to learn all");
    }
    messages.counts.push_back(is_answer && mark.value_or(true));
    messages.list.push_back(std::move(made));
  }
  return messages;
}

void check_order(const OrderedJson& messages, const std::string& where) {
  std::string before;
  for (size_t i = 0; i < messages.size(); ++i) {
    const auto role = json_as<std::string>(Json(messages[i]["role"]), where);
    const bool begins = before.empty() || before == "system";
    const bool is_tool = role == "tool" || role == "ipython";
    const bool fits = role == "system"      ? begins
                      : role == "user"      ? before != "user"
                      : role == "assistant" ? !begins && before != "assistant"
                                            : is_tool && !begins && before != "user";
    if (!fits) {
      throw UserError(fmt::format("{}: message {} is the {}'s after {}", where, i + 1, role,
                                  before.empty() ? "nothing" : fmt::format("the {}'s", before)),
                      "a conversation is the system's message, or none, and then the user's and the assistant's by "
                      "turns; tools answer the assistant");
    }
    before = role;
  }
}

OrderedJson tools_of(const OrderedJson* value, bool is_share_gpt, const std::string& where) {
  if (value == nullptr) return nullptr;
  OrderedJson tools = list_of(*value, "tools", where);
  for (OrderedJson& tool : tools) {
    if (!tool.is_object()) throw UserError(fmt::format("{}: tools holds what is no object", where));
    // ShareGPT's tools are bare functions.
    if (is_share_gpt && !tool.contains("type")) tool = {{"type", "function"}, {"function", OrderedJson(tool)}};
  }
  return tools.empty() ? OrderedJson(nullptr) : tools;
}

}  // namespace megalith
