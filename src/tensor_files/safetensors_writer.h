// Writing safetensors: the layout is fixed from names, dtypes and shapes before any data exists, then bytes go to their
// places in any order and from any number of processes that see the file.
//
// As the reference writer does: tensors by dtype (the widest alignment first), then by name, and a header padded to
// a multiple of 8, so all data is aligned. "__metadata__" always says {"format": "pt"}: transformers refuses files
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
  std::string header;  // with its length in front
  std::map<std::string, SafetensorsTensor, std::less<>> tensors;
  int64_t num_bytes = 0;  // of the whole file
};

// InternalError when a name appears twice or is "__metadata__".
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
