#include "serve/scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "comm/share_text.h"
#include "core/error.h"

namespace megalith {
namespace {

// The fields of a request; visit(name, field) reads or writes each.
template <typename Request, typename Visit>
void visit_fields(Request& request, const Visit& visit) {
  visit("prompt", request.prompt_ids);
  visit("new", request.max_new_tokens);
  visit("stop", request.stop_ids);
  visit("temperature", request.sampling.temperature);
  visit("top_k", request.sampling.top_k);
  visit("top_p", request.sampling.top_p);
  visit("seed", request.sampling.sampling_seed);
  visit("presence", request.presence_penalty);
  visit("frequency", request.frequency_penalty);
  visit("bias", request.logit_bias);
  visit("logprobs", request.num_logprobs);
  visit("prompt_logprobs", request.has_prompt_logprobs);
}

Json json_of(const GenerationRequest& request) {
  Json json;
  visit_fields(request, [&](const char* name, const auto& field) {
    if constexpr (requires { field.has_value(); }) {
      if (field) json[name] = *field;
    } else {
      json[name] = field;
    }
  });
  return json;
}

GenerationRequest request_of(const Json& json) {
  GenerationRequest request;
  visit_fields(request, [&]<typename Field>(const char* name, Field& field) {
    if constexpr (requires { field.has_value(); }) {
      field = json_find<typename Field::value_type>(json, name, "round");
    } else if constexpr (requires { typename Field::mapped_type; }) {
      for (const Json& pair : get_member(json, name, "round")) {
        field[json_as<int64_t>(pair[0], name)] = json_as<double>(pair[1], name);
      }
    } else {
      field = json_get<Field>(json, name, "round");
    }
  });
  return request;
}

// The first rank's round on every rank.
Round shared_round(Round mine, Group& world) {
  if (world.size() == 1) return mine;
  const bool is_first = world.is_first();
  const auto bytes = share_text(is_first ? std::optional(bytes_of(mine)) : std::nullopt, world, "round");
  return is_first ? std::move(mine) : round_of(*bytes);
}

}  // namespace

std::string bytes_of(const Round& round) {
  Json added = Json::array();
  for (const auto& [key, request] : round.added) added.push_back({key, json_of(request)});
  return dump_json(Json{{"removed", round.removed}, {"added", added}, {"texts", round.texts}, {"last", round.is_last}});
}

Round round_of(std::string_view bytes) {
  const Json json = parse_json(bytes, "round");
  Round round;
  round.removed = json_get<std::vector<int64_t>>(json, "removed", "round");
  for (const Json& pair : get_member(json, "added", "round")) {
    round.added.emplace_back(json_as<int64_t>(pair[0], "round"), request_of(pair[1]));
  }
  for (const Json& text : get_member(json, "texts", "round")) {
    const auto ids = json_as<std::vector<int64_t>>(text, "round");
    round.texts.emplace_back(ids.begin(), ids.end());
  }
  round.is_last = json_get<bool>(json, "last", "round");
  return round;
}

void Scheduler::submit(std::shared_ptr<Job> job) {
  std::unique_lock lock(mutex_);
  const auto num_waiting = std::ranges::count_if(waiting_, [](const auto& task) { return task->num_begun == 0; });
  if (num_stops_ == 0 && num_waiting < limits_.max_queued) {
    waiting_.push_back(std::make_shared<Task>(Task{.job = std::move(job), .arrival = Clock::now()}));
    wake_.notify_one();
    return;
  }
  const bool is_stopping = num_stops_ > 0;
  lock.unlock();
  job->fail(is_stopping ? RequestError("the server is stopping", "", 503, "stopping")
                        : RequestError(fmt::format("{} requests wait already: try again later", limits_.max_queued), "",
                                       503, "queue_full"));
}

void Scheduler::stop() {
  const std::lock_guard lock(mutex_);
  if (num_stops_++ == 0) drain_end_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                                         std::chrono::duration<double>(limits_.drain_s));
  wake_.notify_one();
}

// Fails a task if its client is gone, its time is up or the server stops.
void Scheduler::judge(Task& task, Clock::time_point now) const {
  if (task.is_over) return;
  const auto fail = [&](const RequestError& error) {
    task.is_over = true;
    task.job->fail(error);
  };
  const bool waits = task.num_begun == 0;
  const std::chrono::duration<double> age = now - task.arrival;
  if (task.job->is_gone()) {
    fail(RequestError("the client has gone", "", 499));
  } else if (num_stops_ > 0 && (waits || num_stops_ > 1 || now > drain_end_)) {
    fail(RequestError("the server is stopping", "", 503, "stopping"));
  } else if (age.count() > limits_.request_timeout_s) {
    fail(RequestError(fmt::format("{} within the {} seconds of request_timeout",
                                  waits ? "no row of the batch was free" : "the answer was not complete",
                                  limits_.request_timeout_s),
                      "", waits ? 503 : 504, "timeout"));
  }
}

