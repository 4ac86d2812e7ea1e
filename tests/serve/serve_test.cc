// Requests read, answers taken apart, and the scheduler over a small model.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "comm/thread_world.h"
#include "core/error.h"
#include "models/tiny_models.h"
#include "serve/chat_answer.h"
#include "serve/routes.h"
#include "serve/scheduler.h"
#include "serve/text_job.h"
#include "serve/text_request.h"

namespace megalith {
namespace {

using test::tiny_config, test::tiny_context;

// Keeps what was sent.
class KeptReply : public HttpReply {
 public:
  void send(HttpAnswer answer) override { end(answer.status, answer.body); }
  void send_part(std::string part) override { parts_ += part; }
  void end_parts() override { end(200, parts_); }
  bool is_gone() const override { return goes_; }

  bool is_ended() const { return status_ != 0; }
  int status() const { return status_; }
  const std::string& body() const { return body_; }
  Json json() const { return parse_json(body_, "answer"); }
  void go() { goes_ = true; }

 private:
  void end(int status, const std::string& body) {
    EXPECT_EQ(status_, 0) << "answered twice";
    status_ = status;
    body_ = body;
  }
  std::string parts_, body_;
  std::atomic<int> status_ = 0;
  std::atomic<bool> goes_ = false;
};

class ServeTest : public ::testing::Test {
 protected:
  ServeTest() {
    model_ = test::build_model(tiny_config(), tiny_context(groups_));
    test::load(*model_, test::golden_weights(*model_, at::kDouble));
  }

  // The handler's answer, complete once the rounds are over.
  std::shared_ptr<KeptReply> ask(const std::string& path, const OrderedJson& body, const std::string& method = "POST") {
    auto reply = std::make_shared<KeptReply>();
    handler_({.method = method, .path = path, .authorization = "", .body = dump_json(body)}, reply);
    return reply;
  }
  void run(Scheduler* scheduler = nullptr) {
    PipelinedModel pipelined(*model_, groups_, at::kCPU);
    TextBatch batch(pipelined, {.most_rows = 2, .most_past_tokens = 32}, at::kCPU);
    run_rounds({.batch = &batch}, *groups_.world, scheduler == nullptr ? &scheduler_ : scheduler);
  }

