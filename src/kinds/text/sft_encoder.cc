// See sft_encoder.h.
#include "kinds/text/sft_encoder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "core/checksum.h"
#include "core/error.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

using Ids = std::vector<int32_t>;

// Stanford Alpaca's words (github.com/tatsu-lab/stanford_alpaca), which data sets in its form are trained with.
constexpr std::string_view kAlpacaWithInput =
    "Below is an instruction that describes a task, paired with an input that provides further context. Write a "
    "response "
    "that appropriately completes the request.\n\n### Instruction:\n{}\n\n### Input:\n{}\n\n### Response:\n";
constexpr std::string_view kAlpacaWithoutInput =
    "Below is an instruction that describes a task. Write a response that appropriately completes the "
    "request.\n\n### Instruction:\n{}\n\n### Response:\n";

size_t common_tokens(const Ids& a, const Ids& b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

// Bytes that two texts begin or end with, whole characters only.
size_t common_beginning(std::string_view a, std::string_view b) {
  auto size = static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
  const auto is_inside = [](std::string_view text, size_t i) {
    return i < text.size() && (static_cast<uint8_t>(text[i]) & 0xC0) == 0x80;
  };
  while (size > 0 && (is_inside(a, size) || is_inside(b, size))) --size;
  return size;
}

size_t common_end(std::string_view a, std::string_view b) {
  auto size = static_cast<size_t>(std::mismatch(a.rbegin(), a.rend(), b.rbegin(), b.rend()).first - a.rbegin());
  while (size > 0 && (static_cast<uint8_t>(a[a.size() - size]) & 0xC0) == 0x80) --size;
  return size;
}

// One conversation, and what its template makes of parts of it.
class Conversation {
 public:
  Conversation(const ChatTemplate& chat, const Tokenizer& tokenizer, const OrderedJson& messages,
               const OrderedJson& tools)
      : chat_(chat),
        tokenizer_(tokenizer),
        messages_(messages),
        tools_(tools),
        whole_(chat.render(messages, tools, false)),
        ids_(tokenizer.encode(whole_)) {}

  const Ids& ids() const { return ids_; }

  struct Range {
    size_t begin = 0, end = 0;
  };
  // The tokens of answer i and of its end; nothing where the template shows no such place.
  std::optional<Range> find(size_t i) const {
    const std::optional<Range> found = find_by_beginnings(i);
    return found ? found : find_in_whole(i);
  }

 private:
  std::string beginning(size_t count, bool add_generation_prompt) const {
    OrderedJson part = OrderedJson::array();
    for (size_t i = 0; i < count; ++i) part.push_back(messages_[i]);
    return chat_.render(part, tools_, add_generation_prompt);
  }

  // The first `count` messages with another answer i, which is text.
  std::string with_answer(size_t i, size_t count, const char* answer) const {
    OrderedJson part = OrderedJson::array();
    for (size_t k = 0; k < count; ++k) part.push_back(messages_[k]);
    part[i]["content"] = answer;
    part[i].erase("tool_calls");
    return chat_.render(part, tools_, false);
  }

  bool is_plain_text(size_t i) const {
    const OrderedJson& message = messages_[i];
    const bool has_calls = message.contains("tool_calls") && !message["tool_calls"].empty();
    return message.contains("content") && message["content"].is_string() && !has_calls;
  }

  // Tokens of the whole conversation that the text, with which it begins, settles.
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
    // A prompt may say more than the conversation: "<think>", which the answer itself then begins with, or not. If not,
    // an answer that begins alike, with "<", begins where others do.
    if (prompt_size < prompt.size()) {
      prompt_size = std::min({prompt_size, common_beginning(prompt, a), common_beginning(prompt, b)});
    }
    prompt_size = std::max(prompt_size, before.size());
    Range range{settled(std::string_view(whole_).substr(0, prompt_size)), settled(upto)};
    range.begin = std::min(range.begin, range.end);
    size_t answer_end = range.begin;
    if (is_plain_text(i)) {
      const size_t tail = common_end(a, b);
      if (upto.ends_with(std::string_view(a).substr(a.size() - tail)) && upto.size() - tail >= prompt_size) {
        answer_end = std::max(range.begin, settled(std::string_view(whole_).substr(0, upto.size() - tail)));
        if (const auto special = first_special(answer_end, range.end)) range.end = *special + 1;
        return range;
      }
    }
    // A call of tools: up to the last special token of the turn.
    for (size_t k = range.end; k > answer_end; --k) {
      if (tokenizer_.is_special(ids_[k - 1])) return Range{range.begin, k};
    }
    return range;
  }

  std::optional<Range> find_in_whole(size_t i) const {
    if (!is_plain_text(i)) return std::nullopt;
    const std::string a = with_answer(i, messages_.size(), "a"), b = with_answer(i, messages_.size(), "b");
    const size_t head = common_beginning(a, b), tail = common_end(a, b);
    const std::string_view whole = whole_;
    const bool fits = head + tail <= whole.size() && whole.starts_with(std::string_view(a).substr(0, head)) &&
                      whole.ends_with(std::string_view(a).substr(a.size() - tail));
    if (!fits) return std::nullopt;
    Range range{settled(whole.substr(0, head)), 0};
    range.end = std::max(range.begin, settled(whole.substr(0, whole.size() - tail)));
    // What ends the answer stands directly behind it, perhaps behind a blank.
    const size_t near = std::min(range.end + 2, ids_.size());
    if (const auto special = first_special(range.end, near)) range.end = *special + 1;
    return range;
  }

  const ChatTemplate& chat_;
  const Tokenizer& tokenizer_;
  const OrderedJson& messages_;
  const OrderedJson& tools_;
  std::string whole_;
  Ids ids_;
};

