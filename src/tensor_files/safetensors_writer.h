// Writes safetensors: names, dtypes and shapes fix the layout beforehand; bytes are then written in any order and from
// any number of processes that share the file.
//
// As in the reference writer, tensors are sorted by dtype (widest alignment first), then name, and the header is padded
// to a multiple of 8, so all data is aligned. "__metadata__" always says {"format": "pt"}: transformers refuses files
// without.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensor_files/safetensors.h"

namespace megalith {

struct SafetensorsEntry {
  std::string name;
  SafetensorsDtype dtype = SafetensorsDtype::kF32;
  std::vector<int64_t> shape;
};

struct SafetensorsLayout {
  std::string header;  // including its length
  std::map<std::string, SafetensorsTensor, std::less<>> tensors;
  int64_t num_bytes = 0;  // of the whole file
};

// InternalError if a name is duplicate or "__metadata__".
SafetensorsLayout make_safetensors_layout(std::vector<SafetensorsEntry> entries,
                                          const std::map<std::string, std::string>& metadata = {});

class SafetensorsWriter {
 public:
  enum class Mode {
    kCreate,  // creates the file in its full size and writes the header
    kJoin,    // another process created it with the same layout
  };
  SafetensorsWriter(std::filesystem::path path, SafetensorsLayout layout, Mode mode = Mode::kCreate);
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  // Bytes [offset, offset + bytes.size()) of one tensor's data; each byte is written once.
  void write(std::string_view name, int64_t offset, std::span<const std::byte> bytes);
  // Flushes to disk and closes.
  void finish();

  const SafetensorsLayout& layout() const { return layout_; }
  int64_t data_bytes_written() const { return data_bytes_written_; }

 private:
  void write_at(int64_t offset, std::span<const std::byte> bytes);

  std::filesystem::path path_;
  SafetensorsLayout layout_;
  int fd_ = -1;
  int64_t data_bytes_written_ = 0;
};

}  // namespace megalith
