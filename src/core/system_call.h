// System calls that survive signals: POSIX and network file systems may fail them with EINTR. All writing uses these.
#pragma once

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <type_traits>
#include <vector>

namespace megalith {

// `call` returns -1 with errno, or a std::error_code. Not for close().
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

// Returns 0 or the error number. EINTR counts as closed: Linux has released the descriptor, and a second call could
// close another thread's.
int close_descriptor(int fd);

// Replaces `to`.
void rename_path(const std::filesystem::path& from, const std::filesystem::path& to);

// Unordered; list_tree() at any depth, without following links. UserError if unreadable.
std::vector<std::filesystem::directory_entry> list_folder(const std::filesystem::path& folder);
std::vector<std::filesystem::directory_entry> list_tree(const std::filesystem::path& folder);

// Recursive, for destructors: true if nothing is left.
bool try_remove_tree(const std::filesystem::path& path) noexcept;

}  // namespace megalith
