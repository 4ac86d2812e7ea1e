// How long a hub is waited for: the tries for one answer or one file, the pauses between them, and when to give up.
//
// Every try that fails is logged with its reason and the pause that follows. Pauses double, unless the hub says how
// long to wait; a pause longer than the patience that is left ends the waiting at once.
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

// The hub, or the network on the way to it, failed. Nothing is wrong with what was asked, and the same command may
// succeed later: exit code 1.
class HubError : public std::runtime_error {
 public:
  // As UserError's.
  explicit HubError(const std::string& message, const std::string& remedy = "");
  const std::string& message() const { return message_; }
  const std::string& remedy() const { return remedy_; }

 private:
  std::string message_, remedy_;
};

// What an answer says of when to ask again: Retry-After in seconds or as a date (RFC 9110), or the seconds until the
// window of a rate limit ends (`RateLimit: "api";r=0;t=40`). Nothing when it says nothing that can be read.
std::optional<std::chrono::milliseconds> asked_pause(const HttpResponse& response,
                                                     std::chrono::system_clock::time_point now);

class HubRetries {
 public:
  // what       how messages begin
  // most_tries without progress
  HubRetries(const HubPatience& patience, std::string what, int most_tries, Logger& log);

  // Bytes have arrived: the patience begins anew.
  void note_arrival() { waited_.restart(); }
  // New ground was gained: the tries begin anew, too.
  void note_progress();

  bool is_used_up() const { return waited_.elapsed_ms() >= static_cast<double>(patience_.total.count()); }

  // After a try that failed: tells why, and pauses. Returns "" when the next try is due, else why there is none.
  // response  the answer that was no good; may be null
  std::string pause_or_end(const std::string& reason, const HttpResponse* response, const std::atomic<bool>& stop);

 private:
  const HubPatience& patience_;
  std::string what_;
  int most_tries_, num_failed_ = 0;
  Logger& log_;
  Stopwatch waited_;
};

}  // namespace megalith
