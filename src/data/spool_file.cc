// Growing files; see spool_file.h.
#include "data/spool_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/file.h"
#include "core/input_file.h"
#include "core/machine_error.h"
#include "core/system_call.h"

namespace megalith {
namespace {

constexpr size_t kSpoolBufferBytes = size_t{1} << 20, kSpoolDirectBytes = size_t{1} << 16;

[[noreturn]] void fail_spool(std::string_view action, const std::filesystem::path& path, int error_number) {
  const std::string message =
      fmt::format("cannot {} {}: {}", action, path.string(), system_error_text(error_number));
  if (!is_of_disk(error_number)) throw UserError(message, "check the permissions of the folder");
  throw MachineError(message, "free space there and run the same command again: it goes on where it stopped");
}

}  // namespace

SpoolFile::SpoolFile(std::filesystem::path path, int64_t size) : path_(std::move(path)), size_(size) {
  fd_ = retry_interrupted([&] { return ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666); });
  if (fd_ < 0) fail_spool("create", path_, errno);
  try {
    require_regular_file(fd_, path_);
  } catch (...) {
    close_descriptor(std::exchange(fd_, -1));  // a throwing constructor runs no destructor
    throw;
  }
  struct stat info {};
  if (::fstat(fd_, &info) != 0 || info.st_size < size) {
    close_descriptor(std::exchange(fd_, -1));
    throw UserError(fmt::format("{} has {} bytes, fewer than the {} that were written", path_.string(),
                                static_cast<int64_t>(info.st_size), size),
                    "remove it and begin anew");
  }
  if (retry_interrupted([&] { return ::ftruncate(fd_, size); }) != 0 || ::lseek(fd_, size, SEEK_SET) != size) {
    const int error_number = errno;
    close_descriptor(std::exchange(fd_, -1));
    fail_spool("write", path_, error_number);
  }
}

SpoolFile::~SpoolFile() {
  if (fd_ >= 0) close_descriptor(fd_);
}

SpoolFile::SpoolFile(SpoolFile&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      size_(other.size_),
      buffer_(std::move(other.buffer_)) {}

void SpoolFile::append(std::span<const std::byte> bytes) {
  size_ += static_cast<int64_t>(bytes.size());
  if (bytes.size() >= kSpoolDirectBytes) {  // avoids a copy of large pieces
    write_buffer();
    write_through(bytes);
    return;
  }
  buffer_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (buffer_.size() >= kSpoolBufferBytes) write_buffer();
}

void SpoolFile::write_buffer() {
  write_through(std::as_bytes(std::span(buffer_)));
  buffer_.clear();
}

void SpoolFile::write_through(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = retry_interrupted([&] { return ::write(fd_, bytes.data(), bytes.size()); });
    if (written < 0) fail_spool("write", path_, errno);
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

void SpoolFile::write_at(int64_t offset, std::span<const std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t written = retry_interrupted([&] { return ::pwrite(fd_, bytes.data(), bytes.size(), offset); });
    if (written < 0) fail_spool("write", path_, errno);
    bytes = bytes.subspan(static_cast<size_t>(written));
    offset += written;
  }
}

void SpoolFile::copy_to(SpoolFile& other) {
  write_buffer();
  std::vector<std::byte> block(kSpoolBufferBytes);
  for (int64_t at = 0; at < size_;) {
    const ssize_t count = retry_interrupted([&] { return ::pread(fd_, block.data(), block.size(), at); });
    if (count <= 0) fail_spool("read", path_, count < 0 ? errno : EIO);
    other.append(std::span(block).first(static_cast<size_t>(count)));
    at += count;
  }
}

void SpoolFile::truncate(int64_t size) {
  write_buffer();
  if (retry_interrupted([&] { return ::ftruncate(fd_, size); }) != 0 || ::lseek(fd_, size, SEEK_SET) != size) {
    fail_spool("write", path_, errno);
  }
  size_ = size;
}

void SpoolFile::sync() {
  write_buffer();
  const int result = retry_interrupted([&] { return ::fdatasync(fd_); });
  if (result != 0 && errno != EINVAL && errno != ENOTSUP) fail_spool("flush", path_, errno);
}

}  // namespace megalith
