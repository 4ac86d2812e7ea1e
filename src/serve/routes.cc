#include "serve/routes.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <atomic>
#include <nlohmann/json.hpp>

#include "core/base64.h"
#include "core/error.h"
#include "core/time.h"
#include "serve/text_job.h"

namespace megalith {
namespace {

// Counts the answer.
class CountedReply : public HttpReply {
 public:
  CountedReply(std::shared_ptr<HttpReply> reply, ServerMetrics& metrics, std::string path)
      : reply_(std::move(reply)), metrics_(metrics), path_(std::move(path)) {}

  void send(HttpAnswer answer) override {
    metrics_.count_request(path_, answer.status, watch_.elapsed_s());
    reply_->send(std::move(answer));
  }
  void send_part(std::string part) override { reply_->send_part(std::move(part)); }
  void end_parts() override {
    metrics_.count_request(path_, 200, watch_.elapsed_s());
    reply_->end_parts();
  }
  bool is_gone() const override { return reply_->is_gone(); }

 private:
  std::shared_ptr<HttpReply> reply_;
  ServerMetrics& metrics_;
  std::string path_;
  Stopwatch watch_;
};

class VectorJob : public Job {
 public:
  VectorJob(VectorRequest request, const ServedModel& model, std::shared_ptr<HttpReply> reply)
      : is_base64_(request.is_base64), model_(model), reply_(std::move(reply)) {
    texts = std::move(request.texts);
  }

  void on_vectors(const at::Tensor& vectors) override {
    const at::Tensor rows = vectors.to(at::kCPU, at::kFloat).contiguous();
    for (int64_t row = 0; row < rows.size(0); ++row) {
      const std::span<const float> values(rows.const_data_ptr<float>() + row * rows.size(1),
                                          static_cast<size_t>(rows.size(1)));
      OrderedJson embedding;
      if (is_base64_) {
        std::string text;
        append_base64(text, {reinterpret_cast<const char*>(values.data()), values.size_bytes()});
        embedding = std::move(text);
      } else {
        embedding = values;
      }
      data_.push_back({{"object", "embedding"}, {"index", row}, {"embedding", std::move(embedding)}});
    }
  }
  void finish() override {
    int64_t num_tokens = 0;
    for (const auto& text : texts) num_tokens += std::ssize(text);
    const OrderedJson answer = {{"object", "list"},
                                {"data", std::move(data_)},
                                {"model", model_.name},
                                {"usage", {{"prompt_tokens", num_tokens}, {"total_tokens", num_tokens}}}};
    reply_->send({.body = dump_json(answer)});
  }
  void fail(const RequestError& error) override { reply_->send(error.answer()); }
  bool is_gone() const override { return reply_->is_gone(); }

 private:
  bool is_base64_;
  const ServedModel& model_;
  std::shared_ptr<HttpReply> reply_;
  OrderedJson data_ = OrderedJson::array();
};

// Takes the same time whatever the key is and however much of it is right.
bool is_key(std::string_view given, const std::string& key) {
  const std::string wanted = "Bearer " + key;
  unsigned difference = given.size() == wanted.size() ? 0 : 1;
  for (size_t i = 0; i < given.size(); ++i) {
    difference |= static_cast<unsigned char>(given[i] ^ wanted[i % wanted.size()]);
  }
  return difference == 0;
}

OrderedJson parse_body(const std::string& body) {
  try {
    return parse_ordered_json(body, "the request");
  } catch (const UserError& error) {
    throw RequestError(error.message());
  }
}

struct Served {
  const ServedModel& model;
  Scheduler& scheduler;
  ServerMetrics& metrics;
  std::string api_key;
  std::atomic<int64_t> num_requests = 0;
};

using Reply = std::shared_ptr<HttpReply>;

template <TextRequest (*Parse)(const OrderedJson&, const ServedModel&, int64_t)>
void write_text(Served& served, const ClientRequest& request, const Reply& reply) {
  const int64_t number = served.num_requests++;
  TextRequest parsed = Parse(parse_body(request.body), served.model, number);
  served.scheduler.submit(std::make_shared<TextJob>(std::move(parsed), served.model, reply, served.metrics, number));
}

void make_vectors(Served& served, const ClientRequest& request, const Reply& reply) {
  VectorRequest parsed = parse_embedding(parse_body(request.body), served.model);
  served.scheduler.submit(std::make_shared<VectorJob>(std::move(parsed), served.model, reply));
}

void list_models(Served& served, const ClientRequest&, const Reply& reply) {
  const OrderedJson model = {{"id", served.model.name},
                             {"object", "model"},
                             {"created", 0},
                             {"owned_by", "megalith"},
                             {"max_model_len", served.model.max_context_tokens}};
  reply->send({.body = dump_json(OrderedJson{{"object", "list"}, {"data", OrderedJson::array({model})}})});
}

struct Route {
  const char *method, *path;
  void (*answer)(Served&, const ClientRequest&, const Reply&);
  bool is_open = false;  // needs no key
};

const Route kRoutes[] = {
    {"GET", "/health", [](Served&, const ClientRequest&, const Reply& reply) { reply->send({.body = "{}"}); }, true},
    {"GET", "/metrics",
     [](Served& served, const ClientRequest&, const Reply& reply) {
       reply->send({.body = served.metrics.text(), .type = "text/plain; version=0.0.4"});
     }},
    {"GET", "/v1/models", list_models},
    {"POST", "/v1/completions", write_text<parse_completion>},
    {"POST", "/v1/chat/completions", write_text<parse_chat>},
    {"POST", "/v1/embeddings", make_vectors},
    {"PUT", "/api", write_text<parse_megatron>},
};

void answer(Served& served, const ClientRequest& request, Reply reply) {
  const Route* route = nullptr;
  for (const Route& one : kRoutes) {
    if (request.path == one.path) route = &one;
  }
  // Paths that do not exist would fill the metrics.
  reply = std::make_shared<CountedReply>(std::move(reply), served.metrics, route == nullptr ? "other" : route->path);
  try {
    if (!(route != nullptr && route->is_open) && !served.api_key.empty() &&
        !is_key(request.authorization, served.api_key)) {
      throw RequestError("the key is missing or wrong: send Authorization: Bearer KEY", "", 401, "invalid_api_key");
    }
    if (route == nullptr) throw RequestError(fmt::format("there is no {}", request.path), "", 404, "not_found");
    if (request.method != route->method) {
      throw RequestError(fmt::format("{} is asked with {}", route->path, route->method), "", 405, "method_not_allowed");
    }
    route->answer(served, request, reply);
  } catch (const RequestError& error) {
    reply->send(error.answer());
  } catch (const std::exception& error) {
    reply->send(RequestError(error.what(), "", 500, "internal").answer());
  }
}

}  // namespace

HttpServer::Handler make_handler(const ServedModel& model, Scheduler& scheduler, ServerMetrics& metrics,
                                 std::string api_key) {
  const auto served = std::make_shared<Served>(model, scheduler, metrics, std::move(api_key));
  return [served](const ClientRequest& request, std::shared_ptr<HttpReply> reply) {
    answer(*served, request, std::move(reply));
  };
}

}  // namespace megalith