Round Scheduler::next_round() {
  std::unique_lock lock(mutex_);
  if (rows_.empty()) {
    wake_.wait_for(lock, std::chrono::duration<double>(limits_.heartbeat_s),
                   [&] { return !waiting_.empty() || num_stops_ > 0; });
  }
  const auto now = Clock::now();
  for (const auto& task : waiting_) judge(*task, now);
  for (const auto& [key, row] : rows_) judge(*row.task, now);
  std::erase_if(waiting_, [](const auto& task) { return task->is_over; });
  Round round{.removed = std::exchange(ended_keys_, {})};
  std::erase_if(rows_, [&](const auto& row) {
    if (row.second.task->is_over) round.removed.push_back(row.first);
    return row.second.task->is_over;
  });
  while (!waiting_.empty()) {
    const std::shared_ptr<Task> task = waiting_.front();
    if (!task->job->texts.empty()) {
      if (vectors_task_) break;
      round.texts = task->job->texts;
      vectors_task_ = task;
      waiting_.pop_front();
      continue;
    }
    if (std::ssize(rows_) == limits_.max_batch_rows) break;
    const size_t sequence = task->num_begun++;
    round.added.emplace_back(next_key_, task->job->sequences[sequence]);
    rows_[next_key_++] = {.task = task, .sequence = sequence};
    if (task->num_begun == task->job->sequences.size()) waiting_.pop_front();
  }
  size_t num_waiting = 0;
  for (const auto& task : waiting_) num_waiting += task->job->sequences.size() - task->num_begun;
  metrics_.waiting = static_cast<int64_t>(num_waiting);
  metrics_.running = std::ssize(rows_);
  round.is_last = num_stops_ > 0 && rows_.empty() && waiting_.empty() && round.texts.empty();
  return round;
}

void Scheduler::end_row(int64_t key) {
  const auto row = rows_.find(key);
  Task& task = *row->second.task;
  if (++task.num_ended == task.job->sequences.size()) {
    task.is_over = true;
    task.job->finish();
  }
  rows_.erase(row);
}

void Scheduler::on_prompt(int64_t key, std::vector<GeneratedToken> likelihoods, int64_t num_reused) {
  const Row& row = rows_.at(key);
  const GenerationRequest& request = row.task->job->sequences[row.sequence];
  metrics_.prompt_tokens += std::ssize(request.prompt_ids);
  metrics_.reused_prompt_tokens += num_reused;
  row.task->job->on_prompt(row.sequence, std::move(likelihoods));
  if (request.max_new_tokens == 0) end_row(key);
}

void Scheduler::on_tokens(const std::vector<GeneratedToken>& tokens) {
  metrics_.generated_tokens += std::ssize(tokens);
  for (const GeneratedToken& token : tokens) {
    const auto row = rows_.find(token.key);
    MEGALITH_CHECK(row != rows_.end(), "a token of sequence {}, which is over", token.key);
    const bool goes_on = row->second.task->job->on_token(row->second.sequence, token);
    if (goes_on && !token.is_last) continue;
    if (!token.is_last) ended_keys_.push_back(token.key);
    end_row(token.key);
  }
}

void Scheduler::on_vectors(const at::Tensor& vectors) {
  const std::shared_ptr<Task> task = std::exchange(vectors_task_, nullptr);
  for (const auto& text : task->job->texts) metrics_.prompt_tokens += std::ssize(text);
  task->job->on_vectors(vectors);
  task->job->finish();
}

void Scheduler::close() {
  const std::lock_guard lock(mutex_);
  num_stops_ = 2;
  const auto now = Clock::now();
  if (vectors_task_) waiting_.push_back(std::exchange(vectors_task_, nullptr));
  for (const auto& task : waiting_) judge(*task, now);
  for (const auto& [key, row] : rows_) judge(*row.task, now);
  waiting_.clear();
  rows_.clear();
}

void run_rounds(const ServedEngine& engine, Group& world, Scheduler* scheduler) {
  while (true) {
    const Round round = shared_round(scheduler != nullptr ? scheduler->next_round() : Round{}, world);
    for (const int64_t key : round.removed) engine.batch->remove(key);
    for (const auto& [key, request] : round.added) {
      const int64_t reused_before = engine.batch->num_prompt_tokens_reused();
      std::vector<GeneratedToken> likelihoods = engine.batch->add(key, request);
      const int64_t num_reused = engine.batch->num_prompt_tokens_reused() - reused_before;
      if (scheduler != nullptr) scheduler->on_prompt(key, std::move(likelihoods), num_reused);
    }
    if (engine.batch != nullptr && !engine.batch->is_empty()) {
      const std::vector<GeneratedToken> tokens = engine.batch->step();
      if (scheduler != nullptr) scheduler->on_tokens(tokens);
    }
    if (!round.texts.empty()) {
      const at::Tensor vectors = engine.make_vectors(round.texts);
      if (scheduler != nullptr) scheduler->on_vectors(vectors);
    }
    if (round.is_last) return;
  }
}

}  // namespace megalith
