// What /metrics tells, in Prometheus' text form. For any thread.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace megalith {

class ServerMetrics {
 public:
  void count_request(const std::string& path, int status, double seconds);
  void count_prompt(int64_t tokens, int64_t reused);
  void count_generated(int64_t tokens);
  void observe_first_token(double seconds);
  void set_queue(int64_t waiting, int64_t running);  // sequences
  std::string text() const;

 private:
  static constexpr std::array<double, 12> kBounds_s = {0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 60, 120, 300, 600};
  struct Histogram {
    std::array<int64_t, kBounds_s.size()> within{};  // each bound
    int64_t count = 0;
    double sum = 0;
    void observe(double seconds);
    std::string text(const std::string& name, const std::string& help) const;
  };

  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, int64_t> requests_;
  int64_t prompt_tokens_ = 0, reused_tokens_ = 0, generated_tokens_ = 0, waiting_ = 0, running_ = 0;
  Histogram request_s_, first_token_s_;
};

}  // namespace megalith
