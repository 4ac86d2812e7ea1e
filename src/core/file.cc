#include "core/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/input_file.h"
#include "core/release_pages.h"
#include "core/system_call.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

// For writing; input_file.h has the reading one.
class Descriptor {
 public:
  Descriptor(const fs::path& path, int flags, mode_t mode, std::string_view action)
      : fd_(retry_interrupted([&] { return ::open(path.c_str(), flags | O_CLOEXEC, mode); })) {
    if (fd_ < 0) fail_file(action, path, errno);
  }
  ~Descriptor() {
    if (fd_ >= 0) close_descriptor(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

void write_all(int fd, const std::byte* data, size_t size, const fs::path& path) {
  while (size > 0) {
    const ssize_t written = retry_interrupted([&] { return ::write(fd, data, size); });
    if (written < 0) fail_file("write", path, errno);
    data += written;
    size -= static_cast<size_t>(written);
  }
}

void sync_descriptor(int fd, const fs::path& path) {
  // EINVAL: some file systems cannot flush folders.
  if (retry_interrupted([&] { return ::fsync(fd); }) != 0 && errno != EINVAL && errno != ENOTSUP)
    fail_file("flush", path, errno);
}

fs::path parent_of(const fs::path& path) {
  const fs::path parent = path.parent_path();
  return parent.empty() ? fs::path(".") : parent;
}

constexpr std::string_view kTemporaryMark = ".tmp-", kReplacedSuffix = ".old";

// Process and address distinguish threads, the clock machines that share a file system.
fs::path temporary_beside(const fs::path& target, const void* owner) {
  const auto ticks = std::chrono::system_clock::now().time_since_epoch().count();
  return parent_of(target) / fmt::format(".{}{}{}-{:x}-{:x}", target.filename().string(), kTemporaryMark, ::getpid(),
                                         reinterpret_cast<uintptr_t>(owner), ticks);
}

// NFS and FUSE may refuse a removal that succeeds on retry.
std::error_code remove_all_of(const fs::path& path, bool* was_there = nullptr) {
  constexpr int kMostAttempts = 3;
  std::error_code error;
  for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
    error = retry_interrupted([&] {
      std::error_code code;
      const auto removed = fs::remove_all(path, code);
      if (was_there != nullptr && removed != static_cast<std::uintmax_t>(-1)) *was_there = *was_there || removed > 0;
      return code;
    });
    if (!error) break;
  }
  return error;
}

bool try_rename(const fs::path& from, const fs::path& to, unsigned flags = 0) noexcept {
  return retry_interrupted([&] { return ::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags); }) == 0;
}

template <typename Iterator>
std::vector<fs::directory_entry> entries_of(const fs::path& folder) {
  std::vector<fs::directory_entry> entries;
  const std::error_code error = retry_interrupted([&] {
    entries.clear();
    std::error_code code;
    for (Iterator entry(folder, code), end; !code && entry != end; entry.increment(code)) entries.push_back(*entry);
    return code;
  });
  if (error) fail_file("read", folder, error.value());
  return entries;
}

// AddressSanitizer does not watch mappings: copies files to exact-size memory, except large (sparse) test files.
constexpr bool is_copied(size_t size) {
#if defined(__SANITIZE_ADDRESS__)
  return size <= size_t{64} << 20;
#else
  return false;
#endif
}

// Returns where the old target is now; empty if there was none.
fs::path put_in_place(const fs::path& temporary, const fs::path& target, bool replace) {
  if (!replace || !fs::exists(target)) {
    rename_path(temporary, target);
    return {};
  }
  if (try_rename(temporary, target, RENAME_EXCHANGE)) return temporary;  // the target always exists
  // No exchange here, and a non-empty folder cannot be renamed over: the old one gets an identifying name first.
  fs::path old = temporary;
  old += kReplacedSuffix;
  remove_tree(old);
  rename_path(target, old);
  try {
    rename_path(temporary, target);
  } catch (...) {
    try_rename(old, target);
    throw;
  }
  return old;
}

// Best effort.
void take_back(const fs::path& temporary, const fs::path& target, const fs::path& old) noexcept {
  if (old == temporary) {
    try_rename(temporary, target, RENAME_EXCHANGE);
  } else if (try_rename(target, temporary) && !old.empty()) {
    try_rename(old, target);
  }
}

fs::path without_trailing_slash(fs::path path) { return path.has_filename() ? path : path.parent_path(); }

}  // namespace

