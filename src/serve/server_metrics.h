// The content of /metrics, in Prometheus' text format. Thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace megalith {

class ServerMetrics {
 public:
  struct Histogram {
    static constexpr std::array<double, 12> kBounds_s = {0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 60, 120, 300, 600};
    std::array<int64_t, kBounds_s.size()> within{};  // per bound
    int64_t count = 0;
    double sum = 0;
  };

  std::atomic<int64_t> prompt_tokens = 0, reused_prompt_tokens = 0, generated_tokens = 0;
  std::atomic<int64_t> waiting = 0, running = 0;  // sequences

  void count_request(const std::string& path, int status, double seconds);
  void observe_first_token(double seconds);
  std::string text() const;

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, int64_t> requests_;
  Histogram request_s_, first_token_s_;
};

}  // namespace megalith
