// Files: reading, memory mapping, and atomic, durable writing.
//
// Written files appear whole or not at all: a temporary name beside the target, fsync of data and folder, then rename.
// Failures are UserErrors with the path and the system's words.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace megalith {

std::string read_file(const std::filesystem::path& path);

// Replaces or creates `path`. Returns once the bytes are on disk; after a crash the file has the old or the new
// content.
void write_file_atomic(const std::filesystem::path& path, std::string_view content);
void write_file_atomic(const std::filesystem::path& path, std::span<const std::byte> content);

void sync_path(const std::filesystem::path& path);

// Creates the folder and its parents, durably.
void make_directories(const std::filesystem::path& path);

// Removes a file or a folder recursively; true if there was something. Links are removed, not followed.
bool remove_tree(const std::filesystem::path& path);

// Bytes that an ordinary user may still write on the file system of `path` or its nearest existing parent.
int64_t free_disk_bytes(const std::filesystem::path& path);

int64_t file_bytes(const std::filesystem::path& path);

// The system's text for an errno, without its number: "No such file or directory".
std::string system_error_text(int error_number);

// A file mapped read-only. The bytes stay valid until destruction even if the file is renamed or unlinked (but if it is
// truncated, reading raises SIGBUS, as with any mapping).
class MappedFile {
 public:
  enum class Access { kNormal, kSequential, kRandom, kWillNeed };

  MappedFile() = default;
  explicit MappedFile(const std::filesystem::path& path, Access access = Access::kNormal);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }
  size_t size() const { return size_; }
  const std::filesystem::path& path() const { return path_; }

  // Hints to the kernel how [offset, offset + length) will be read; never fails.
  void advise(Access access, size_t offset = 0, size_t length = SIZE_MAX) const;

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// A file written under a temporary name; commit() makes it appear. Without a commit the destructor removes it.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path target);
  ~AtomicFile();
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;

  // Buffered, so small pieces are fine.
  void append(std::span<const std::byte> bytes);
  void append(std::string_view text) { append(std::as_bytes(std::span(text))); }
  void append_raw(const void* data, size_t size) { append({static_cast<const std::byte*>(data), size}); }
  int64_t size() const { return size_; }

  // Writes the buffer and flushes it to disk under the temporary name. commit() calls it; call it first to make two
  // files durable before either appears.
  void flush();
  void commit();

  const std::filesystem::path& target() const { return target_; }

 private:
  void write_buffer();

  std::filesystem::path target_, temporary_;
  int fd_ = -1;
  int64_t size_ = 0;
  std::string buffer_;
};

// A folder built under a temporary name beside its target; commit() flushes everything in it and renames it. Without a
// commit the destructor removes it.
class AtomicDirectory {
 public:
  // Refuses an existing target, unless `replace`: then commit() exchanges the two and deletes the old one. If the file
  // system cannot exchange, the old one is moved aside first; see replaced_target().
  explicit AtomicDirectory(std::filesystem::path target, bool replace = false);
  ~AtomicDirectory();
  AtomicDirectory(const AtomicDirectory&) = delete;
  AtomicDirectory& operator=(const AtomicDirectory&) = delete;

  // A hidden name, so that readers of the parent do not take it for finished.
  const std::filesystem::path& path() const { return temporary_; }
  const std::filesystem::path& target() const { return target_; }
  void commit();

 private:
  std::filesystem::path target_, temporary_;
  bool replace_, is_committed_ = false;
};

// If the file system cannot exchange folders, a process killed during AtomicDirectory's replacement may leave the old
// folder under a hidden name. Returns the real name for such a name; "" for any other.
std::string replaced_target(std::string_view name);

}  // namespace megalith