  const Groups groups_ = Groups::single();
  std::unique_ptr<Model> model_;
  std::unique_ptr<Tokenizer> tokenizer_ = make_null_tokenizer(36);
  ServerMetrics metrics_;
  Scheduler scheduler_{{.max_batch_rows = 2, .max_queued = 3, .heartbeat_s = 0.01}, metrics_};
  ServedModel served_{.name = "tiny",
                      .config = tiny_config(),
                      .tokenizer = tokenizer_.get(),
                      .sampling = {.temperature = 0},
                      .max_context_tokens = 40};
  HttpServer::Handler handler_ = make_handler(served_, scheduler_, metrics_, "");
};

TEST_F(ServeTest, AnswersEqualTokensGeneratedAlone) {
  const OrderedJson prompts = {{1, 2, 3}, {5, 6, 7, 8, 9, 10, 11}, {4}};
  const auto whole = ask("/v1/completions", {{"prompt", prompts}, {"max_tokens", 6}});
  const auto stream = ask("/v1/completions", {{"prompt", prompts[0]}, {"max_tokens", 6}, {"stream", true}});
  scheduler_.stop();  // those that wait are refused, so let them begin
  scheduler_.close();
  EXPECT_EQ(whole->status(), 503);
  EXPECT_EQ(stream->status(), 503);

  Scheduler scheduler({.max_batch_rows = 2, .heartbeat_s = 0.01}, metrics_);
  handler_ = make_handler(served_, scheduler, metrics_, "");
  const auto answer = ask("/v1/completions", {{"prompt", prompts}, {"max_tokens", 6}, {"logprobs", 1}, {"echo", true}});
  const auto streamed = ask("/v1/completions", {{"prompt", prompts[0]}, {"max_tokens", 6}, {"stream", true}});
  const auto none = ask("/v1/completions", {{"prompt", prompts[0]}, {"max_tokens", 0}, {"echo", true}});
  const auto gone = ask("/v1/completions", {{"prompt", prompts[1]}, {"max_tokens", 30}});
  gone->go();
  std::thread model([&] { run(&scheduler); });
  for (const auto& reply : {answer, streamed, none, gone}) {
    while (!reply->is_ended()) std::this_thread::yield();
  }
  scheduler.stop();
  model.join();
  EXPECT_EQ(gone->status(), 499);
  EXPECT_EQ(none->json()["choices"][0]["text"], "1 2 3");

  PipelinedModel pipelined(*model_, groups_, at::kCPU);
  for (size_t i = 0; i < prompts.size(); ++i) {
    GenerationRequest request{.prompt_ids = json_as<std::vector<int64_t>>(Json(prompts[i]), "prompt"), .max_new_tokens = 6};
    request.sampling.temperature = 0;
    const std::vector<int64_t> ids = generate_tokens(pipelined, request, 1, at::kCPU);
    const Json choice = answer->json()["choices"][i];
    const auto words = json_get<std::vector<std::string>>(choice["logprobs"], "tokens", "answer");
    ASSERT_EQ(words.size(), request.prompt_ids.size() + ids.size());
    for (size_t k = 0; k < ids.size(); ++k) {
      EXPECT_EQ(words[request.prompt_ids.size() + k], std::to_string(ids[k])) << i << " " << k;
      // The likeliest was chosen.
      EXPECT_EQ(choice["logprobs"]["top_logprobs"][request.prompt_ids.size() + k].size(), 1u);
    }
    EXPECT_EQ(choice["finish_reason"], "length");
  }
  EXPECT_EQ(streamed->body().substr(0, 6), "data: ");
  EXPECT_NE(streamed->body().find("\"finish_reason\":\"length\""), std::string::npos);
  EXPECT_TRUE(streamed->body().ends_with("data: [DONE]\n\n"));
  EXPECT_EQ(answer->json()["usage"]["completion_tokens"], 18);
  EXPECT_NE(metrics_.text().find("megalith_requests_total{path=\"/v1/completions\",status=\"499\"} 1"),
            std::string::npos);
}

TEST_F(ServeTest, QueueIsBoundedInLengthAndTime) {
  Scheduler scheduler({.max_batch_rows = 1, .max_queued = 1, .request_timeout_s = 0, .heartbeat_s = 0.01}, metrics_);
  handler_ = make_handler(served_, scheduler, metrics_, "");
  const auto late = ask("/v1/completions", {{"prompt", {1, 2}}});
  const auto full = ask("/v1/completions", {{"prompt", {1, 2}}});
  EXPECT_EQ(full->status(), 503);
  EXPECT_FALSE(late->is_ended());
  EXPECT_TRUE(scheduler.next_round().added.empty());
  EXPECT_EQ(late->status(), 503);
  EXPECT_EQ(late->json()["error"]["code"], "timeout");
}

TEST_F(ServeTest, KeyIsAskedForButByHealth) {
  handler_ = make_handler(served_, scheduler_, metrics_, "secret");
  EXPECT_EQ(ask("/health", nullptr, "GET")->status(), 200);
  EXPECT_EQ(ask("/v1/models", nullptr, "GET")->status(), 401);
  for (const auto& [key, status] : {std::pair("Bearer secret", 200), {"Bearer secreT", 401}, {"secret", 401}}) {
    auto reply = std::make_shared<KeptReply>();
    handler_({.method = "GET", .path = "/v1/models", .authorization = key, .body = ""}, reply);
    EXPECT_EQ(reply->status(), status) << key;
  }
}

TEST(Rounds, OtherRanksReadWhatTheFirstMade) {
  GenerationRequest request{.prompt_ids = {1, 2}, .max_new_tokens = 3, .stop_ids = {4}};
  request.sampling = {.temperature = 0.1, .top_k = 3, .top_p = 0.7, .sampling_seed = -9};
  request.presence_penalty = 1.0 / 3;
  request.frequency_penalty = -2;
  request.logit_bias = {{7, 0.5}};
  request.num_logprobs = 2;
  request.has_prompt_logprobs = true;
  const Round round{.removed = {3}, .added = {{5, request}}, .texts = {{1, 2}, {3}}, .is_last = true};
  const std::string bytes = bytes_of(round);
  const Round read = round_of(bytes);
  EXPECT_EQ(bytes_of(read), bytes);
  const GenerationRequest& same = read.added.at(0).second;
  EXPECT_EQ(same.presence_penalty, request.presence_penalty);
  EXPECT_EQ(same.logit_bias, request.logit_bias);
  EXPECT_EQ(same.num_logprobs, request.num_logprobs);
  EXPECT_EQ(same.sampling.sampling_seed, -9);
  EXPECT_EQ(read.texts, round.texts);
  EXPECT_TRUE(read.is_last);
}

struct Taken {
  std::string reasoning, content, calls;
  bool operator==(const Taken&) const = default;
};

// Fed in pieces of this many characters.
Taken taken(const std::string& text, bool is_thinking, bool has_tools, size_t size) {
  ChatAnswer answer(is_thinking, has_tools);
  Taken all;
  const auto add = [&](const ParsedAnswer& part) {
    all.reasoning += part.reasoning;
    all.content += part.content;
    for (const OrderedJson& call : part.tool_calls) all.calls += dump_json(call);
  };
  for (size_t begin = 0; begin < text.size(); begin += size) add(answer.push(text.substr(begin, size)));
  add(answer.finish());
  return all;
}

TEST(ChatAnswer, ReasoningAndCallsAreTakenApartWhereverTheyAreCut) {
  const std::string call = R"({"name": "f", "arguments": {"x": [1, "</b>"]}})";
  const std::string read = R"({"name":"f","arguments":{"x":[1,"</b>"]}})";
  const struct {
    std::string text;
    bool is_thinking, has_tools;
    Taken expected;
  } cases[] = {
      {"", false, false, {"", "", ""}},
      {"\n plain < text \n", false, false, {"", "\n plain < text \n", ""}},
      {"<think>\na b\n</think>\n\nyes ", false, false, {"a b", "yes ", ""}},
      {"a <b </thin", true, false, {"a <b </thin", "", ""}},
      {"a\n</think>yes", true, false, {"a", "yes", ""}},
      {"<thin", false, false, {"", "<thin", ""}},
      {"<tool_call>\n" + call + "\n</tool_call>", false, false, {"", "<tool_call>\n" + call + "\n</tool_call>", ""}},
      {"<tool_call>\n" + call + "\n</tool_call>", false, true, {"", "", read}},
      {"I do.\n<tool_call>" + call + "</tool_call>\n<tool_call>" + call + "</tool_call>", false, true,
       {"", "I do.", read + read}},
      {"<think>hm</think>\n" + call, false, true, {"hm", "", read}},
      {R"({"a": 1})", false, true, {"", R"({"a": 1})", ""}},
      {"no <tool> at all ", false, true, {"", "no <tool> at all ", ""}},
  };
  for (const auto& one : cases) {
    for (const size_t size : {size_t{1}, size_t{2}, size_t{7}, size_t{1000}}) {
      const Taken found = taken(one.text, one.is_thinking, one.has_tools, size);
      EXPECT_EQ(found.reasoning, one.expected.reasoning) << one.text << " by " << size;
      EXPECT_EQ(found.content, one.expected.content) << one.text << " by " << size;
      EXPECT_EQ(found.calls, one.expected.calls) << one.text << " by " << size;
    }
  }
}

}  // namespace
}  // namespace megalith