std::string text_of(const OrderedJson& row, const std::string& key, const std::string& where) {
  if (!row.contains(key) || row[key].is_null()) return "";
  return json_as<std::string>(Json(row[key]), fmt::format("{}: {}", where, key));
}

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
  if (has_chat_template(tokenizer_model)) chat_.emplace(load_chat_template(tokenizer_model));
  if (options.sft_conversation_format == ConversationFormat::kChatTemplate) chat_template();
}

const ChatTemplate& SftEncoder::chat_template() const {
  if (!chat_) load_chat_template(tokenizer_model_);  // says what is missing
  return *chat_;
}

std::string SftEncoder::identity() const {
  // A tokenizer is told by what it makes of a text in which most of them differ.
  constexpr std::string_view kProbe =
      "The quick brown fox: 1234567 + 3.14 =\n\n\tdon't DON'T  caf\u00e9 \u65e5\u672c\u8a9e \U0001F999 "
      "def f(x):\r\n    return x**2  # ok";
  const Ids ids = tokenizer_.encode(kProbe, /*add_special=*/true);
  // Counts up when the same rows become other tokens or weights.
  constexpr int kVersion = 2;
  const std::string text = fmt::format(
      "{} {} {} {}\n{}\n{}\n{}\n{}", kVersion, tokenizer_.vocab_size(), tokenizer_.eod().value_or(-1), fmt::join(ids, " "),
      chat_ ? chat_->identity() : "", static_cast<int>(options_.sft_conversation_format), options_.train_on_input,
      options_.sft_column.value_or(""));
  return fmt::format("{:016x}", checksum64(text));
}