std::string system_error_text(int error_number) { return std::generic_category().message(error_number); }

int close_descriptor(int fd) { return ::close(fd) == 0 || errno == EINTR ? 0 : errno; }

void rename_path(const fs::path& from, const fs::path& to) {
  if (retry_interrupted([&] { return ::rename(from.c_str(), to.c_str()); }) != 0) {
    fail_file("rename " + from.string() + " to", to, errno);
  }
}

std::vector<fs::directory_entry> list_folder(const fs::path& folder) {
  return entries_of<fs::directory_iterator>(folder);
}

std::vector<fs::directory_entry> list_tree(const fs::path& folder) {
  return entries_of<fs::recursive_directory_iterator>(folder);
}

bool try_remove_tree(const fs::path& path) noexcept {
  try {
    return !remove_all_of(path);
  } catch (...) {  // out of memory
    return false;
  }
}

std::string read_file(const fs::path& path) { return read_beginning(path, SIZE_MAX); }

void write_file_atomic(const fs::path& path, std::span<const std::byte> content) {
  AtomicFile file(path);
  file.append(content);
  file.commit();
}

void write_file_atomic(const fs::path& path, std::string_view content) {
  write_file_atomic(path, std::as_bytes(std::span(content)));
}

void sync_path(const fs::path& path) {
  const Descriptor file(path, O_RDONLY | O_NONBLOCK, 0, "open");  // O_NONBLOCK: a pipe must not block
  sync_descriptor(file.get(), path);
}

void make_directories(const fs::path& path) {
  std::error_code ignored;
  std::vector<fs::path> missing;
  for (fs::path folder = without_trailing_slash(path); !folder.empty() && !fs::exists(folder, ignored);
       folder = folder.parent_path()) {
    missing.push_back(folder);
  }
  const std::error_code error = retry_interrupted([&] {
    std::error_code code;
    fs::create_directories(path, code);
    return code;
  });
  if (error) fail_file("create the folder", path, error.value());
  // Else a power failure loses what is flushed inside.
  for (const fs::path& folder : missing) {
    const fs::path parent = parent_of(folder);
    if (::access(parent.c_str(), R_OK) == 0) sync_path(parent);  // writable folders may be unreadable
  }
}

bool remove_tree(const fs::path& path) {
  bool was_there = false;
  if (const std::error_code error = remove_all_of(path, &was_there)) fail_file("remove", path, error.value());
  return was_there;
}

int64_t free_disk_bytes(const fs::path& path) {
  fs::path existing = fs::absolute(path);
  while (!fs::exists(existing) && existing.has_relative_path()) existing = existing.parent_path();
  struct statvfs info {};
  if (retry_interrupted([&] { return ::statvfs(existing.c_str(), &info); }) != 0)
    fail_file("ask for the free space of", existing, errno);
  return static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize);
}

int64_t file_bytes(const fs::path& path) {
  struct stat info {};
  if (retry_interrupted([&] { return ::stat(path.c_str(), &info); }) != 0) fail_file("open", path, errno);
  if (S_ISDIR(info.st_mode)) fail_file("read", path, EISDIR);
  return info.st_size;
}

MappedFile::MappedFile(const fs::path& path, Access access) : path_(path) {
  const InputFile file(path);
  size_ = file.size();
  if (size_ == 0) return;  // mmap refuses an empty range
  if (is_copied(size_)) {
    auto copy = std::make_unique<std::byte[]>(size_);
    for (size_t done = 0; done < size_;) {
      const ssize_t count = retry_interrupted(
          [&] { return ::pread(file.descriptor(), copy.get() + done, size_ - done, static_cast<off_t>(done)); });
      if (count < 0) fail_file("read", path, errno);
      if (count == 0) break;  // truncated meanwhile: zeros instead of SIGBUS
      done += static_cast<size_t>(count);
    }
    data_ = copy.release();
    return;
  }
  void* address = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.descriptor(), 0);
  if (address == MAP_FAILED) fail_file("map", path, errno);
  data_ = static_cast<const std::byte*>(address);
  if (access != Access::kNormal) advise(access);
}

