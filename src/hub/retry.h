// Tries for one answer or file, pauses between them, and when to give up. Pauses double unless the hub prescribes one;
// a pause beyond the remaining patience gives up at once.
#pragma once

#include <atomic>
#include <chrono>
#include <optional>
#include <stdexcept>
#include <string>

#include "core/log.h"
#include "core/time.h"
#include "hub/cache.h"
#include "hub/http.h"

namespace megalith {

// The hub or network failed; the request may succeed later: exit code 1.
class HubError : public std::runtime_error {
 public:
  explicit HubError(const std::string& message, const std::string& remedy = "");
  const std::string& message() const { return message_; }
  const std::string& remedy() const { return remedy_; }

 private:
  std::string message_, remedy_;
};

// Retry-After in seconds or as a date (RFC 9110), or a rate limit's window (`RateLimit: "api";r=0;t=40`). Null if
// absent or unreadable.
std::optional<std::chrono::milliseconds> asked_pause(const HttpResponse& response,
                                                     std::chrono::system_clock::time_point now);

class HubRetries {
 public:
  // most_tries: without progress.
  HubRetries(const HubPatience& patience, std::string what, int most_tries, Logger& log);

  // Restarts the patience.
  void note_arrival() { waited_.restart(); }
  // Restarts the tries, too.
  void note_progress();

  bool is_used_up() const { return waited_.elapsed_ms() >= static_cast<double>(patience_.total.count()); }

  // Logs a failed try, and pauses. Returns "" if the next try is due, else why there is none. `response` may be null.
  std::string pause_or_end(const std::string& reason, const HttpResponse* response, const std::atomic<bool>& stop);

 private:
  const HubPatience& patience_;
  std::string what_;
  int most_tries_, num_failed_ = 0;
  Logger& log_;
  Stopwatch waited_;
};

}  // namespace megalith
