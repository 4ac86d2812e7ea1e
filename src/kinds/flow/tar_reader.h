// Reads the files of a tar archive, in order: ustar, with pax records and GNU's long names, optionally compressed
// (text_source.h), as in WebDataset. Skips folders, links and devices. Archives are untrusted: every header's checksum
// and size is checked before memory is allocated for it.
// Source: POSIX.1-2017, pax; GNU tar manual, "Basic Tar Format".
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "data/text_source.h"

namespace megalith {

// True if the text begins with the header of a tar archive.
bool is_tar(std::string_view beginning);

struct TarFile {
  std::string name;
  std::string bytes;
};

class TarReader {
 public:
  // name            of the archive, for messages
  // max_file_bytes  larger files are refused
  TarReader(std::unique_ptr<TextSource> archive, std::string name, int64_t max_file_bytes);

  // The next file; nothing at the end. UserError for a damaged or truncated archive.
  std::optional<TarFile> next();
  // Bytes of the archive, as stored, consumed so far.
  int64_t input_bytes() const { return archive_->input_bytes(); }

 private:
  struct Header {
    std::string name;
    int64_t size = 0;
    char type = '0';
  };
  struct Extension {  // of the next header
    std::optional<std::string> name;
    std::optional<int64_t> size;
  };

  std::optional<Header> next_header();
  void take_records(std::string_view records, Extension& extension) const;
  size_t read_fully(std::span<char> out);
  std::string content(int64_t size);
  void pass_over(int64_t size);
  [[noreturn]] void fail(std::string_view reason) const;

  std::unique_ptr<TextSource> archive_;
  std::string name_;
  int64_t max_file_bytes_;
  int64_t offset_ = 0;  // in the uncompressed archive
};

}  // namespace megalith
