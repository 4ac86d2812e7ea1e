// Folders of torch.distributed.checkpoint: .metadata lists tensors with the boxes that ranks wrote, and other objects;
// __RANK_NUMBER.distcp files hold a torch.save archive of each box. Megatron-core's torch_dist is the same, with
// tensors that were flattened before 0.15 described beside.
//
// Opening reads .metadata; an archive is opened when its tensor is asked for.
// Source: PyTorch, torch/distributed/checkpoint/{metadata,filesystem}.py; megatron-core 0.14,
// dist_checkpointing/strategies/torch.py (TensorReformulationMetadata).
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "foreign/foreign_tensor.h"
#include "foreign/torch_archive.h"

namespace megalith {

class DcpFolder {
 public:
  // UserError if .metadata is missing, damaged or asks for foreign classes.
  explicit DcpFolder(std::filesystem::path folder);

  const std::filesystem::path& folder() const { return folder_; }
  // Names and whole shapes of tensors; names of objects.
  const std::map<std::string, std::vector<int64_t>, std::less<>>& tensors() const { return shapes_; }
  bool has_object(std::string_view name) const { return objects_.contains(name); }
  std::vector<std::string> objects() const;

  // UserError if a file is missing, or holds another box than .metadata says.
  ForeignTensor tensor(const std::string& name) const;
  // An object that was no tensor.
  std::unique_ptr<TorchArchive> object(const std::string& name) const;

 private:
  struct Item {
    std::string file;
    int64_t offset = 0, length = 0;
  };
  struct Chunk {
    Box box;
    Item item;
  };

  void read_items(const PickleValue& storage, const std::string& where);
  std::shared_ptr<const MappedFile> file_of(const Item& item) const;
  std::unique_ptr<TorchArchive> open(const Item& item, const std::string& name) const;
  void add_shards(ForeignTensor& tensor, const Chunk& chunk, FileTensor stored) const;

  std::filesystem::path folder_;
  std::map<std::string, std::vector<int64_t>, std::less<>> shapes_;
  std::map<std::string, std::vector<Chunk>, std::less<>> chunks_;
  std::map<std::string, Item, std::less<>> objects_;
  std::map<std::string, std::vector<int64_t>, std::less<>> flattened_;  // stored shapes, if they differ
  mutable std::map<std::string, std::shared_ptr<const MappedFile>, std::less<>> files_;
};

bool is_dcp_folder(const std::filesystem::path& folder);

}  // namespace megalith
