// Opens what others wrote, for reading.
//
// A name in a checkpoint, model folder or data set may lead to anything: a pipe without a writer would block us, and a
// device has no end. So only regular files are opened, and nothing waits for another process, even if a file is
// replaced meanwhile. Inputs that a person names and that are read once may be streams (`--config <(…)`, `prepare
// --input`). tests/style checks that other sources read files only through this file and core/file.h.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace megalith {

enum class InputKind {
  kFile,    // a regular file
  kStream,  // or a pipe (a line says so if its writer is awaited for a second), a terminal or /dev/null
};

// Closes itself. UserError with path and reason if it is missing, unreadable, a folder, pipe, socket or device.
class InputFile {
 public:
  explicit InputFile(const std::filesystem::path& path, InputKind kind = InputKind::kFile);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  int descriptor() const { return fd_; }
  int release();                         // the caller closes it
  size_t size() const { return size_; }  // the file system's: 0 for streams and for most of /proc

  // Reads at most out.size() bytes; 0 at the end. UserError if reading fails.
  size_t read(std::span<char> out);

 private:
  const std::filesystem::path path_;
  int fd_ = -1;
  size_t size_ = 0;
};

// Throws "cannot ACTION PATH: " with the system's words for errno, and what to do.
[[noreturn]] void fail_file(std::string_view action, const std::filesystem::path& path, int error_number);

// UserError unless an open file is regular: for files opened for reading and writing.
void require_regular_file(int descriptor, const std::filesystem::path& path);

// Everything until the end, or the first `most` bytes.
std::string read_stream(const std::filesystem::path& path, size_t most = SIZE_MAX);
std::string read_beginning(const std::filesystem::path& path, size_t most);

// A file in which the kernel or machine describes itself, at most 1 MiB; nothing if unreadable.
std::optional<std::string> try_read_facts(const std::filesystem::path& path);

}  // namespace megalith
