#include "kinds/text/sft_encoder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "core/checksum.h"
#include "core/error.h"
#include "core/strings.h"
#include "kinds/text/chat_format.h"
#include "kinds/text/common_text.h"
#include "kinds/text/sft_messages.h"
#include "kinds/text/sft_prompts.h"
#include "kinds/text/sft_row.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

using Ids = std::vector<int32_t>;

constexpr std::string_view kChatMl =
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

size_t common_tokens(const Ids& a, const Ids& b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

// A conversation, and the template's rendering of parts of it.
class Conversation {
 public:
  Conversation(const ChatTemplate& chat, const Tokenizer& tokenizer, const OrderedJson& messages,
               const OrderedJson& tools, const OrderedJson& variables)
      : chat_(chat),
        tokenizer_(tokenizer),
        messages_(messages),
        tools_(tools),
        variables_(variables),
        whole_(render(messages, false)),
        ids_(tokenizer.encode(whole_)) {}

  const Ids& ids() const { return ids_; }

  struct Range {
    size_t begin = 0, end = 0;
    bool has_end = false;    // the last token ends the answer
    bool has_words = false;  // it has an end that is no special token
  };
  // The tokens of answer i and its end; nothing if the template shows no such place.
  std::optional<Range> find(size_t i) const {
    std::optional<Range> found = find_by_beginnings(i);
    if (!found) found = find_in_whole(i);
    // If the template writes nothing after an answer, the beginning of the next turn ends it, as with GLM-4.5.
    const bool has_end = !found || found->has_end || found->has_words;
    if (!has_end && found->end < ids_.size() && tokenizer_.is_special(ids_[found->end])) {
      return Range{.begin = found->begin, .end = found->end + 1, .has_end = true};
    }
    return found;
  }

  // Templates for texts may write nothing for a list of parts. UserError if a part's words are not written.
  void check_parts() const {
    for (const OrderedJson& message : messages_) {
      if (!message.contains("content") || !message["content"].is_array()) continue;
      for (const OrderedJson& part : message["content"]) {
        const auto words = json_as<std::string>(Json(part[json_as<std::string>(Json(part["type"]), "type")]), "part");
        const std::string quoted = dump_json(Json(words));  // what tools answer may be written as JSON
        const bool is_written = whole_.find(trim(words)) != std::string::npos ||
                                whole_.find(quoted.substr(1, quoted.size() - 2)) != std::string::npos;
        if (is_written) continue;
        throw UserError(fmt::format("the template {} writes nothing of a part of the {}'s content", chat_.name(),
                                    json_as<std::string>(Json(message["role"]), "role")),
                        "give the content as a text, or take a template that reads lists of parts");
      }
    }
  }

  // Messages whose words the template passes over: of a tool, say, or a system. Seen in one rendering, in which every
  // message's words end in a mark of its own.
  std::vector<size_t> unwritten() const {
    OrderedJson marked = messages_;
    std::vector<std::pair<size_t, std::string>> marks;
    for (size_t i = 0; i < marked.size(); ++i) {
      if (!marked[i].contains("content") || is_empty_json(marked[i]["content"])) continue;
      OrderedJson* words = &marked[i]["content"];
      if (words->is_array()) words = &words->back()[json_as<std::string>(Json(words->back()["type"]), "type")];
      marks.emplace_back(i, fmt::format("x7q{}y", i));
      *words = json_as<std::string>(Json(*words), "content") + marks.back().second;
    }
    std::vector<size_t> found;
    try {
      const std::string text = render(marked, false);
      for (const auto& [i, mark] : marks) {
        if (text.find(mark) == std::string::npos) found.push_back(i);
      }
    } catch (const UserError&) {  // takes no other words
    }
    return found;
  }

  // Keys of message i without which the template writes the same, though it reads them elsewhere.
  std::vector<std::string> unread_keys(size_t i, const std::vector<std::string>& ignored) const {
    std::vector<std::string> unread;
    for (const auto& [key, value] : messages_[i].items()) {
      const bool is_looked_at = key == "name" || (chat_.mentions(key) && is_silent(key, value, ignored));
      if (key == "role" || key == "content" || !is_looked_at || is_empty_json(value)) continue;
      if (std::ranges::count(ignored, key) > 0) continue;
      OrderedJson without = messages_;
      without[i].erase(key);
      try {
        if (render(without, false) == whole_) unread.push_back(key);
      } catch (const UserError&) {  // the template cannot do without
      }
    }
    return unread;
  }

  // The token that would begin the turn after the last message, if special.
  std::optional<int32_t> token_of_next_turn() const {
    std::optional<int32_t> token = token_after(messages_);
    if (token || !is_plain_text(messages_.size() - 1)) return token;
    // Thoughts may be left out once more follows: after another answer, then.
    OrderedJson other = messages_;
    other[messages_.size() - 1]["content"] = "a";
    return token_after(other);
  }

  // The tools' answers that the template writes between the calls of message i and its text, as Gemma 4's does. The
  // special token before them ends the calls, and is not of them.
  std::optional<Range> tools_within(size_t i, const Range& range) const {
    const auto is_tool = [&](const OrderedJson& message) {
      return message["role"] == "tool" || message["role"] == "ipython";
    };
    const bool has_text = messages_[i].contains("content") && messages_[i]["content"].is_string() &&
                          !is_empty_json(messages_[i]["content"]);
    if (!has_calls(i) || !has_text || i + 1 == messages_.size() || !is_tool(messages_[i + 1])) return std::nullopt;
    OrderedJson unanswered = messages_, a = messages_, b = messages_;
    while (i + 1 < unanswered.size() && is_tool(unanswered[i + 1])) unanswered.erase(i + 1);
    a[i]["content"] = "a";
    b[i]["content"] = "b";
    const std::string_view whole = whole_;
    size_t begin = 0, end = 0;
    try {
      const std::string other = render(a, false);
      begin = common_beginning(render(unanswered, false), whole);
      end = common_beginning(other, render(b, false));
      if (begin >= end || !whole.starts_with(std::string_view(other).substr(0, end))) return std::nullopt;
    } catch (const UserError&) {  // takes no calls without answers
      return std::nullopt;
    }
    Range inner{.begin = settled(whole.substr(0, begin)), .end = std::min(settled(whole.substr(0, end)), range.end)};
    if (inner.begin < range.begin || inner.begin >= inner.end) return std::nullopt;
    if (tokenizer_.is_special(ids_[inner.begin])) ++inner.begin;
    return inner;
  }

  // True if the template leaves out the thoughts that answer i begins with.
  bool drops_thoughts(size_t i) const {
    if (!messages_[i].contains("content") || !messages_[i]["content"].is_string()) return false;
    const auto content = json_as<std::string>(Json(messages_[i]["content"]), "content");
    const size_t end = content.find("</think>");
    if (end == std::string::npos) return false;
    const size_t mark = content.find("<think>"), begin = mark < end ? mark + 7 : 0;
    const std::string thoughts(trim(std::string_view(content).substr(begin, end - begin)));
    return !thoughts.empty() && whole_.find(thoughts) == std::string::npos;
  }

 private:
  std::string render(const OrderedJson& messages, bool add_generation_prompt) const {
    return chat_.render(messages, tools_, add_generation_prompt, &variables_);
  }

  std::optional<int32_t> token_after(const OrderedJson& messages) const {
    OrderedJson longer = messages;
    longer.push_back({{"role", has_calls(messages.size() - 1) ? "tool" : "user"}, {"content", "a"}});
    std::string shorter, text;
    try {
      shorter = render(messages, false);
      text = render(longer, false);
    } catch (const UserError&) {  // takes no more turns
      return std::nullopt;
    }
    if (!text.starts_with(shorter)) return std::nullopt;
    const Ids before = tokenizer_.encode(shorter), ids = tokenizer_.encode(text);
    const bool goes_on = ids.size() > before.size() && common_tokens(ids, before) == before.size();
    if (!goes_on || !tokenizer_.is_special(ids[before.size()])) return std::nullopt;
    return ids[before.size()];
  }

  std::string beginning(size_t count, bool add_generation_prompt) const {
    OrderedJson part = OrderedJson::array();
    for (size_t i = 0; i < count; ++i) part.push_back(messages_[i]);
    return render(part, add_generation_prompt);
  }

  // The first `count` messages with another answer i, a text.
  std::string with_answer(size_t i, size_t count, const char* answer) const {
    OrderedJson part = OrderedJson::array();
    for (size_t k = 0; k < count; ++k) part.push_back(messages_[k]);
    const bool has_parts = part[i].contains("content") && part[i]["content"].is_array();
    part[i]["content"] =
        has_parts ? OrderedJson::array({{{"type", "text"}, {"text", answer}}}) : OrderedJson(std::string(answer));
    part[i].erase("tool_calls");
    return render(part, false);
  }

  // The whole conversation with other arguments of message i's calls.
  std::string with_arguments(size_t i, const char* argument) const {
    OrderedJson other = messages_;
    for (OrderedJson& call : other[i]["tool_calls"]) {
      OrderedJson& function = call.is_object() && call.contains("function") ? call["function"] : call;
      if (function.is_object()) function["arguments"] = {{argument, argument}};
    }
    return render(other, false);
  }

  bool is_plain_text(size_t i) const {
    return messages_[i].contains("content") && messages_[i]["content"].is_string() && !has_calls(i);
  }

  bool has_calls(size_t i) const { return messages_[i].contains("tool_calls") && !messages_[i]["tool_calls"].empty(); }

  // Number of tokens of the whole conversation determined by this prefix of its text.
  size_t settled(std::string_view text) const { return common_tokens(tokenizer_.encode(text), ids_); }

  std::optional<size_t> first_special(size_t begin, size_t end) const {
    for (size_t k = begin; k < end; ++k) {
      if (tokenizer_.is_special(ids_[k])) return k;
    }
    return std::nullopt;
  }

  std::optional<Range> find_by_beginnings(size_t i) const {
    const std::string before = beginning(i, false), upto = beginning(i + 1, false), prompt = beginning(i, true);
    if (!whole_.starts_with(upto) || !upto.starts_with(before)) return std::nullopt;
    const std::string a = with_answer(i, i + 1, "a"), b = with_answer(i, i + 1, "b");
    size_t prompt_size = common_beginning(prompt, upto);
    // A prompt may contain more than the conversation: "<think>", which the answer may or may not begin with. If not,
    // even an answer that starts the same way, with "<", begins where others do.
    if (prompt_size < prompt.size()) {
      prompt_size = std::min({prompt_size, common_beginning(prompt, a), common_beginning(prompt, b)});
    }
    prompt_size = std::max(prompt_size, before.size());
    Range range{.begin = settled(std::string_view(whole_).substr(0, prompt_size)), .end = settled(upto)};
    range.begin = std::min(range.begin, range.end);
    size_t answer_end = range.begin;
    if (is_plain_text(i)) {
      const size_t tail = common_end(a, b);
      if (upto.ends_with(std::string_view(a).substr(a.size() - tail)) && upto.size() - tail >= prompt_size) {
        answer_end = std::max(range.begin, settled(std::string_view(whole_).substr(0, upto.size() - tail)));
        if (const auto special = first_special(answer_end, range.end)) {
          // Command A's turn ends twice: <|END_RESPONSE|><|END_OF_TURN_TOKEN|>.
          size_t end = *special + 1;
          while (end < range.end && tokenizer_.is_special(ids_[end])) ++end;
          return Range{.begin = range.begin, .end = end, .has_end = true};
        }
        range.has_words = !trim(std::string_view(a).substr(a.size() - tail)).empty();
        return range;
      }
    }
    // A tool call: up to the last special token of the turn.
    for (size_t k = range.end; k > answer_end; --k) {
      if (tokenizer_.is_special(ids_[k - 1])) return Range{.begin = range.begin, .end = k, .has_end = true};
    }
    return range;
  }

  std::optional<Range> find_in_whole(size_t i) const {
    std::string a, b, cue;
    bool has_other_calls = false;
    try {
      try {
        a = with_answer(i, messages_.size(), "a");
        b = with_answer(i, messages_.size(), "b");
      } catch (const UserError&) {  // such as a tool's answer without a call
        if (!has_calls(i)) return std::nullopt;
        has_other_calls = true;
        a = with_arguments(i, "a");
        b = with_arguments(i, "b");
      }
      cue = cue_of(i);
    } catch (const UserError&) {
      return std::nullopt;
    }
    size_t head = common_beginning(a, b), tail = common_end(a, b);
    const std::string_view whole = whole_;
    if (has_other_calls) tail = common_end(std::string_view(a).substr(a.size() - tail), whole);
    const size_t same = common_beginning(std::string_view(a).substr(0, head), whole);
    // An answer of only thoughts lacks the blank before its text.
    if (!is_plain_text(i) || trim(std::string_view(a).substr(same, head - same)).empty()) head = same;
    const bool fits = head + tail <= whole.size() && whole.starts_with(std::string_view(a).substr(0, head)) &&
                      whole.ends_with(std::string_view(a).substr(a.size() - tail));
    if (!fits) return std::nullopt;
    // Text between the cue and the answer, such as a channel, is also generated by the model; so is a second message
    // after another cue, as gpt-oss's words after its thoughts: the first cue after the message before counts.
    if (!cue.empty() && cue.size() <= head) {
      size_t at = whole.rfind(cue, head - cue.size());
      if (const auto before = end_of_words(i - 1)) at = std::min(at, whole.find(cue, *before));
      if (at != std::string_view::npos) head = at + cue.size();
    } else if (cue.empty()) {
      try {
        head = after_cue(i, head);
      } catch (const UserError&) {  // takes no other words before the answer
      }
    }
    Range range{.begin = settled(whole.substr(0, head))};
    range.end = std::max(range.begin, settled(whole.substr(0, whole.size() - tail)));
    // The token that ends the answer comes directly after it, or after a blank.
    const size_t near = has_other_calls ? ids_.size() : std::min(range.end + 2, ids_.size());
    if (const auto special = first_special(range.end, near)) {
      return Range{.begin = range.begin, .end = *special + 1, .has_end = true};
    }
    return range;
  }

  // The generation prompt of answer i, as far as it recurs in the conversation.
  std::string cue_of(size_t i) const {
    const std::string before = beginning(i, false), prompt = beginning(i, true), upto = beginning(i + 1, false);
    const size_t begin = common_beginning(before, prompt), end = common_beginning(prompt, upto);
    return end > begin ? prompt.substr(begin, end - begin) : "";
  }

  // Where the words of message i end; nothing if the template writes others elsewhere.
  std::optional<size_t> end_of_words(size_t i) const {
    OrderedJson a = messages_, b = messages_;
    a[i]["content"] = "a";
    b[i]["content"] = "b";
    try {
      const std::string with_a = render(a, false), with_b = render(b, false);
      const std::string_view tail = std::string_view(with_a).substr(with_a.size() - common_end(with_a, with_b));
      if (with_a != with_b && whole_.ends_with(tail)) return whole_.size() - tail.size();
    } catch (const UserError&) {  // takes no other words
    }
    return std::nullopt;
  }

  // The same where the template leaves out earlier words once an answer follows, as gpt-oss's does with words before a
  // call: the end of the prompt, as far as it recurs between message i - 1 and `head`, else `head`.
  size_t after_cue(size_t i, size_t head) const {
    const std::string before = beginning(i, false), prompt = beginning(i, true);
    const std::optional<size_t> begin = end_of_words(i - 1);
    if (!prompt.starts_with(before) || !begin || *begin >= head) return head;
    const std::string_view cue = std::string_view(prompt).substr(before.size());
    const std::string_view window = std::string_view(whole_).substr(*begin, head - *begin);
    for (size_t size = std::min(cue.size(), window.size()); size > 0; --size) {
      const size_t at = size == cue.size() ? window.find(cue) : window.rfind(cue.substr(0, size));
      if (at == std::string_view::npos) continue;
      const Ids ids = tokenizer_.encode(cue.substr(0, size));
      return tokenizer_.is_special(ids.at(0)) ? *begin + at + size : head;
    }
    return head;
  }

  const ChatTemplate& chat_;
  const Tokenizer& tokenizer_;
  const OrderedJson& messages_;
  const OrderedJson &tools_, &variables_;
  std::string whole_;
  Ids ids_;
};

}  // namespace

