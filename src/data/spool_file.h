// A file that grows during a long piece of work. Work that was broken off goes on from a length that was noted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace megalith {

class SpoolFile {
 public:
  // Opens or creates the file for appending behind its first `size` bytes; what lies beyond is cut off. UserError when
  // it has fewer, or cannot be written.
  SpoolFile(std::filesystem::path path, int64_t size);
  ~SpoolFile();
  SpoolFile(SpoolFile&& other) noexcept;
  SpoolFile& operator=(SpoolFile&&) = delete;

  // Buffered, so small pieces are fine.
  void append(std::span<const std::byte> bytes);
  // Returns when all that was appended is on disk.
  void sync();
  // Writes at a place of the file, past what was appended or not: for files that are written in any order. Safe from
  // several threads.
  void write_at(int64_t offset, std::span<const std::byte> bytes) const;
  // Appends all of this file to another.
  void copy_to(SpoolFile& other);
  // Cuts off what lies beyond `size`.
  void truncate(int64_t size);

  int64_t size() const { return size_; }  // with what is buffered
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