SftSample SftEncoder::encode_chat(const OrderedJson& messages, const OrderedJson& tools, const std::string& where,
                                  size_t first_counted) const {
  try {
    const Conversation conversation(chat_template(), tokenizer_, messages, tools);
    SftSample sample;
    sample.tokens = conversation.ids();
    sample.weights.assign(sample.tokens.size(), options_.train_on_input ? 1 : 0);
    for (size_t i = first_counted; i < messages.size() && !options_.train_on_input; ++i) {
      if (messages[i]["role"] != "assistant") continue;
      const auto range = conversation.find(i);
      if (!range) {
        throw UserError(fmt::format("the template {} writes message {} so that its place cannot be found",
                                    chat_template().name(), i + 1),
                        "it writes earlier messages differently once more follow: end the conversation there");
      }
      std::fill(sample.weights.begin() + static_cast<std::ptrdiff_t>(range->begin),
                sample.weights.begin() + static_cast<std::ptrdiff_t>(range->end), uint8_t{1});
    }
    return sample;
  } catch (const UserError& error) {
    throw UserError(fmt::format("{}: {}", where, error.message()), error.remedy());
  }
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

SftSample SftEncoder::encode_texts(SftForm form, const std::string& question, const std::string& input,
                                   const std::string& answer, const std::string& where) const {
  const ConversationFormat format = options_.sft_conversation_format;
  if (format == ConversationFormat::kChatTemplate) {
    const OrderedJson messages = {{{"role", "user"}, {"content", question + (input.empty() ? "" : "\n\n" + input)}},
                                  {{"role", "assistant"}, {"content", answer}}};
    return encode_chat(messages, nullptr, where);
  }
  if (form != SftForm::kAlpaca && format != ConversationFormat::kAlpaca) return encode_answer(question, answer);
  return encode_answer(input.empty() ? fmt::format(fmt::runtime(kAlpacaWithoutInput), question)
                                     : fmt::format(fmt::runtime(kAlpacaWithInput), question, input),
                       answer);
}

SftSample SftEncoder::encode_pair(const OrderedJson& row, const std::string& where) const {
  if (options_.train_on_input) {
    throw UserError(fmt::format("{}: train_on_input with pairs of answers", where),
                    "the question is the same in both, so nothing is learned of it: leave train_on_input out");
  }
  SftSample chosen, rejected;
  if (is_chat_pair(row)) {
    const OrderedJson pair = sft_pair_of(row, where);
    const auto num_common = json_as<size_t>(Json(pair["num_common"]), where);
    const OrderedJson tools = row.contains("tools") ? row["tools"] : OrderedJson(nullptr);
    chosen = encode_chat(pair["chosen"], tools, where, num_common);
    rejected = encode_chat(pair["rejected"], tools, where, num_common);
  } else {
    const std::string prompt = text_of(row, "prompt", where);
    if (prompt.empty()) {
      throw UserError(fmt::format("{}: the row has chosen and rejected as texts, and no prompt", where),
                      "give the question as prompt, or the answers as lists of messages");
    }
    chosen = encode_texts(SftForm::kPairs, prompt, "", text_of(row, "chosen", where), where);
    rejected = encode_texts(SftForm::kPairs, prompt, "", text_of(row, "rejected", where), where);
  }
  chosen.rejected_begin = chosen.tokens.size();
  chosen.tokens.insert(chosen.tokens.end(), rejected.tokens.begin(), rejected.tokens.end());
  chosen.weights.insert(chosen.weights.end(), rejected.weights.begin(), rejected.weights.end());
  return chosen;
}

SftSample SftEncoder::encode(const SftLine& line) const {
  const std::string where = line.where();
  const OrderedJson row = parse_ordered_json(line.json, where);
  const SftForm form = sft_form_of(row, options_.sft_column, where);
  const ConversationFormat format = options_.sft_conversation_format;
  SftSample sample;
  if (form == SftForm::kText) {
    sample = encode_answer("", text_of(row, options_.sft_column.value_or("text"), where));
  } else if (form == SftForm::kChat) {
    if (format == ConversationFormat::kAlpaca) {
      throw UserError(
          fmt::format("{}: sft_conversation_format alpaca is for instructions, and the row is a conversation", where),
          "take chat_template, or leave sft_conversation_format out");
    }
    const OrderedJson tools = row.contains("tools") ? row["tools"] : OrderedJson(nullptr);
    sample = encode_chat(sft_messages_of(row, where), tools, where);
  } else if (form == SftForm::kPairs) {
    sample = encode_pair(row, where);
  } else {
    const bool is_alpaca = form == SftForm::kAlpaca;
    sample = encode_texts(form, text_of(row, is_alpaca ? *sft_key_of(row, sft_question_keys()) : "prompt", where),
                          is_alpaca ? text_of(row, "input", where) : "",
                          text_of(row, is_alpaca ? *sft_key_of(row, sft_answer_keys()) : "completion", where), where);
  }
  sample.form = form;
  return sample;
}

}  // namespace megalith
