#include "serve/text_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/error.h"

namespace megalith {
namespace {

constexpr int64_t kMostSequences = 1024;  // of one request
constexpr int64_t kMostLogprobs = 20;
constexpr int64_t kMostStops = 16;
constexpr int64_t kUsualCompletion = 16;  // OpenAI's max_tokens
constexpr int64_t kUsualMegatron = 64;
constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();

std::vector<int64_t> encode(const ServedModel& model, const std::string& text, bool add_special) {
  const std::vector<int32_t> ids = model.tokenizer->encode(text, add_special);
  return {ids.begin(), ids.end()};
}

std::string text_of(const OrderedJson& value, const std::string& what) {
  if (!value.is_string()) throw RequestError(fmt::format("{} must be a text", what), what);
  return json_as<std::string>(Json(value), what);
}

std::vector<std::string> texts_of(const OrderedJson& value, const std::string& what, int64_t most) {
  if (!value.is_array() || value.empty() || std::ssize(value) > most) {
    throw RequestError(fmt::format("{} must be a list of 1 to {} texts", what, most), what);
  }
  std::vector<std::string> texts;
  for (const OrderedJson& item : value) texts.push_back(text_of(item, what));
  return texts;
}

std::vector<int64_t> ids_of(const OrderedJson& value, const std::string& what) {
  std::vector<int64_t> ids;
  for (const OrderedJson& item : value) {
    const auto id = item.is_number() ? try_whole_number(Json(item)) : std::nullopt;
    if (!id) throw RequestError(fmt::format("{} must hold texts or token ids", what), what);
    ids.push_back(*id);
  }
  return ids;
}

// A text, a list of texts, a list of ids or a list of such lists.
std::vector<std::vector<int64_t>> prompts_of(const OrderedJson& value, const std::string& what,
                                             const ServedModel& model) {
  if (value.is_string()) return {encode(model, text_of(value, what), true)};
  if (!value.is_array() || value.empty()) {
    throw RequestError(fmt::format("{} must be a text, a list of texts, or token ids", what), what);
  }
  std::vector<std::vector<int64_t>> prompts;
  if (value.front().is_number()) return {ids_of(value, what)};
  if (value.front().is_array()) {
    for (const OrderedJson& item : value) {
      if (!item.is_array()) throw RequestError(fmt::format("{} mixes lists with others", what), what);
      prompts.push_back(ids_of(item, what));
    }
    return prompts;
  }
  for (const std::string& text : texts_of(value, what, kMostSequences)) prompts.push_back(encode(model, text, true));
  return prompts;
}

void check_model(RequestFields& fields, const ServedModel& model) {
  const auto name = fields.find_text("model");
  if (!name || *name == model.name) return;
  throw RequestError(fmt::format("the model {} is not here; this server has {}", *name, model.name), "model", 404,
                     "model_not_found");
}

void check_writes(const ServedModel& model) {
  if (!model.gives_vectors) return;
  throw RequestError(fmt::format("{} gives vectors: ask /v1/embeddings", model.name), "model", 400, "unsupported");
}

// Fields that completions and chat completions share.
void read_shared(RequestFields& fields, const ServedModel& model, int64_t request_number, TextRequest& request,
                 GenerationRequest& usual) {
  check_model(fields, model);
  SamplingOptions& sampling = usual.sampling = model.sampling;
  sampling.temperature = fields.find_number("temperature", 0, 2).value_or(sampling.temperature);
  sampling.top_p = fields.find_number("top_p", 1e-6, 1).value_or(sampling.top_p);
  sampling.top_k = std::max<int64_t>(fields.find_whole("top_k", -1, kLargest).value_or(sampling.top_k), 0);
  sampling.sampling_seed = fields.find_whole("seed", -kLargest, kLargest - kMostSequences)
                               .value_or(sampling.sampling_seed + request_number);
  usual.presence_penalty = fields.find_number("presence_penalty", -2, 2).value_or(0);
  usual.frequency_penalty = fields.find_number("frequency_penalty", -2, 2).value_or(0);
  if (const OrderedJson* bias = fields.find("logit_bias")) {
    RequestFields biases(*bias, "logit_bias");
    for (const auto& [name, value] : bias->items()) {
      int64_t id = -1;
      if (!name.empty() && name.size() < 10 && std::ranges::all_of(name, [](char c) { return c >= '0' && c <= '9'; })) {
        id = std::stoll(name);
      }
      if (id < 0 || id >= *model.config.vocab_size) {
        throw RequestError(fmt::format("logit_bias has the key '{}', which is no token id of the model", name),
                           "logit_bias");
      }
      usual.logit_bias[id] = biases.find_number(name, -100, 100).value_or(0);
    }
  }
  request.n = fields.find_whole("n", 1, 128).value_or(1);
  request.stream = fields.find_flag("stream").value_or(false);
  if (const OrderedJson* options = fields.find("stream_options")) {
    if (!request.stream) throw RequestError("stream_options without stream", "stream_options");
    RequestFields inner(*options, "stream_options");
    request.include_usage = inner.find_flag("include_usage").value_or(false);
    inner.finish();
  }
  if (const OrderedJson* stop = fields.find("stop")) {
    request.stop = stop->is_string() ? std::vector{text_of(*stop, "stop")} : texts_of(*stop, "stop", kMostStops);
    if (const auto error = check_stop_texts(request.stop)) throw RequestError(error->message(), "stop");
  }
  fields.accept({"user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key"});
}

// Each prompt n times.
void add_sequences(const std::vector<std::vector<int64_t>>& prompts, const std::string& param,
                   std::optional<int64_t> max_new_tokens, const ServedModel& model, GenerationRequest usual,
                   TextRequest& request) {
  if (std::ssize(prompts) * request.n > kMostSequences) {
    throw RequestError(fmt::format("more than {} answers in one request", kMostSequences), param);
  }
  const bool is_chat = request.interface == TextInterface::kChat;
  const std::vector<int64_t>& stop_ids = is_chat ? model.chat_stop_ids : model.stop_ids;
  usual.stop_ids.insert(usual.stop_ids.end(), stop_ids.begin(), stop_ids.end());
  const int64_t first_seed = usual.sampling.sampling_seed;
  for (const std::vector<int64_t>& prompt : prompts) {
    const int64_t most_new = model.max_context_tokens - std::ssize(prompt);
    usual.max_new_tokens = max_new_tokens.value_or(std::max<int64_t>(most_new, 1));
    if (usual.max_new_tokens > most_new) {
      throw RequestError(fmt::format("a prompt of {} tokens and {} new ones exceed the {} that this server has for both",
                                     prompt.size(), usual.max_new_tokens, model.max_context_tokens),
                         param, 400, "context_length_exceeded");
    }
    usual.prompt_ids = prompt;
    try {
      check_generation(model.config, usual, "max_tokens");
    } catch (const UserError& error) {
      throw RequestError(error.message(), param);
    }
    if (request.echo) {
      request.prompt_texts.push_back(
          model.tokenizer->decode(std::vector<int32_t>(prompt.begin(), prompt.end()), /*skip_special=*/true));
    }
    for (int64_t i = 0; i < request.n; ++i) {
      usual.sampling.sampling_seed = first_seed + std::ssize(request.sequences);
      request.sequences.push_back(usual);
    }
  }
}

// The text parts of a list; a text unchanged.
OrderedJson content_of(const OrderedJson& content, const std::string& what) {
  if (content.is_string() || content.is_null()) return content;
  if (!content.is_array()) throw RequestError(fmt::format("{} must be a text or a list of parts", what), what);
  std::string text;
  for (const OrderedJson& part : content) {
    RequestFields fields(part, what);
    const std::string type = fields.find_text("type").value_or("");
    if (type != "text") {
      throw RequestError(fmt::format("{} has a part of type '{}', and this model reads text", what, type), what, 400,
                         "unsupported");
    }
    if (!text.empty()) text += "\n";
    text += text_of(fields.require("text"), what);
    fields.finish();
  }
  return text;
}

// Templates print arguments as an object; OpenAI's clients send its text.
OrderedJson calls_of(const OrderedJson& calls, const std::string& what) {
  if (!calls.is_array()) throw RequestError(fmt::format("{} must be a list", what), what);
  OrderedJson read = OrderedJson::array();
  for (const OrderedJson& call : calls) {
    RequestFields fields(call, what);
    RequestFields function(fields.require("function"), what + ".function");
    OrderedJson arguments = function.require("arguments");
    if (arguments.is_string()) {
      try {
        arguments = parse_ordered_json(text_of(arguments, what), "arguments");
      } catch (const UserError& error) {
        throw RequestError(fmt::format("{}: {}", what, error.message()), what);
      }
    }
    OrderedJson& one = read.emplace_back(OrderedJson::object());
    if (const auto id = fields.find_text("id")) one["id"] = *id;
    one["type"] = "function";
    one["function"] = {{"name", text_of(function.require("name"), what)}, {"arguments", std::move(arguments)}};
    fields.accept({"type", "index"});
    fields.finish();
    function.finish();
  }
  return read;
}

OrderedJson messages_of(const OrderedJson& value) {
  try {
    check_messages(value, "messages");
  } catch (const UserError& error) {
    throw RequestError(error.message(), "messages");
  }
  OrderedJson messages = OrderedJson::array();
  for (const OrderedJson& message : value) {
    const std::string what = fmt::format("messages[{}]", messages.size());
    RequestFields fields(message, what);
    std::string role = fields.find_text("role").value_or("");
    if (role == "developer") role = "system";
    if (role != "system" && role != "user" && role != "assistant" && role != "tool") {
      throw RequestError(fmt::format("{} has the role '{}', expected system, developer, user, assistant or tool", what,
                                     role),
                         "messages");
    }
    const OrderedJson* content = fields.find("content");
    OrderedJson& read = messages.emplace_back(OrderedJson{{"role", role}});
    read["content"] = content == nullptr ? OrderedJson("") : content_of(*content, what + ".content");
    for (const char* name : {"name", "tool_call_id", "reasoning_content"}) {
      if (const auto text = fields.find_text(name)) read[name] = *text;
    }
    if (const OrderedJson* calls = fields.find("tool_calls")) read["tool_calls"] = calls_of(*calls, what + ".tool_calls");
    for (const char* name : {"refusal", "audio", "function_call"}) fields.refuse(name, "the model has no words for it");
    fields.accept({"annotations"});
    fields.finish();
  }
  return messages;
}

// Null without tools, or with tool_choice none.
OrderedJson tools_of(RequestFields& fields) {
  const OrderedJson* tools = fields.find("tools");
  const OrderedJson* choice = fields.find("tool_choice");
  if (choice != nullptr && *choice != "auto" && *choice != "none") {
    throw RequestError("tool_choice must be auto or none: the model chooses", "tool_choice", 400, "unsupported");
  }
  if (tools == nullptr) return nullptr;
  if (!tools->is_array()) throw RequestError("tools must be a list", "tools");
  for (const OrderedJson& tool : *tools) {
    RequestFields one(tool, "tools");
    if (one.find_text("type") != "function") throw RequestError("a tool's type must be function", "tools");
    RequestFields function(one.require("function"), "tools.function");
    text_of(function.require("name"), "tools.function.name");
    one.finish();
  }
  if (tools->empty() || (choice != nullptr && *choice == "none")) return nullptr;
  return *tools;
}

}  // namespace

TextRequest parse_completion(const OrderedJson& body, const ServedModel& model, int64_t request_number) {
  check_writes(model);
  RequestFields fields(body);
  TextRequest request;
  GenerationRequest usual;
  read_shared(fields, model, request_number, request, usual);
  fields.refuse("suffix", "the model writes from left to right", "");
  const auto best_of = fields.find_whole("best_of", 1, 128);
  if (best_of && *best_of != 1 && *best_of != request.n) {
    throw RequestError("best_of is not supported beyond n: all answers are returned", "best_of", 400, "unsupported");
  }
  request.echo = fields.find_flag("echo").value_or(false);
  if (request.echo && model.config.has_encoder()) {
    throw RequestError("echo: the model's encoder reads the prompt, and the answer is another text", "echo");
  }
  usual.num_logprobs = fields.find_whole("logprobs", 0, kMostLogprobs);
  request.has_logprobs = usual.num_logprobs.has_value();
  usual.has_prompt_logprobs = request.echo && request.has_logprobs;
  const int64_t most = fields.find_whole("max_tokens", request.echo ? 0 : 1, kLargest / 2).value_or(kUsualCompletion);
  const std::vector<std::vector<int64_t>> prompts = prompts_of(fields.require("prompt"), "prompt", model);
  fields.finish();
  add_sequences(prompts, "prompt", most, model, std::move(usual), request);
  return request;
}

TextRequest parse_chat(const OrderedJson& body, const ServedModel& model, int64_t request_number) {
  check_writes(model);
  if (model.chat == nullptr) {
    throw RequestError(fmt::format("{} has no chat template: ask /v1/completions", model.name), "model", 400,
                       "unsupported");
  }
  RequestFields fields(body);
  TextRequest request{.interface = TextInterface::kChat};
  GenerationRequest usual;
  read_shared(fields, model, request_number, request, usual);
  request.has_logprobs = fields.find_flag("logprobs").value_or(false);
  const auto top_logprobs = fields.find_whole("top_logprobs", 0, kMostLogprobs);
  if (top_logprobs && !request.has_logprobs) throw RequestError("top_logprobs needs logprobs true", "top_logprobs");
  if (request.has_logprobs) usual.num_logprobs = top_logprobs.value_or(0);
  const auto max_tokens = fields.find_whole("max_tokens", 1, kLargest / 2);
  const auto max_completion_tokens = fields.find_whole("max_completion_tokens", 1, kLargest / 2);
  if (max_tokens && max_completion_tokens && *max_tokens != *max_completion_tokens) {
    throw RequestError("max_tokens and max_completion_tokens differ, and mean the same", "max_tokens");
  }
  if (const OrderedJson* format = fields.find("response_format")) {
    RequestFields inner(*format, "response_format");
    inner.refuse("type", "answers are text", "text");
    inner.finish();
  }
  fields.accept({"parallel_tool_calls"});
  const OrderedJson tools = tools_of(fields);
  request.has_tools = !tools.is_null();
  const OrderedJson messages = messages_of(fields.require("messages"));
  fields.finish();
  std::vector<std::vector<int64_t>> prompts;
  try {
    prompts.push_back(model.chat->prompt_ids(messages, tools));
  } catch (const UserError& error) {
    throw RequestError(fmt::format("the chat template refuses the messages: {}", error.message()), "messages");
  }
  add_sequences(prompts, "messages", max_completion_tokens ? max_completion_tokens : max_tokens, model,
                std::move(usual), request);
  request.is_thinking = model.chat->opens_thinking(prompts.front());
  return request;
}

TextRequest parse_megatron(const OrderedJson& body, const ServedModel& model, int64_t request_number) {
  check_writes(model);
  RequestFields fields(body);
  TextRequest request{.interface = TextInterface::kMegatron};
  GenerationRequest usual;
  SamplingOptions& sampling = usual.sampling;
  request.prompt_texts = texts_of(fields.require("prompts"), "prompts", 128);
  const int64_t most = fields.find_whole("tokens_to_generate", 0, kLargest / 2).value_or(kUsualMegatron);
  request.has_logprobs = fields.find_flag("logprobs").value_or(false);
  if (most == 0 && !request.has_logprobs) {
    throw RequestError("tokens_to_generate 0 needs logprobs true", "tokens_to_generate");
  }
  if (request.has_logprobs) usual.num_logprobs = 0;
  usual.has_prompt_logprobs = request.has_logprobs && !model.config.has_encoder();
  sampling.temperature = fields.find_number("temperature", 1e-6, 100).value_or(1);
  sampling.top_k = fields.find_whole("top_k", 0, 1000).value_or(0);
  const double top_p = fields.find_number("top_p", 0, 1).value_or(0);
  if (top_p > 0 && sampling.top_k > 0) throw RequestError("top_k and top_p are both set", "top_p");
  sampling.top_p = top_p > 0 ? top_p : 1;
  sampling.sampling_seed = fields.find_whole("random_seed", 0, kLargest - kMostSequences)
                               .value_or(model.sampling.sampling_seed + request_number);
  if (fields.find_flag("stop_on_eol").value_or(false)) request.stop.emplace_back("\n");
  if (fields.find_flag("stop_on_double_eol").value_or(false)) request.stop.emplace_back("\n\n");
  request.keeps_stop = true;
  if (const auto id = fields.find_whole("stop_token", 0, *model.config.vocab_size - 1)) usual.stop_ids.push_back(*id);
  const bool add_bos = fields.find_flag("add_BOS").value_or(false);
  fields.refuse("top_p_decay", "top_p stays as it is", 0);
  fields.refuse("top_p_bound", "top_p stays as it is", 0);
  fields.refuse("prevent_newline_after_colon", "use logit_bias of /v1/completions", false);
  fields.refuse("beam_width", "there is no beam search");
  fields.refuse("length_penalty", "there is no beam search", 1);
  fields.refuse("top_n_logprobs", "use logprobs of /v1/completions", 0);
  fields.refuse("max_len", "it is called tokens_to_generate");
  fields.refuse("sentences", "they are called prompts");
  fields.accept({"no_log"});
  fields.finish();
  if (add_bos && !model.tokenizer->bos()) throw RequestError("the tokenizer has no beginning of text", "add_BOS");
  std::vector<std::vector<int64_t>> prompts;
  for (const std::string& text : request.prompt_texts) {
    std::vector<int64_t>& prompt = prompts.emplace_back(encode(model, text, false));
    if (add_bos) prompt.insert(prompt.begin(), *model.tokenizer->bos());
  }
  add_sequences(prompts, "prompts", most, model, std::move(usual), request);
  return request;
}

VectorRequest parse_embedding(const OrderedJson& body, const ServedModel& model) {
  if (!model.gives_vectors) {
    throw RequestError(fmt::format("{} writes text; vectors come from a BERT, a sentence-transformers folder, or "
                                   "'megalith serve --pooling …'",
                                   model.name),
                       "model", 400, "unsupported");
  }
  RequestFields fields(body);
  check_model(fields, model);
  VectorRequest request;
  const std::string format = fields.find_text("encoding_format").value_or("float");
  if (format != "float" && format != "base64") {
    throw RequestError("encoding_format must be float or base64", "encoding_format");
  }
  request.is_base64 = format == "base64";
  fields.refuse("dimensions", "the model's vectors have one size");
  fields.accept({"user"});
  const std::vector<std::vector<int64_t>> texts = prompts_of(fields.require("input"), "input", model);
  fields.finish();
  if (std::ssize(texts) > kMostSequences) {
    throw RequestError(fmt::format("more than {} texts in one request", kMostSequences), "input");
  }
  for (const std::vector<int64_t>& ids : texts) {
    if (ids.empty() || std::ssize(ids) > model.max_context_tokens) {
      throw RequestError(fmt::format("a text of {} tokens; this model reads 1 to {}", ids.size(),
                                     model.max_context_tokens),
                         "input", 400, "context_length_exceeded");
    }
    std::vector<int32_t>& text = request.texts.emplace_back();
    for (const int64_t id : ids) {
      if (id < 0 || id >= *model.config.vocab_size) {
        throw RequestError(fmt::format("id {} is outside the model's vocabulary of {}", id, *model.config.vocab_size),
                           "input");
      }
      text.push_back(narrow<int32_t>(id));
    }
  }
  return request;
}

}  // namespace megalith