int64_t SftSample::num_counted() const {
  const auto counted = [&](size_t begin, size_t end) {
    if (begin >= end) return int64_t{0};
    return std::accumulate(weights.begin() + static_cast<std::ptrdiff_t>(begin) + 1,
                           weights.begin() + static_cast<std::ptrdiff_t>(end), int64_t{0});
  };
  if (form != SftForm::kPairs) return counted(0, weights.size());
  const int64_t chosen = counted(0, rejected_begin), rejected = counted(rejected_begin, weights.size());
  return chosen > 0 && rejected > 0 ? chosen + rejected : 0;
}

SftEncoder::SftEncoder(const Tokenizer& tokenizer, const fs::path& tokenizer_model, const SftOptions& options)
    : tokenizer_(tokenizer), tokenizer_model_(tokenizer_model), options_(options) {
  for (const std::string& rename : options.sft_rename_keys) {
    const size_t equals = rename.find('='), begin = rename.starts_with("message.") ? std::strlen("message.") : 0;
    if (equals == std::string::npos || equals <= begin || equals + 1 == rename.size()) {
      throw UserError(fmt::format("sft_rename_keys has '{}'", rename), "write KEY=NAME, or message.KEY=NAME");
    }
  }
  if (options.sft_conversation_format == ConversationFormat::kMessages) {
    chat_.emplace(std::string(kChatMl), "ChatML", JinjaMembers());
  } else if (has_chat_template(tokenizer_model)) {
    chat_.emplace(load_chat_template(tokenizer_model));
  }
  if (options.sft_conversation_format == ConversationFormat::kChatTemplate) chat_template();
  if (options.mask_history && options.train_on_input) {
    throw UserError("mask_history and train_on_input are given: the one learns the last answers only, the other all",
                    "leave one of them out");
  }
  OrderedJson variables = parse_ordered_json(options.chat_template_kwargs.value_or("{}"), "chat_template_kwargs");
  if (!variables.is_object()) throw UserError("chat_template_kwargs is no JSON object");
  if (options.enable_thinking) variables["enable_thinking"] = *options.enable_thinking;
  if (!variables.empty()) check_read(OrderedJson::array(), nullptr, variables);
  variables_ = dump_json(variables);
}

