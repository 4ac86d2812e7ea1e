// Opens files that others wrote. A name in a checkpoint or data set may lead anywhere: a pipe may block, a device has
// no end. So only regular files are opened, without waiting. Inputs named by the user and read once may be streams
// (`--config <(…)`). tests/style checks that sources read files only through here and core/file.h.
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
  kFile,    // regular
  kStream,  // also pipes (waiting over a second prints a line), terminals, /dev/null
};

// UserError if missing, unreadable, a folder, pipe, socket or device.
class InputFile {
 public:
  explicit InputFile(const std::filesystem::path& path, InputKind kind = InputKind::kFile);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  int descriptor() const { return fd_; }
  int release();                         // the caller closes it
  size_t size() const { return size_; }  // 0 for streams and most of /proc

  // At most out.size() bytes; 0 at the end.
  size_t read(std::span<char> out);

 private:
  const std::filesystem::path path_;
  int fd_ = -1;
  size_t size_ = 0;
};

// "cannot ACTION PATH: reason", with a remedy.
[[noreturn]] void fail_file(std::string_view action, const std::filesystem::path& path, int error_number);

// For files opened to read and write.
void require_regular_file(int descriptor, const std::filesystem::path& path);

// Up to the end, or `most` bytes.
std::string read_stream(const std::filesystem::path& path, size_t most = SIZE_MAX);
std::string read_beginning(const std::filesystem::path& path, size_t most);

// At most 1 MiB; null if unreadable.
std::optional<std::string> try_read_facts(const std::filesystem::path& path);

}  // namespace megalith
