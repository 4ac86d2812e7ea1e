// System calls on files that survive signals (a profiler's timer, SIGCHLD, a resized terminal): POSIX and network file
// systems may stop open, read, write, fsync, ftruncate, mkdir, rename and others with EINTR. All writing uses these.
#pragma once

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <type_traits>
#include <vector>

namespace megalith {

// Repeats the call while a signal interrupts it. `call` returns -1 and sets errno, or returns a std::error_code. Not
// for close(): see close_descriptor.
template <typename Call>
auto retry_interrupted(const Call& call) {
  for (;;) {
    const auto result = call();
    if constexpr (std::is_same_v<std::remove_const_t<decltype(result)>, std::error_code>) {
      if (result != std::errc::interrupted) return result;
    } else {
      if (result != -1 || errno != EINTR) return result;
    }
  }
}

// Returns 0 or the error number. An interrupted close() counts as done: Linux has released the descriptor by then, and
// a second call could close a file that another thread has just opened.
int close_descriptor(int fd);

// Replaces `to`. UserError if that fails.
void rename_path(const std::filesystem::path& from, const std::filesystem::path& to);

// The entries of a folder, and those at any depth below it (without following links), in no order. UserError if the
// folder cannot be read.
std::vector<std::filesystem::directory_entry> list_folder(const std::filesystem::path& folder);
std::vector<std::filesystem::directory_entry> list_tree(const std::filesystem::path& folder);

// Removes a file or a folder recursively, for destructors: true if nothing is left under this name.
bool try_remove_tree(const std::filesystem::path& path) noexcept;

}  // namespace megalith
