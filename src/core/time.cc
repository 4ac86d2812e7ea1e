// Timestamps; see time.h.
#include "core/time.h"

#include <array>
#include <ctime>

namespace megalith {
namespace {

std::string format_time(const std::tm& parts, const char* format) {
  std::array<char, 64> text;
  return std::string(text.data(), std::strftime(text.data(), text.size(), format, &parts));
}

}  // namespace

std::string iso_timestamp(std::chrono::system_clock::time_point time) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(time);
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  return format_time(parts, "%Y-%m-%dT%H:%M:%SZ");
}

std::string local_timestamp(std::chrono::system_clock::time_point time) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(time);
  std::tm parts{};
  localtime_r(&seconds, &parts);
  return format_time(parts, "%Y-%m-%d %H:%M:%S");
}

}  // namespace megalith