const ChatTemplate& SftEncoder::chat_template() const {
  if (!chat_) load_chat_template(tokenizer_model_);  // throws with what is missing
  return *chat_;
}

std::string SftEncoder::identity() const {
  // Identifies a tokenizer by its ids of a text in which most differ.
  constexpr std::string_view kProbe =
      "The quick brown fox: 1234567 + 3.14 =\n\n\tdon't DON'T  caf\u00e9 \u65e5\u672c\u8a9e \U0001F999 "
      "def f(x):\r\n    return x**2  # ok";
  const Ids ids = tokenizer_.encode(kProbe, /*add_special=*/true);
  // Increment if the same rows give other tokens or weights.
  constexpr int kVersion = 6;
  std::string text = fmt::format(
      "{} {} {} {}\n{}\n{}\n{}\n{}\n{} {} {} {}", kVersion, tokenizer_.vocab_size(), tokenizer_.eod().value_or(-1),
      fmt::join(ids, " "), chat_ ? chat_->identity() : "", static_cast<int>(options_.sft_conversation_format),
      options_.train_on_input, options_.sft_column.value_or(""), options_.mask_history,
      join(options_.sft_ignore_keys, ","), options_.skip_bad_rows.value_or(0), variables_);
  if (!options_.sft_rename_keys.empty() || options_.sft_drop_system || options_.sft_deduplicate) {
    text += fmt::format("\n{} {} {}", join(options_.sft_rename_keys, ","), options_.sft_drop_system,
                        options_.sft_deduplicate);
  }
  return fmt::format("{:016x}", checksum64(text));
}

