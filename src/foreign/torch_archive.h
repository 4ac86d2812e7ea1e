// Files of torch.save: a zip file whose data.pkl holds the tree of values, and whose data/KEY are the bytes of
// storages, uncompressed. Also inside another file, as torch.distributed.checkpoint has one for each tensor.
//
// Opening reads the directory and the pickle; tensors are places in the mapped file. Files are untrusted: every place
// is checked to be within its storage, and every storage within its entry.
// Source: PyTorch, torch/serialization.py; PKWARE, APPNOTE.TXT.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "foreign/pickle.h"
#include "nn/placement.h"
#include "tensor_files/safetensors.h"

namespace megalith {

inline constexpr size_t kMostDims = 64;  // PyTorch's own limit

// A box of it.
FileTensor sub_tensor(const FileTensor& whole, const Box& box);

// A dtype in torch's words: torch.FloatStorage holds torch.float32.
struct TorchDtype {
  SafetensorsDtype dtype;
  std::string_view storage, name;
};
// UserError for those that torch.save has no word for.
const TorchDtype& torch_dtype(SafetensorsDtype dtype);

class TorchArchive {
 public:
  explicit TorchArchive(const std::filesystem::path& path);
  // Bytes [offset, offset + length) of the file. what: for errors.
  TorchArchive(std::shared_ptr<const MappedFile> file, int64_t offset, int64_t length, std::string what);

  const PickleValue& root() const { return pickle_->root(); }
  const Pickle& pickle() const { return *pickle_; }
  const std::string& what() const { return what_; }

  // Null for a value that is no tensor. UserError for a tensor that does not fit its storage, or of another dtype than
  // the ones that we read.
  std::optional<FileTensor> tensor(const PickleValue& value) const;
  // A number, or the one element of a tensor.
  std::optional<double> number(const PickleValue& value) const;

 private:
  struct Entry {
    int64_t offset = 0, size = 0;  // in the file
  };

  void read_directory(int64_t offset, int64_t length);
  [[noreturn]] void fail(const std::string& reason) const;
  std::string_view text(const Entry& entry) const;

  std::shared_ptr<const MappedFile> file_;
  std::string what_;
  std::map<std::string, Entry, std::less<>> entries_;  // below the archive's own folder
  std::unique_ptr<Pickle> pickle_;
};

// True if the bytes begin as a zip file does.
bool is_zip(std::string_view bytes);

}  // namespace megalith
