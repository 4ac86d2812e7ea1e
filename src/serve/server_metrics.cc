#include "serve/server_metrics.h"

#include <fmt/format.h>

namespace megalith {
namespace {

void observe(ServerMetrics::Histogram& histogram, double seconds) {
  for (size_t i = 0; i < histogram.within.size(); ++i) {
    if (seconds <= ServerMetrics::Histogram::kBounds_s[i]) ++histogram.within[i];
  }
  ++histogram.count;
  histogram.sum += seconds;
}

std::string head(const char* name, const char* type, const char* help) {
  return fmt::format("# HELP {0} {2}\n# TYPE {0} {1}\n", name, type, help);
}

std::string histogram_text(const char* name, const char* help, const ServerMetrics::Histogram& histogram) {
  std::string text = head(name, "histogram", help);
  for (size_t i = 0; i < histogram.within.size(); ++i) {
    text += fmt::format("{}_bucket{{le=\"{}\"}} {}\n", name, histogram.kBounds_s[i], histogram.within[i]);
  }
  return text + fmt::format("{0}_bucket{{le=\"+Inf\"}} {1}\n{0}_sum {2}\n{0}_count {1}\n", name, histogram.count,
                            histogram.sum);
}

}  // namespace

void ServerMetrics::count_request(const std::string& path, int status, double seconds) {
  const std::lock_guard lock(mutex_);
  ++requests_[{path, status}];
  observe(request_s_, seconds);
}

void ServerMetrics::observe_first_token(double seconds) {
  const std::lock_guard lock(mutex_);
  observe(first_token_s_, seconds);
}

std::string ServerMetrics::text() const {
  const std::lock_guard lock(mutex_);
  std::string text = head("megalith_requests_total", "counter", "Requests answered.");
  for (const auto& [key, count] : requests_) {
    text += fmt::format("megalith_requests_total{{path=\"{}\",status=\"{}\"}} {}\n", key.first, key.second, count);
  }
  const struct {
    const char *name, *type, *help;
    int64_t value;
  } rows[] = {
      {"megalith_prompt_tokens_total", "counter", "Tokens of prompts.", prompt_tokens},
      {"megalith_reused_prompt_tokens_total", "counter", "Prompt tokens found in the cache.", reused_prompt_tokens},
      {"megalith_generated_tokens_total", "counter", "Tokens generated.", generated_tokens},
      {"megalith_sequences_waiting", "gauge", "Sequences that wait for a row of the batch.", waiting},
      {"megalith_sequences_running", "gauge", "Sequences in the batch.", running},
  };
  for (const auto& row : rows) text += head(row.name, row.type, row.help) + fmt::format("{} {}\n", row.name, row.value);
  return text + histogram_text("megalith_request_seconds", "From a request to the end of its answer.", request_s_) +
         histogram_text("megalith_first_token_seconds", "From a request to its first token.", first_token_s_);
}

}  // namespace megalith