void SftEncoder::check_read(const OrderedJson& messages, const OrderedJson& tools, const OrderedJson& variables) const {
  const ChatTemplate& chat = chat_template();
  const auto refuse = [&](const std::string& what, const std::string& remedy) {
    throw UserError(fmt::format("the template {} reads no {}", chat.name(), what), remedy);
  };
  for (const OrderedJson& message : messages) {
    for (const auto& [key, value] : message.items()) {
      // The template may infer the speaker from the order of messages.
      if (key == "role" || chat.mentions(key) || !is_silent(key, value, options_.sft_ignore_keys)) continue;
      refuse(fmt::format("{} of the {}'s message", key, json_as<std::string>(Json(message["role"]), "role")),
             fmt::format("--sft_ignore_keys {} passes over it; or take a template that writes it", key));
    }
  }
  if (!tools.is_null() && !chat.mentions("tools")) refuse("tools", "--sft_ignore_keys tools passes over them");
  for (const auto& [name, value] : variables.items()) {
    if (!chat.mentions(name)) refuse("variable " + name, "leave it out, or look at the names in the template");
  }
}

SftSample SftEncoder::encode_chat(const SftMessages& messages, const OrderedJson& tools, const OrderedJson& variables,
                                  const std::string& where) const {
  try {
    OrderedJson all = parse_ordered_json(variables_, "chat_template_kwargs");
    if (!variables.is_null()) all.update(variables);
    const OrderedJson thoughtful = with_readable_thoughts(chat_template(), messages.list);
    check_read(thoughtful, tools, all);
    const OrderedJson list = with_readable_calls(chat_template(), thoughtful, tools, &all);
    const Conversation conversation(chat_template(), tokenizer_, list, tools, all);
    conversation.check_parts();
    SftSample sample;
    sample.tokens = conversation.ids();
    for (const size_t i : conversation.unwritten()) {
      const auto role = json_as<std::string>(Json(list[i]["role"]), "role");
      if (!list[i].contains("tool_calls")) {
        throw UserError(fmt::format("the template {} writes nothing of the {}'s words in message {}",
                                    chat_template().name(), role, i + 1),
                        role == "system" ? "--sft_drop_system leaves the system's messages out of all rows"
                                         : "take a template that writes them, or leave the row out");
      }
      ++sample.num_unread["words beside calls of tools"];
    }
    sample.weights.assign(sample.tokens.size(), options_.train_on_input ? 1 : 0);
    std::vector<bool> counts = messages.counts;
    const auto last = std::find(counts.rbegin(), counts.rend(), true);
    if (options_.mask_history && last != counts.rend()) std::fill(last + 1, counts.rend(), false);
    for (size_t i = 0; i < counts.size() && !options_.train_on_input; ++i) {
      if (!counts[i]) continue;
      const auto range = conversation.find(i);
      if (!range) {
        throw UserError(fmt::format("the template {} writes message {} so that its place cannot be found",
                                    chat_template().name(), i + 1),
                        "it writes earlier messages differently once more follow: end the conversation there");
      }
      const auto weigh = [&](const Conversation::Range& tokens, uint8_t weight) {
        std::fill(sample.weights.begin() + static_cast<std::ptrdiff_t>(tokens.begin),
                  sample.weights.begin() + static_cast<std::ptrdiff_t>(tokens.end), weight);
      };
      weigh(*range, 1);
      if (const auto tools = conversation.tools_within(i, *range)) weigh(*tools, 0);
      sample.num_without_thoughts += conversation.drops_thoughts(i) ? 1 : 0;
      if (range->has_end || range->has_words) continue;
      const auto next = i + 1 == counts.size() ? conversation.token_of_next_turn() : std::nullopt;
      if (next) {
        sample.tokens.push_back(*next);
        sample.weights.push_back(1);
      } else {
        ++sample.num_without_end;
      }
    }
    for (size_t i = 0; i < list.size(); ++i) {
      for (const std::string& key : conversation.unread_keys(i, options_.sft_ignore_keys)) {
        const auto role = json_as<std::string>(Json(list[i]["role"]), "role");
        ++sample.num_unread[fmt::format("{} of the {}'s message", key, role)];
      }
    }
    return sample;
  } catch (const UserError& error) {
    throw UserError(fmt::format("{}: {}", where, error.message()), error.remedy());
  }
}

