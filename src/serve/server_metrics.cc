#include "serve/server_metrics.h"

#include <fmt/format.h>

namespace megalith {

void ServerMetrics::Histogram::observe(double seconds) {
  for (size_t i = 0; i < kBounds_s.size(); ++i) within[i] += seconds <= kBounds_s[i] ? 1 : 0;
  ++count;
  sum += seconds;
}

std::string ServerMetrics::Histogram::text(const std::string& name, const std::string& help) const {
  std::string text = fmt::format("# HELP {0} {1}\n# TYPE {0} histogram\n", name, help);
  for (size_t i = 0; i < kBounds_s.size(); ++i) {
    text += fmt::format("{}_bucket{{le=\"{}\"}} {}\n", name, kBounds_s[i], within[i]);
  }
  return text + fmt::format("{0}_bucket{{le=\"+Inf\"}} {1}\n{0}_sum {2}\n{0}_count {1}\n", name, count, sum);
}

void ServerMetrics::count_request(const std::string& path, int status, double seconds) {
  const std::lock_guard lock(mutex_);
  ++requests_[{path, status}];
  request_s_.observe(seconds);
}

void ServerMetrics::count_prompt(int64_t tokens, int64_t reused) {
  const std::lock_guard lock(mutex_);
  prompt_tokens_ += tokens;
  reused_tokens_ += reused;
}

void ServerMetrics::count_generated(int64_t tokens) {
  const std::lock_guard lock(mutex_);
  generated_tokens_ += tokens;
}

void ServerMetrics::observe_first_token(double seconds) {
  const std::lock_guard lock(mutex_);
  first_token_s_.observe(seconds);
}

void ServerMetrics::set_queue(int64_t waiting, int64_t running) {
  const std::lock_guard lock(mutex_);
  waiting_ = waiting;
  running_ = running;
}

std::string ServerMetrics::text() const {
  const std::lock_guard lock(mutex_);
  std::string text = "# HELP megalith_requests_total Requests answered.\n# TYPE megalith_requests_total counter\n";
  for (const auto& [key, count] : requests_) {
    text += fmt::format("megalith_requests_total{{path=\"{}\",status=\"{}\"}} {}\n", key.first, key.second, count);
  }
  const struct {
    const char *name, *type, *help;
    int64_t value;
  } rows[] = {
      {"megalith_prompt_tokens_total", "counter", "Tokens of prompts.", prompt_tokens_},
      {"megalith_reused_prompt_tokens_total", "counter", "Prompt tokens found in the cache.", reused_tokens_},
      {"megalith_generated_tokens_total", "counter", "Tokens generated.", generated_tokens_},
      {"megalith_sequences_waiting", "gauge", "Sequences that wait for a row of the batch.", waiting_},
      {"megalith_sequences_running", "gauge", "Sequences in the batch.", running_},
  };
  for (const auto& row : rows) {
    text += fmt::format("# HELP {0} {2}\n# TYPE {0} {1}\n{0} {3}\n", row.name, row.type, row.help, row.value);
  }
  return text + request_s_.text("megalith_request_seconds", "From a request to the end of its answer.") +
         first_token_s_.text("megalith_first_token_seconds", "From a request to its first token.");
}

}  // namespace megalith
