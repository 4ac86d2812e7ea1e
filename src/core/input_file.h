// Opening what somebody else wrote, for reading.
//
// A name in a checkpoint, a model folder or a data set may lead to anything: a pipe that nobody writes to would keep us
// waiting, and a device has no end. So only regular files are opened, and nothing here waits for another process, even
// if a file is replaced meanwhile.
// Inputs that a person names, and that are read once from beginning to end, may be streams (`--config <(…)`,
// `prepare --input`). tests/style checks that the other sources read files only through this file and core/file.h.
//
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
  kStream,  // or a pipe, whose writer is waited for, which a line tells after a second; a terminal or /dev/null
};

// A descriptor that closes itself. UserError with the path and the reason: it is not there, may not be read, or is a
// folder, a pipe, a socket or a device.
class InputFile {
 public:
  explicit InputFile(const std::filesystem::path& path, InputKind kind = InputKind::kFile);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  int descriptor() const { return fd_; }
  int release();                         // the caller closes it
  size_t size() const { return size_; }  // as the file system has it: 0 for streams and for most of /proc

  // What comes next, at most as much as `out` holds; 0 at the end. UserError when reading fails.
  size_t read(std::span<char> out);

 private:
  const std::filesystem::path path_;
  int fd_ = -1;
  size_t size_ = 0;
};

// Throws "cannot ACTION PATH: " with the system's words for errno, and what to do.
[[noreturn]] void fail_file(std::string_view action, const std::filesystem::path& path, int error_number);

// UserError unless an open file is a regular one: for files that are opened to be read and written.
void require_regular_file(int descriptor, const std::filesystem::path& path);

// Everything until the end, or the first `most` bytes.
std::string read_stream(const std::filesystem::path& path, size_t most = SIZE_MAX);
std::string read_beginning(const std::filesystem::path& path, size_t most);

// A file in which the kernel or the machine describes itself, at most 1 MiB of it; nothing when it cannot be read.
std::optional<std::string> try_read_facts(const std::filesystem::path& path);

}  // namespace megalith