SftSample SftEncoder::encode_tokens(const SftTokens& tokens, const std::string& where) const {
  if (options_.train_on_input) {
    throw UserError(where + ": train_on_input, and the row says itself what of its tokens is learned",
                    "leave train_on_input out, or the row's labels and masks with --sft_ignore_keys");
  }
  const auto is_outside = [&](int64_t id) { return id < 0 || id >= tokenizer_.vocab_size(); };
  if (const auto wrong = std::ranges::find_if(tokens.ids, is_outside); wrong != tokens.ids.end()) {
    throw UserError(fmt::format("{}: input_ids holds {}, and the vocabulary has {} ids", where, *wrong,
                                tokenizer_.vocab_size()),
                    "the tokens are of another tokenizer");
  }
  SftSample sample;
  sample.form = SftForm::kTokens;
  for (const int64_t id : tokens.ids) sample.tokens.push_back(static_cast<int32_t>(id));
  sample.weights = tokens.counts;
  return sample;
}

SftSample SftEncoder::encode_answer(const std::string& prompt, const std::string& answer) const {
  SftSample sample;
  sample.tokens = tokenizer_.encode(prompt + answer, /*add_special=*/true);
  const int32_t eod = require_eod(tokenizer_);
  if (sample.tokens.empty() || sample.tokens.back() != eod) sample.tokens.push_back(eod);
  sample.weights.assign(sample.tokens.size(), 1);
  if (options_.train_on_input || prompt.empty()) return sample;
  const size_t begin = common_tokens(tokenizer_.encode(prompt, /*add_special=*/true), sample.tokens);
  std::fill(sample.weights.begin(), sample.weights.begin() + static_cast<std::ptrdiff_t>(begin), uint8_t{0});
  return sample;
}

