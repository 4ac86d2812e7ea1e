// Stopwatch and timestamps.
#pragma once

#include <chrono>
#include <string>

namespace megalith {

// Starts at construction or restart().
class Stopwatch {
 public:
  double elapsed_s() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  double elapsed_ms() const { return elapsed_s() * 1e3; }
  void restart() { start_ = Clock::now(); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
};

// "2026-01-31 09:01:28", local.
std::string local_timestamp(std::chrono::system_clock::time_point time = std::chrono::system_clock::now());

}  // namespace megalith
