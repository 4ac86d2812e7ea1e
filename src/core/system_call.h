// System calls on files that a signal cannot break off: a profiler's timer, SIGCHLD or a resized terminal never ends a
// run. POSIX lets open, read, write, fsync, ftruncate, mkdir, rename and others stop with EINTR, and file systems on a
// network do. Everything that writes goes through these.
#pragma once

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <type_traits>
#include <vector>

namespace megalith {

// Makes the call again while a signal interrupts it. `call` returns -1 and sets errno, or returns a std::error_code.
// Not for close(): see close_descriptor.
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

// Closes, and returns 0 or the error number. An interrupted close() counts as done: Linux has given the descriptor up
// by then, and a second call could close a file that another thread has opened meanwhile.
int close_descriptor(int fd);

// Replaces `to`. UserError when that fails.
void rename_path(const std::filesystem::path& from, const std::filesystem::path& to);

// What lies in the folder, and what lies at any depth below it (links are not followed), in no order. UserError when
// the folder cannot be read.
std::vector<std::filesystem::directory_entry> list_folder(const std::filesystem::path& folder);
std::vector<std::filesystem::directory_entry> list_tree(const std::filesystem::path& folder);

// Removes a file or a folder with everything in it, for destructors: true when nothing is left under this name.
bool try_remove_tree(const std::filesystem::path& path) noexcept;

}  // namespace megalith
