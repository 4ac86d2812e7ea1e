// Requests of three interfaces, validated and turned into ids: OpenAI's completions and chat completions, and PUT /api
// of Megatron-LM's text generation server.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/json.h"
#include "kinds/text/chat_format.h"
#include "kinds/text/generation.h"
#include "models/model_config.h"
#include "serve/request_fields.h"
#include "tokenizer/tokenizer.h"

namespace megalith {

// The model as handlers see it; must outlive them.
struct ServedModel {
  std::string name;
  ModelConfig config;                  // including the vocabulary's size
  const Tokenizer* tokenizer;
  const ChatFormat* chat = nullptr;    // null: no chat template
  std::vector<int64_t> stop_ids, chat_stop_ids;
  SamplingOptions sampling;            // defaults of requests
  int64_t max_context_tokens = 0;      // prompt plus answer
  bool gives_vectors = false;          // vectors instead of text
};

enum class TextInterface { kCompletions, kChat, kMegatron };

struct TextRequest {
  TextInterface interface = TextInterface::kCompletions;
  std::vector<GenerationRequest> sequences;  // prompt by prompt, n of each
  std::vector<std::string> prompt_texts;     // by prompt, where the answer begins with them
  int64_t n = 1;
  std::vector<std::string> stop;
  bool echo = false, keeps_stop = false;     // in the answer's text
  bool stream = false, include_usage = false;
  bool has_tools = false;                    // parse tool calls
  bool is_thinking = false;                  // the prompt opened the model's reasoning
  bool has_logprobs = false;

  int64_t prompt_of(size_t sequence) const { return static_cast<int64_t>(sequence) / n; }
};

// RequestError for any invalid field. request_number: gives the seed of a request without one.
TextRequest parse_completion(const OrderedJson& body, const ServedModel& model, int64_t request_number);
TextRequest parse_chat(const OrderedJson& body, const ServedModel& model, int64_t request_number);
TextRequest parse_megatron(const OrderedJson& body, const ServedModel& model, int64_t request_number);

struct VectorRequest {
  std::vector<std::vector<int32_t>> texts;
  bool is_base64 = false;
};
VectorRequest parse_embedding(const OrderedJson& body, const ServedModel& model);

}  // namespace megalith
