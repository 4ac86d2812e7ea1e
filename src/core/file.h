// Files: reading, mapping, and atomic, durable writing by fsync and rename. Failures are UserErrors with path and
// reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace megalith {

std::string read_file(const std::filesystem::path& path);

// Returns once on disk; a crash leaves the old or the new content.
void write_file_atomic(const std::filesystem::path& path, std::string_view content);
void write_file_atomic(const std::filesystem::path& path, std::span<const std::byte> content);

void sync_path(const std::filesystem::path& path);

// With parents, durably.
void make_directories(const std::filesystem::path& path);

// Recursive; true if something was there. Does not follow links.
bool remove_tree(const std::filesystem::path& path);

// For ordinary users, at `path` or its nearest existing parent.
int64_t free_disk_bytes(const std::filesystem::path& path);

int64_t file_bytes(const std::filesystem::path& path);

// "No such file or directory".
std::string system_error_text(int error_number);

// A read-only mapping, valid even after rename or unlink; reads raise SIGBUS if the file is truncated.
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

  // A hint for [offset, offset + length); never fails.
  void advise(Access access, size_t offset = 0, size_t length = SIZE_MAX) const;

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// Appears at commit(); otherwise the destructor removes it.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path target);
  ~AtomicFile();
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;

  // Buffered.
  void append(std::span<const std::byte> bytes);
  void append(std::string_view text) { append(std::as_bytes(std::span(text))); }
  void append_raw(const void* data, size_t size) { append({static_cast<const std::byte*>(data), size}); }
  int64_t size() const { return size_; }

  // Makes the temporary file durable, as commit() does. Call first to make two files durable before either appears.
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

// A folder that appears at commit(), which flushes everything in it; otherwise the destructor removes it.
class AtomicDirectory {
 public:
  // UserError if the target exists, unless `replace`: commit() then exchanges the two and deletes the old one. File
  // systems that cannot exchange: see replaced_target().
  explicit AtomicDirectory(std::filesystem::path target, bool replace = false);
  ~AtomicDirectory();
  AtomicDirectory(const AtomicDirectory&) = delete;
  AtomicDirectory& operator=(const AtomicDirectory&) = delete;

  // Hidden: readers of the parent must not take it for finished.
  const std::filesystem::path& path() const { return temporary_; }
  const std::filesystem::path& target() const { return target_; }
  void commit();

 private:
  std::filesystem::path target_, temporary_;
  bool replace_, is_committed_ = false;
};

// The target of a hidden name under which a process killed between AtomicDirectory's renames left the old folder; ""
// for other names.
std::string replaced_target(std::string_view name);

}  // namespace megalith
