// An append-only work file; interrupted work resumes from a recorded length.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace megalith {

class SpoolFile {
 public:
  // Opens or creates the file, truncated to `size` bytes, for appending. UserError when it is shorter, or cannot be
  // written.
  SpoolFile(std::filesystem::path path, int64_t size);
  ~SpoolFile();
  SpoolFile(SpoolFile&& other) noexcept;
  SpoolFile& operator=(SpoolFile&&) = delete;

  // Buffered.
  void append(std::span<const std::byte> bytes);
  // Returns when everything appended is on disk.
  void sync();
  // Writes at any offset, also past what was appended. Thread-safe.
  void write_at(int64_t offset, std::span<const std::byte> bytes) const;
  // Appends all of this file to another.
  void copy_to(SpoolFile& other);
  void truncate(int64_t size);

  int64_t size() const { return size_; }  // including buffered bytes
  const std::filesystem::path& path() const { return path_; }

 private:
  void write_buffer();
  void write_through(std::span<const std::byte> bytes);

  std::filesystem::path path_;
  int fd_ = -1;
  int64_t size_ = 0;
  std::string buffer_;
};

}  // namespace megalith
