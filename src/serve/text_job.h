// A request for text being served: its answers, whole or as a stream, in its interface's format.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "serve/chat_answer.h"
#include "serve/scheduler.h"
#include "serve/text_request.h"

namespace megalith {

class TextJob : public Job {
 public:
  // The model and the metrics must outlive it. number: part of its id
  TextJob(TextRequest request, const ServedModel& model, std::shared_ptr<HttpReply> reply, ServerMetrics& metrics,
          int64_t number);

  void on_prompt(size_t sequence, std::vector<GeneratedToken> likelihoods) override;
  bool on_token(size_t sequence, const GeneratedToken& token) override;
  void finish() override;
  void fail(const RequestError& error) override;
  bool is_gone() const override { return reply_->is_gone(); }

 private:
  struct Choice {
    AnswerText decoder;
    ChatAnswer chat;
    std::vector<GeneratedToken> prompt, tokens;
    size_t num_sent = 0;      // of tokens, in a stream
    int64_t text_offset = 0;  // in characters, of the next token
    std::string text;
    ParsedAnswer parsed;
    const char* finish_reason = nullptr;
  };

  void deliver(size_t index, std::string piece);
  void send_chunk(OrderedJson choices, bool has_usage = false);
  OrderedJson envelope(bool is_chunk) const;
  OrderedJson usage() const;
  OrderedJson completion_logprobs(Choice& choice);
  OrderedJson chat_logprobs(Choice& choice);
  OrderedJson tool_calls(size_t index, const OrderedJson& calls, bool is_chunk) const;
  OrderedJson megatron_answer() const;

  TextRequest request_;
  const ServedModel& model_;
  std::shared_ptr<HttpReply> reply_;
  ServerMetrics& metrics_;
  std::string id_;
  int64_t created_;  // seconds since 1970
  std::chrono::steady_clock::time_point arrival_ = std::chrono::steady_clock::now();
  bool has_first_ = false, has_begun_ = false;  // a token; the stream
  std::vector<Choice> choices_;
};

}  // namespace megalith
