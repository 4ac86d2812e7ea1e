#include "serve/text_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"

namespace megalith {
namespace {

std::string token_text(const ServedModel& model, int64_t id) {
  const int32_t one = narrow<int32_t>(id);
  return model.tokenizer->decode({&one, 1});
}

int64_t num_characters(std::string_view text) {
  return std::ranges::count_if(text, [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; });
}

std::string event(const OrderedJson& json) { return "data: " + dump_json(json) + "\n\n"; }

OrderedJson or_null(const char* text) { return text == nullptr ? OrderedJson() : OrderedJson(text); }

}  // namespace

TextJob::TextJob(TextRequest request, const ServedModel& model, std::shared_ptr<HttpReply> reply,
                 ServerMetrics& metrics, int64_t number)
    : request_(std::move(request)),
      model_(model),
      reply_(std::move(reply)),
      metrics_(metrics),
      id_(fmt::format("{}-{}", request_.interface == TextInterface::kChat ? "chatcmpl" : "cmpl", number)),
      created_(std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
                   .count()) {
  sequences = std::move(request_.sequences);
  for (const GenerationRequest& sequence : sequences) {
    choices_.push_back({.decoder = AnswerText(*model.tokenizer, request_.stop, text_before(model.config, sequence)),
                        .chat = ChatAnswer(request_.is_thinking, request_.has_tools)});
  }
}

void TextJob::on_prompt(size_t sequence, std::vector<GeneratedToken> likelihoods) {
  Choice& choice = choices_[sequence];
  choice.prompt = std::move(likelihoods);
  if (sequences[sequence].max_new_tokens == 0) choice.finish_reason = "length";
  const bool is_begun = request_.echo || request_.interface == TextInterface::kChat;
  if (is_begun || choice.finish_reason != nullptr) {
    deliver(sequence, request_.echo ? request_.prompt_texts[static_cast<size_t>(request_.prompt_of(sequence))] : "");
  }
}

bool TextJob::on_token(size_t sequence, const GeneratedToken& token) {
  if (!std::exchange(has_first_, true)) {
    metrics_.observe_first_token(std::chrono::duration<double>(std::chrono::steady_clock::now() - arrival_).count());
  }
  Choice& choice = choices_[sequence];
  choice.tokens.push_back(token);
  std::string piece = token.is_stop ? "" : choice.decoder.push(token.id);
  if (token.is_last) piece += choice.decoder.finish();
  const bool is_stopped = choice.decoder.is_stopped();
  if (is_stopped && request_.keeps_stop) piece += request_.stop.front();
  if (token.is_last || is_stopped) choice.finish_reason = token.is_stop || is_stopped ? "stop" : "length";
  deliver(sequence, std::move(piece));
  return choice.finish_reason == nullptr;
}

// A piece of text that may be empty; the choice's last if it has a finish_reason.
void TextJob::deliver(size_t index, std::string piece) {
  Choice& choice = choices_[index];
  const bool is_end = choice.finish_reason != nullptr;
  OrderedJson delta = OrderedJson::object();
  if (request_.interface == TextInterface::kChat) {
    if (choice.tokens.empty()) delta = {{"role", "assistant"}, {"content", ""}};
    ParsedAnswer part = choice.chat.push(piece);
    if (is_end) {
      ParsedAnswer rest = choice.chat.finish();
      part.reasoning += rest.reasoning;
      part.content += rest.content;
      part.tool_calls = std::move(rest.tool_calls);
    }
    if (!part.reasoning.empty()) delta["reasoning_content"] = part.reasoning;
    if (!part.content.empty()) delta["content"] = part.content;
    if (!part.tool_calls.empty()) {
      delta["tool_calls"] = tool_calls(index, part.tool_calls, true);
      choice.finish_reason = "tool_calls";
    }
    choice.parsed.reasoning += part.reasoning;
    choice.parsed.content += part.content;
    choice.parsed.tool_calls = std::move(part.tool_calls);
  } else {
    choice.text += piece;
  }
  const bool is_silent = piece.empty() && delta.empty() && !request_.has_logprobs && !is_end;
  if (!request_.stream || is_silent) return;
  OrderedJson one = {{"index", index}};
  if (request_.interface == TextInterface::kChat) {
    one["delta"] = std::move(delta);
    one["logprobs"] = chat_logprobs(choice);
  } else {
    one["text"] = piece;
    one["logprobs"] = completion_logprobs(choice);
  }
  one["finish_reason"] = or_null(choice.finish_reason);
  send_chunk(OrderedJson::array({one}));
}

OrderedJson TextJob::envelope(bool is_chunk) const {
  const bool is_chat = request_.interface == TextInterface::kChat;
  const char* object = !is_chat ? "text_completion" : is_chunk ? "chat.completion.chunk" : "chat.completion";
  return {{"id", id_}, {"object", object}, {"created", created_}, {"model", model_.name}};
}

void TextJob::send_chunk(OrderedJson choices, bool has_usage) {
  OrderedJson chunk = envelope(true);
  chunk["choices"] = std::move(choices);
  if (request_.include_usage) chunk["usage"] = has_usage ? usage() : OrderedJson();
  has_begun_ = true;
  reply_->send_part(event(chunk));
}

OrderedJson TextJob::usage() const {
  int64_t prompt = 0, completion = 0;
  for (size_t i = 0; i < choices_.size(); ++i) {
    if (static_cast<int64_t>(i) % request_.n == 0) prompt += std::ssize(sequences[i].prompt_ids);
    completion += std::ssize(choices_[i].tokens);
  }
  return {{"prompt_tokens", prompt}, {"completion_tokens", completion}, {"total_tokens", prompt + completion}};
}

// For the tokens since the last call; with echo, the first call has the prompt's.
OrderedJson TextJob::completion_logprobs(Choice& choice) {
  if (!request_.has_logprobs) return nullptr;
  OrderedJson tokens = OrderedJson::array(), logprobs = tokens, tops = tokens, offsets = tokens;
  const auto add = [&](int64_t id, const GeneratedToken* token) {
    const std::string text = token_text(model_, id);
    tokens.push_back(text);
    offsets.push_back(choice.text_offset);
    choice.text_offset += num_characters(text);
    if (token == nullptr) {  // the first of a prompt has no likelihood
      logprobs.push_back(nullptr);
      tops.push_back(nullptr);
      return;
    }
    logprobs.push_back(*token->logprob);
    // The token is there even if others are likelier. Texts may coincide: the likelier one stays.
    OrderedJson top = OrderedJson::object();
    for (const TokenLikelihood& other : token->likeliest) {
      const std::string other_text = token_text(model_, other.id);
      if (!top.contains(other_text)) top[other_text] = other.logprob;
    }
    if (!top.contains(text)) top[text] = *token->logprob;
    tops.push_back(std::move(top));
  };
  if (request_.echo && choice.text_offset == 0 && choice.num_sent == 0) {
    const size_t index = static_cast<size_t>(&choice - choices_.data());
    add(sequences[index].prompt_ids.front(), nullptr);
    for (const GeneratedToken& token : choice.prompt) add(token.id, &token);
  }
  for (; choice.num_sent < choice.tokens.size(); ++choice.num_sent) {
    add(choice.tokens[choice.num_sent].id, &choice.tokens[choice.num_sent]);
  }
  return {{"tokens", tokens}, {"token_logprobs", logprobs}, {"top_logprobs", tops}, {"text_offset", offsets}};
}

OrderedJson TextJob::chat_logprobs(Choice& choice) {
  if (!request_.has_logprobs) return nullptr;
  const auto one = [&](int64_t id, double logprob) -> OrderedJson {
    const std::string text = token_text(model_, id);
    OrderedJson bytes = OrderedJson::array();
    for (const char byte : text) bytes.push_back(static_cast<unsigned char>(byte));
    return {{"token", text}, {"logprob", logprob}, {"bytes", bytes}};
  };
  OrderedJson content = OrderedJson::array();
  for (; choice.num_sent < choice.tokens.size(); ++choice.num_sent) {
    const GeneratedToken& token = choice.tokens[choice.num_sent];
    OrderedJson& entry = content.emplace_back(one(token.id, *token.logprob));
    entry["top_logprobs"] = OrderedJson::array();
    for (const TokenLikelihood& other : token.likeliest) entry["top_logprobs"].push_back(one(other.id, other.logprob));
  }
  return {{"content", content}, {"refusal", nullptr}};
}

// OpenAI's form: the arguments are a text.
OrderedJson TextJob::tool_calls(size_t index, const OrderedJson& calls, bool is_chunk) const {
  OrderedJson list = OrderedJson::array();
  for (const OrderedJson& call : calls) {
    OrderedJson& one = list.emplace_back(OrderedJson::object());
    if (is_chunk) one["index"] = list.size() - 1;
    one["id"] = fmt::format("call-{}-{}-{}", id_, index, list.size() - 1);
    one["type"] = "function";
    one["function"] = {{"name", call.at("name")}, {"arguments", dump_json(call.at("arguments"))}};
  }
  return list;
}

OrderedJson TextJob::megatron_answer() const {
  OrderedJson texts = OrderedJson::array(), segments = texts, logprobs = texts, ids = texts;
  for (size_t i = 0; i < choices_.size(); ++i) {
    texts.push_back(request_.prompt_texts[i] + choices_[i].text);
    OrderedJson& all_ids = ids.emplace_back(sequences[i].prompt_ids);
    OrderedJson& of_tokens = logprobs.emplace_back(OrderedJson::array());
    for (const GeneratedToken& token : choices_[i].prompt) of_tokens.push_back(*token.logprob);
    for (const GeneratedToken& token : choices_[i].tokens) {
      all_ids.push_back(token.id);
      if (token.logprob) of_tokens.push_back(*token.logprob);
    }
    OrderedJson& words = segments.emplace_back(OrderedJson::array());
    for (const OrderedJson& id : all_ids) words.push_back(token_text(model_, *try_whole_number(Json(id))));
  }
  return {{"text", texts},
          {"segments", segments},
          {"logprobs", request_.has_logprobs ? logprobs : OrderedJson()},
          {"tokens", ids}};
}

void TextJob::finish() {
  if (request_.stream) {
    if (request_.include_usage) send_chunk(OrderedJson::array(), true);
    reply_->send_part("data: [DONE]\n\n");
    reply_->end_parts();
    return;
  }
  if (request_.interface == TextInterface::kMegatron) {
    reply_->send({.body = dump_json(megatron_answer())});
    return;
  }
  OrderedJson answer = envelope(false);
  OrderedJson& choices = answer["choices"] = OrderedJson::array();
  for (size_t i = 0; i < choices_.size(); ++i) {
    Choice& choice = choices_[i];
    OrderedJson one = {{"index", i}};
    if (request_.interface == TextInterface::kChat) {
      const bool has_calls = !choice.parsed.tool_calls.empty();
      OrderedJson& message = one["message"] = {{"role", "assistant"}};
      message["content"] = has_calls && choice.parsed.content.empty() ? OrderedJson() : OrderedJson(choice.parsed.content);
      if (!choice.parsed.reasoning.empty()) message["reasoning_content"] = choice.parsed.reasoning;
      if (has_calls) message["tool_calls"] = tool_calls(i, choice.parsed.tool_calls, false);
      one["logprobs"] = chat_logprobs(choice);
    } else {
      one["text"] = choice.text;
      one["logprobs"] = completion_logprobs(choice);
    }
    one["finish_reason"] = or_null(choice.finish_reason);
    choices.push_back(std::move(one));
  }
  answer["usage"] = usage();
  reply_->send({.body = dump_json(answer)});
}

void TextJob::fail(const RequestError& error) {
  if (!has_begun_) {
    reply_->send(error.answer());
    return;
  }
  reply_->send_part(event(error.body()));
  reply_->end_parts();
}

}  // namespace megalith
