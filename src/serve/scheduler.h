// Queues requests for the model's thread, which works in rounds: sequences leave the batch, join it, and get one token
// each. Every rank of the model runs the same rounds; the first makes them.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/group.h"
#include "kinds/text/text_batch.h"
#include "serve/request_fields.h"
#include "serve/server_metrics.h"

namespace megalith {

// A client's request being served: sequences to continue, or texts to make vectors of. For the model's thread.
class Job {
 public:
  virtual ~Job() = default;

  std::vector<GenerationRequest> sequences;
  std::vector<std::vector<int32_t>> texts;

  virtual void on_prompt(size_t /*sequence*/, std::vector<GeneratedToken> /*likelihoods*/) {}
  // false: the sequence needs no more tokens.
  virtual bool on_token(size_t /*sequence*/, const GeneratedToken& /*token*/) { return true; }
  virtual void on_vectors(const at::Tensor& /*vectors*/) {}
  // One of these is called once, last.
  virtual void finish() = 0;
  virtual void fail(const RequestError& error) = 0;
  virtual bool is_gone() const = 0;  // the client has left
};

struct Round {
  std::vector<int64_t> removed;
  std::vector<std::pair<int64_t, GenerationRequest>> added;  // by key
  std::vector<std::vector<int32_t>> texts;
  bool is_last = false;
};

std::string bytes_of(const Round& round);
Round round_of(std::string_view bytes);

class Scheduler {
 public:
  struct Limits {
    int64_t max_batch_rows = 8;
    int64_t max_queued = 256;        // requests
    double request_timeout_s = 600;  // including waiting
    double drain_s = 20;             // after stop(), for running jobs
    double heartbeat_s = 1;          // longest wait for a round; the other ranks' collectives would time out
  };
  Scheduler(const Limits& limits, ServerMetrics& metrics) : limits_(limits), metrics_(metrics) {}

  // Thread-safe. A job fails at once if the queue is full.
  void submit(std::shared_ptr<Job> job);
  // Accepts no more jobs; running ones may end within drain_s. A second call ends them at once.
  void stop();

  // For the model's thread; waits while there is nothing to do.
  Round next_round();
  void on_prompt(int64_t key, std::vector<GeneratedToken> likelihoods, int64_t num_reused);
  void on_tokens(const std::vector<GeneratedToken>& tokens);
  void on_vectors(const at::Tensor& vectors);
  // Fails all remaining and future jobs.
  void close();

 private:
  using Clock = std::chrono::steady_clock;
  struct Task {
    std::shared_ptr<Job> job;
    Clock::time_point arrival;
    size_t num_begun = 0, num_ended = 0;  // sequences
    bool is_over = false;
  };
  struct Row {
    std::shared_ptr<Task> task;
    size_t sequence;
  };

  void judge(Task& task, Clock::time_point now) const;
  void end_row(int64_t key);

  Limits limits_;
  ServerMetrics& metrics_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::shared_ptr<Task>> waiting_;
  int num_stops_ = 0;
  Clock::time_point drain_end_{};
  // For the model's thread only.
  std::map<int64_t, Row> rows_;
  std::vector<int64_t> ended_keys_;  // still in the batch, removed in the next round
  std::shared_ptr<Task> vectors_task_;
  int64_t next_key_ = 0;
};

// The model that is served.
struct ServedEngine {
  TextBatch* batch = nullptr;  // or
  std::function<at::Tensor(const std::vector<std::vector<int32_t>>& texts)> make_vectors;
};

// Returns after the last round. Collective; the scheduler is the first rank's, null elsewhere.
void run_rounds(const ServedEngine& engine, Group& world, Scheduler* scheduler);

}  // namespace megalith
