#include "hub/retry.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <thread>

#include "config/option_value.h"
#include "core/strings.h"

namespace megalith {
namespace {

using std::chrono::milliseconds;

constexpr int64_t kMostAskedSeconds = int64_t{1} << 30;  // practically for ever

std::string shown_pause(double ms) { return format_duration(ms / 1000); }
std::string shown_pause(milliseconds pause) { return shown_pause(static_cast<double>(pause.count())); }

milliseconds asked_seconds(int64_t seconds) {
  return std::chrono::seconds(std::clamp<int64_t>(seconds, 0, kMostAskedSeconds));
}

// "Wed, 21 Oct 2026 07:28:00 GMT"; strptime is locale-dependent.
std::optional<std::chrono::system_clock::time_point> parse_http_date(const std::string& text) {
  constexpr std::string_view kMonths = "JanFebMarAprMayJunJulAugSepOctNovDec";
  std::tm time{};
  char month[4] = {};
  if (std::sscanf(text.c_str(), "%*3c, %2d %3c %4d %2d:%2d:%2d GMT", &time.tm_mday, month, &time.tm_year, &time.tm_hour,
                  &time.tm_min, &time.tm_sec) != 6) {
    return std::nullopt;
  }
  const size_t at = kMonths.find(month);
  if (at == std::string_view::npos || at % 3 != 0) return std::nullopt;
  time.tm_mon = static_cast<int>(at / 3);
  time.tm_year -= 1900;
  return std::chrono::system_clock::from_time_t(::timegm(&time));
}

}  // namespace

HubError::HubError(const std::string& message, const std::string& remedy)
    : std::runtime_error(remedy.empty() ? message : message + "\n  " + remedy), message_(message), remedy_(remedy) {}

std::optional<milliseconds> asked_pause(const HttpResponse& response, std::chrono::system_clock::time_point now) {
  const std::string text = response.header("retry-after"), limit = response.header("ratelimit");
  if (const std::optional<int64_t> seconds = parse_integer(text)) return asked_seconds(*seconds);
  if (const auto date = parse_http_date(text)) {
    return asked_seconds(std::chrono::ceil<std::chrono::seconds>(*date - now).count());
  }
  const size_t at = limit.find(";t=");
  if (at == std::string::npos) return std::nullopt;
  const std::string window = limit.substr(at + 3, limit.find_first_of(";,", at + 3) - at - 3);
  const std::optional<int64_t> seconds = parse_integer(window);
  return seconds ? std::optional(asked_seconds(*seconds)) : std::nullopt;
}

HubRetries::HubRetries(const HubPatience& patience, std::string what, int most_tries, Logger& log)
    : patience_(patience), what_(std::move(what)), most_tries_(most_tries), log_(log) {}

void HubRetries::note_progress() {
  num_failed_ = 0;
  waited_.restart();
}

std::string HubRetries::pause_or_end(const std::string& reason, const HttpResponse* response,
                                     const std::atomic<bool>& stop) {
  const double elapsed_ms = waited_.elapsed_ms();
  ++num_failed_;
  if (num_failed_ >= most_tries_) {
    return fmt::format("given up after {} tries and {} of waiting", num_failed_, shown_pause(elapsed_ms));
  }
  milliseconds pause = patience_.first_pause * (1 << std::min(num_failed_ - 1, 4));
  bool is_asked = false;
  if (response != nullptr) {
    const std::optional<milliseconds> asked = asked_pause(*response, std::chrono::system_clock::now());
    is_asked = asked && *asked > milliseconds(0);
    if (is_asked) pause = *asked;
  }
  const double left_ms = static_cast<double>(patience_.total.count()) - elapsed_ms;
  if (static_cast<double>(pause.count()) >= left_ms) {
    return fmt::format("given up: {} {}, and of hub_timeout_minutes {} are left",
                       is_asked ? "the next try is asked for in" : "the next try would be in", shown_pause(pause),
                       shown_pause(std::max(left_ms, 0.0)));
  }
  log_.warn("{}: {}; try {} of {} follows in {}", what_, reason, num_failed_ + 1, most_tries_, shown_pause(pause));
  const Stopwatch slept;
  while (!stop && slept.elapsed_ms() < static_cast<double>(pause.count())) {
    std::this_thread::sleep_for(std::min(pause, milliseconds(50)));
  }
  return "";
}

}  // namespace megalith