MappedFile::~MappedFile() {
  if (data_ == nullptr) return;
  if (is_copied(size_)) {
    delete[] data_;
  } else {
    ::munmap(const_cast<std::byte*>(data_), size_);
  }
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void MappedFile::advise(Access access, size_t offset, size_t length) const {
  if (data_ == nullptr || offset >= size_ || is_copied(size_)) return;
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t start = offset / page * page;
  const size_t end = length > size_ - offset ? size_ : offset + length;
  int advice = POSIX_MADV_NORMAL;
  if (access == Access::kSequential) advice = POSIX_MADV_SEQUENTIAL;
  if (access == Access::kRandom) advice = POSIX_MADV_RANDOM;
  if (access == Access::kWillNeed) advice = POSIX_MADV_WILLNEED;
  ::posix_madvise(const_cast<std::byte*>(data_) + start, end - start, advice);
}

void release_pages(const MappedFile& file, int64_t offset, int64_t length) {
  if (file.size() == 0 || is_copied(file.size())) return;
  const auto page = static_cast<int64_t>(::sysconf(_SC_PAGESIZE)), begin = offset / page * page;
  // posix_madvise's own does nothing.
  ::madvise(const_cast<std::byte*>(file.bytes().data()) + begin, static_cast<size_t>(offset + length - begin),
            MADV_DONTNEED);
}

AtomicFile::AtomicFile(fs::path target) : target_(std::move(target)), temporary_(temporary_beside(target_, this)) {
  make_directories(parent_of(target_));
  fd_ = Descriptor(temporary_, O_WRONLY | O_CREAT | O_TRUNC, 0666, "create").release();
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : target_(std::move(other.target_)),
      temporary_(std::exchange(other.temporary_, {})),
      fd_(std::exchange(other.fd_, -1)),
      size_(other.size_),
      buffer_(std::move(other.buffer_)) {}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) close_descriptor(fd_);
  if (!temporary_.empty()) try_remove_tree(temporary_);
}

void AtomicFile::append(std::span<const std::byte> bytes) {
  constexpr size_t kBufferBytes = size_t{1} << 20;
  MEGALITH_CHECK(fd_ >= 0, "{} was committed already", target_.string());
  size_ += static_cast<int64_t>(bytes.size());
  if (buffer_.size() + bytes.size() < kBufferBytes) {
    buffer_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return;
  }
  write_buffer();
  write_all(fd_, bytes.data(), bytes.size(), target_);
}

void AtomicFile::write_buffer() {
  write_all(fd_, reinterpret_cast<const std::byte*>(buffer_.data()), buffer_.size(), target_);
  buffer_.clear();
}

void AtomicFile::flush() {
  write_buffer();
  sync_descriptor(fd_, target_);
}

void AtomicFile::commit() {
  MEGALITH_CHECK(fd_ >= 0, "{} was committed already", target_.string());
  flush();
  if (const int error = close_descriptor(std::exchange(fd_, -1))) fail_file("write", target_, error);
  rename_path(temporary_, target_);
  temporary_.clear();
  sync_path(parent_of(target_));
}

std::string replaced_target(std::string_view name) {
  const size_t end = name.rfind(kTemporaryMark);
  if (!name.starts_with('.') || !name.ends_with(kReplacedSuffix) || end == std::string_view::npos) return "";
  return std::string(name.substr(1, end - 1));
}

AtomicDirectory::AtomicDirectory(fs::path target, bool replace)
    : target_(without_trailing_slash(std::move(target))),
      temporary_(temporary_beside(target_, this)),
      replace_(replace) {
  if (!replace && fs::exists(target_)) {
    throw UserError(fmt::format("{} exists already", target_.string()), "remove it or choose another name");
  }
  remove_tree(temporary_);
  try {
    make_directories(temporary_);
  } catch (...) {  // a throwing constructor runs no destructor
    try_remove_tree(temporary_);
    throw;
  }
}

AtomicDirectory::~AtomicDirectory() {
  if (!is_committed_) try_remove_tree(temporary_);
}

// If it throws, restores the target, best effort.
void AtomicDirectory::commit() {
  MEGALITH_CHECK(!is_committed_, "{} was committed already", target_.string());
  for (const fs::directory_entry& entry : list_tree(temporary_)) {
    if (!entry.is_symlink()) sync_path(entry.path());
  }
  sync_path(temporary_);
  const fs::path old = put_in_place(temporary_, target_, replace_);
  try {
    sync_path(parent_of(target_));
  } catch (...) {
    take_back(temporary_, target_, old);
    throw;
  }
  is_committed_ = true;
  // The new folder is complete, even if this fails.
  if (!old.empty()) try_remove_tree(old);
}

}  // namespace megalith
