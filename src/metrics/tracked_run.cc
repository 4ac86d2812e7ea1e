#include "metrics/tracked_run.h"

#include <pwd.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <random>

namespace megalith {

std::string tracked_user() {
  char buffer[4096];
  passwd entry{}, *found = nullptr;
  if (::getpwuid_r(::geteuid(), &entry, buffer, sizeof(buffer), &found) != 0 || found == nullptr) return "unknown";
  return found->pw_name;
}

int64_t unix_time_ms() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

std::string random_text(size_t count, const char* characters) {
  std::random_device device;
  std::uniform_int_distribution<size_t> index(0, std::strlen(characters) - 1);
  std::string text;
  while (text.size() < count) text += characters[index(device)];
  return text;
}

}  // namespace megalith
