#include "core/input_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <utility>

#include "core/error.h"
#include "core/file.h"
#include "core/machine_error.h"
#include "core/system_call.h"
#include "core/visible_text.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

// "" if regular.
std::string_view irregular_kind(const struct stat& info) {
  switch (info.st_mode & S_IFMT) {
    case S_IFREG:
      return "";
    case S_IFDIR:
      return "a folder";
    case S_IFIFO:
      return "a pipe (FIFO)";
    case S_IFSOCK:
      return "a socket";
    case S_IFCHR:
      return "a character device";
    case S_IFBLK:
      return "a block device";
    default:
      return "no regular file";
  }
}

bool is_null_device(const struct stat& info) {
  return S_ISCHR(info.st_mode) && major(info.st_rdev) == 1 && minor(info.st_rdev) == 3;
}

// descriptor  -1 before opening: a character device may turn out to be a terminal
void require_input(const struct stat& info, InputKind kind, int descriptor, const fs::path& path) {
  const std::string_view found = irregular_kind(info);
  if (found.empty()) return;
  if (kind == InputKind::kStream) {
    if (S_ISFIFO(info.st_mode) || is_null_device(info)) return;
    if (S_ISCHR(info.st_mode) && (descriptor < 0 || ::isatty(descriptor) != 0)) return;
  }
  if (S_ISDIR(info.st_mode))
    throw UserError(fmt::format("cannot read {}: {}", path.string(), system_error_text(EISDIR)));
  throw UserError(fmt::format("cannot read {}: it is {}, and {} is expected", path.string(), found,
                              kind == InputKind::kStream ? "a regular file, a pipe or a terminal" : "a regular file"),
                  "put the file that belongs there in its place");
}

// Until data, close or a signal, which fails the read: it may be one that a command handles. The note bypasses the
// logger, which may not exist yet.
void wait_for_writer(int descriptor, const fs::path& path) {
  constexpr int kQuiet_ms = 1000;
  pollfd watched{.fd = descriptor, .events = POLLIN, .revents = 0};
  int found = ::poll(&watched, 1, kQuiet_ms);
  if (found == 0) {
    const std::string line = fmt::format("note: {} is a pipe (FIFO): waiting for what a program writes into it\n",
                                         visible_text(path.string()));
    (void)retry_interrupted([&] { return ::write(STDERR_FILENO, line.data(), line.size()); });
    found = ::poll(&watched, 1, -1);
  }
  if (found < 0) fail_file("read", path, errno);
}

std::string remedy_for(int error_number, const fs::path& path) {
  switch (error_number) {
    case ENOENT:
      return "check the path; it is taken relative to " + fs::current_path().string();
    case EACCES:
    case EPERM:
      return "check the owner and the permissions of the file and its folders";
    case ENOSPC:
      return "free space there or choose another folder";
    case EDQUOT:
      return "your disk quota is used up: free space or choose another folder";
    case EROFS:
      return "the file system is mounted read-only: choose another folder";
    case EMFILE:
      return "too many open files: raise the limit with 'ulimit -n'";
    default:
      return "";
  }
}

}  // namespace

bool is_of_disk(int error_number) {
  return error_number == ENOSPC || error_number == EDQUOT || error_number == EFBIG || error_number == EIO;
}

void fail_file(std::string_view action, const fs::path& path, int error_number) {
  const std::string message =
      fmt::format("cannot {} {}: {}", action, path.string(), system_error_text(error_number));
  if (is_of_disk(error_number)) throw MachineError(message, remedy_for(error_number, path));
  throw UserError(message, remedy_for(error_number, path));
}

InputFile::InputFile(const fs::path& path, InputKind kind) : path_(path) {
  // Before opening, which may act on a device and fails unhelpfully on a socket.
  struct stat info {};
  if (retry_interrupted([&] { return ::stat(path.c_str(), &info); }) != 0) fail_file("open", path, errno);
  require_input(info, kind, /*descriptor=*/-1, path);
  // May have been replaced: open without waiting, check again.
  fd_ = retry_interrupted([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK); });
  if (fd_ < 0) fail_file("open", path, errno);
  try {
    if (::fstat(fd_, &info) != 0) fail_file("read", path, errno);
    require_input(info, kind, fd_, path);
    if (kind == InputKind::kStream) {
      if (S_ISFIFO(info.st_mode)) wait_for_writer(fd_, path);
      const int flags = ::fcntl(fd_, F_GETFL);
      if (flags < 0 || ::fcntl(fd_, F_SETFL, flags & ~O_NONBLOCK) != 0) fail_file("read", path, errno);
    }
  } catch (...) {
    close_descriptor(fd_);  // a throwing constructor runs no destructor
    throw;
  }
  size_ = S_ISREG(info.st_mode) ? static_cast<size_t>(info.st_size) : 0;
}

InputFile::~InputFile() {
  if (fd_ >= 0) close_descriptor(fd_);
}

int InputFile::release() { return std::exchange(fd_, -1); }

size_t InputFile::read(std::span<char> out) {
  const ssize_t count = retry_interrupted([&] { return ::read(fd_, out.data(), out.size()); });
  if (count < 0) fail_file("read", path_, errno);
  return static_cast<size_t>(count);
}

void require_regular_file(int descriptor, const fs::path& path) {
  struct stat info {};
  if (::fstat(descriptor, &info) != 0) fail_file("read", path, errno);
  require_input(info, InputKind::kFile, descriptor, path);
}

namespace {

std::string read_until(InputFile& file, size_t most) {
  // A guess: 0 for /proc and pipes.
  std::string content(std::min(file.size(), most - 1) + 1, '\0');
  size_t size = 0;
  while (size < most) {
    const size_t count = file.read(std::span(content).subspan(size));
    if (count == 0) break;
    size += count;
    if (size == content.size()) content.resize(std::min(content.size() * 2, most));
  }
  content.resize(size);
  return content;
}

}  // namespace

std::string read_stream(const fs::path& path, size_t most) {
  InputFile file(path, InputKind::kStream);
  return read_until(file, most);
}

std::string read_beginning(const fs::path& path, size_t most) {
  InputFile file(path);
  return read_until(file, most);
}

std::optional<std::string> try_read_facts(const fs::path& path) {
  constexpr size_t kMostFacts = size_t{1} << 20;
  try {
    return read_beginning(path, kMostFacts);
  } catch (const UserError&) {
    return std::nullopt;
  }
}

}  // namespace megalith
