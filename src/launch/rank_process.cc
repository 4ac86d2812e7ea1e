// Source: proc(5), /proc/[pid]/stat and /proc/sys/kernel/random/boot_id.
#include "launch/rank_process.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <vector>

#include "core/error.h"
#include "core/file.h"
#include "core/strings.h"

namespace megalith {
namespace {

std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  for (size_t at = text.find_first_not_of(" \n"); at != std::string_view::npos;
       at = text.find_first_not_of(" \n", at)) {
    const size_t end = std::min(text.find_first_of(" \n", at), text.size());
    words.push_back(text.substr(at, end - at));
    at = end;
  }
  return words;
}

std::string machine() {
  std::error_code error;
  const std::filesystem::path numbering = std::filesystem::read_symlink("/proc/self/ns/pid", error);
  return fmt::format("{}/{}", trim(read_file("/proc/sys/kernel/random/boot_id")), numbering.string());
}

struct Status {
  char state = '?';
  std::string start;  // clock ticks since boot
};

std::optional<Status> status_of(std::string_view process) {
  std::string text;
  try {
    text = read_file(fmt::format("/proc/{}/stat", process));
  } catch (const UserError&) {
    return std::nullopt;
  }
  // "12 (name) R …": names may hold blanks and parentheses.
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  const std::vector<std::string_view> words = words_of(std::string_view(text).substr(name_end + 1));
  constexpr size_t kState = 0, kStart = 19;
  if (words.size() <= kStart) return std::nullopt;
  return Status{words[kState][0], std::string(words[kStart])};
}

}  // namespace

std::string own_process() {
  try {
    const std::string process = std::to_string(::getpid());
    const std::optional<Status> status = status_of(process);
    return status ? fmt::format("{} {} {}", machine(), process, status->start) : "unknown";
  } catch (const UserError&) {
    return "unknown";  // no /proc
  }
}

ProcessState state_of_process(std::string_view process) {
  const std::vector<std::string_view> words = words_of(process);
  try {
    if (words.size() != 3 || words[0] != machine()) return ProcessState::kUnknown;
  } catch (const UserError&) {
    return ProcessState::kUnknown;
  }
  const std::optional<Status> status = status_of(words[1]);
  // Reused numbers differ in start.
  if (!status || status->start != words[2]) return ProcessState::kEnded;
  return status->state == 'Z' || status->state == 'X' ? ProcessState::kEnded : ProcessState::kRuns;
}

}  // namespace megalith