SftSample SftEncoder::encode_texts(const SftTexts& texts, const std::string& where) const {
  const ConversationFormat format = options_.sft_conversation_format;
  if (format == ConversationFormat::kChatTemplate || format == ConversationFormat::kMessages) {
    return encode_chat(messages_of_texts(texts), nullptr, nullptr, where);
  }
  const SftPrompt made = prompt_of(texts, format, where);
  return encode_answer(made.prompt, made.answer);
}

SftSample SftEncoder::encode(const SftLine& line) const {
  const std::string where = line.where();
  const SftRow row = read_sft_row(parse_ordered_json(line.json, where), options_, where);
  const ConversationFormat format = options_.sft_conversation_format;
  if (!row.chats.empty() && is_for_instructions(format)) {
    throw UserError(
        fmt::format("{}: sft_conversation_format {} is for instructions, and the row is a conversation", where,
                    format == ConversationFormat::kSquad ? "squad" : "alpaca"),
        "take chat_template or messages, or leave sft_conversation_format out");
  }
  if ((row.form == SftForm::kPairs || row.form == SftForm::kRated) && options_.train_on_input) {
    throw UserError(fmt::format("{}: train_on_input with {}", where, sft_form_name(row.form)),
                    "nothing is learned of questions then: leave train_on_input out");
  }
  if (row.form == SftForm::kTokens) return encode_tokens(row.tokens, where);
  std::vector<SftSample> samples;
  for (const SftTexts& texts : row.texts) {
    samples.push_back(row.form == SftForm::kText ? encode_answer("", texts.answer) : encode_texts(texts, where));
  }
  for (const SftMessages& chat : row.chats) samples.push_back(encode_chat(chat, row.tools, row.variables, where));
  SftSample sample = std::move(samples[0]);
  sample.form = row.form;
  sample.is_bad = row.is_bad;
  if (samples.size() == 2) {
    const SftSample& rejected = samples[1];
    sample.rejected_begin = sample.tokens.size();
    sample.num_without_thoughts += rejected.num_without_thoughts;
    sample.num_without_end += rejected.num_without_end;
    for (const auto& [what, count] : rejected.num_unread) sample.num_unread[what] += count;
    sample.tokens.insert(sample.tokens.end(), rejected.tokens.begin(), rejected.tokens.end());
    sample.weights.insert(sample.weights.end(), rejected.weights.begin(), rejected.weights.end());
  }
  return sample;
}

}  // namespace megalith
