// A file of records, each appended with one write: whole or not at all.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace megalith {

class Logger;

class AppendFile {
 public:
  enum class Open {
    kAppend,     // creates the file or appends to it
    kCreateNew,  // fails if the file exists
  };

  // Creates the folder and opens the file. UserError naming `option` on failure.
  AppendFile(std::filesystem::path path, std::string option, Open open, Logger& log);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  // A record that cannot be written whole (disk full) is cut off again; the first one is reported as "metrics_file
  // run.jsonl: the line of iteration 3 was not written: …".
  void append(std::string_view record, std::string_view what);

  const std::filesystem::path& path() const { return path_; }
  int descriptor() const { return fd_; }  // open for reading and writing

 private:
  std::filesystem::path path_;
  std::string option_;
  Logger& log_;
  int fd_ = -1;
  bool has_warned_ = false;
};

}  // namespace megalith
