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
    kAppend,     // creates it or appends
    kCreateNew,  // fails if it exists
  };

  // Creates the folder, too. UserError naming `option`.
  AppendFile(std::filesystem::path path, std::string option, Open open, Logger& log);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  // Cuts off a record that cannot be written whole (disk full); reports the first: "metrics_file run.jsonl: the line of
  // iteration 3 was not written: …".
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
