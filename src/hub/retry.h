// Patience with a hub: tries for one answer or file, pauses between them, and when to give up.
//
// Failed tries are logged with their reason and the next pause. Pauses double unless the hub prescribes one; a pause
// beyond the remaining patience ends the waiting at once.
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

// The hub or the network failed; the request is fine and may succeed later: exit code 1.
class HubError : public std::runtime_error {
 public:
  explicit HubError(const std::string& message, const std::string& remedy = "");
  const std::string& message() const { return message_; }
  const std::string& remedy() const { return remedy_; }

 private:
  std::string message_, remedy_;
};

// The pause that an answer asks for: Retry-After in seconds or as a date (RFC 9110), or the end of a rate limit's
// window (`RateLimit: "api";r=0;t=40`). Nothing if absent or unreadable.
std::optional<std::chrono::milliseconds> asked_pause(const HttpResponse& response,
                                                     std::chrono::system_clock::time_point now);

class HubRetries {
 public:
  // what       begins messages
  // most_tries without progress
  HubRetries(const HubPatience& patience, std::string what, int most_tries, Logger& log);

  // Bytes have arrived: restarts the patience.
  void note_arrival() { waited_.restart(); }
  // Restarts the tries, too.
  void note_progress();

  bool is_used_up() const { return waited_.elapsed_ms() >= static_cast<double>(patience_.total.count()); }

  // After a failed try: logs why, and pauses. Returns "" when the next try is due, else why there is none.
  // response  the bad answer; may be null
  std::string pause_or_end(const std::string& reason, const HttpResponse* response, const std::atomic<bool>& stop);

 private:
  const HubPatience& patience_;
  std::string what_;
  int most_tries_, num_failed_ = 0;
  Logger& log_;
  Stopwatch waited_;
};

}  // namespace megalith
