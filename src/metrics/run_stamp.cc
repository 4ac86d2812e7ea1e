#include "metrics/run_stamp.h"

#include <fmt/format.h>

#include <ctime>
#include <random>

namespace megalith {
namespace {

std::tm utc_parts(std::chrono::system_clock::time_point time) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(std::chrono::floor<std::chrono::seconds>(time));
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  return parts;
}

}  // namespace

std::string utc_timestamp(std::chrono::system_clock::time_point time) {
  const std::tm parts = utc_parts(time);
  const auto since_second = time - std::chrono::floor<std::chrono::seconds>(time);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", parts.tm_year + 1900, parts.tm_mon + 1,
                     parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec,
                     std::chrono::duration_cast<std::chrono::milliseconds>(since_second).count());
}

std::string make_run_id() {
  const std::tm parts = utc_parts(std::chrono::system_clock::now());
  return fmt::format("{:04}{:02}{:02}-{:02}{:02}{:02}-{:04x}", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday,
                     parts.tm_hour, parts.tm_min, parts.tm_sec, std::random_device()() & 0xffffU);
}

}  // namespace megalith
