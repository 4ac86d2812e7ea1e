#include "foreign/dcp.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

constexpr const char* kMetadata = ".metadata";
const char* const kDcpRemedy = "the checkpoint is damaged or incomplete: copy the whole folder, or use another";

std::vector<int64_t> sizes_in(const PickleValue* value, const std::string& where) {
  const bool is_list = value != nullptr && value->items.size() <= kMostDims;
  const auto numbers = is_list ? value->whole_numbers() : std::nullopt;
  if (!numbers) throw UserError(fmt::format("{}: sizes are missing", where), kDcpRemedy);
  int64_t elements = 1;
  for (const int64_t number : *numbers) {
    if (number < 0) throw UserError(fmt::format("{}: a size is negative", where), kDcpRemedy);
    if (__builtin_mul_overflow(elements, std::max<int64_t>(number, 1), &elements)) {
      throw UserError(fmt::format("{}: sizes are too large", where), kDcpRemedy);
    }
  }
  return *numbers;
}

const PickleValue& member(const PickleValue& value, std::string_view name, const std::string& where) {
  const PickleValue* found = value.find(name);
  if (found == nullptr) throw UserError(fmt::format("{}: {} is missing", where, name), kDcpRemedy);
  return *found;
}

std::string text_of(const PickleValue& value) {
  return value.is(PickleValue::Kind::kText) ? std::string(value.text) : "";
}

}  // namespace

bool is_dcp_folder(const fs::path& folder) { return fs::exists(folder / kMetadata); }

DcpFolder::DcpFolder(fs::path folder) : folder_(std::move(folder)) {
  const MappedFile file(folder_ / kMetadata);
  const std::string where = (folder_ / kMetadata).string();
  const Pickle pickle(file.text(), where);
  const PickleValue& metadata = pickle.root();
  if (!metadata.is(PickleValue::Kind::kObject)) throw UserError(fmt::format("{} holds no Metadata", where), kDcpRemedy);
  std::vector<std::string> objects;
  member(metadata, "state_dict_metadata", where).for_each_entry([&](const PickleValue& key, const PickleValue& value) {
    std::string name = text_of(key);
    if (value.find("chunks") != nullptr) {
      shapes_[name] = sizes_in(value.find("size"), where + ": " + name);
    } else {
      objects.push_back(std::move(name));
    }
  });
  read_items(member(metadata, "storage_data", where), where);
  for (const std::string& name : objects) {
    if (!objects_.contains(name)) throw UserError(fmt::format("{}: {} is in no file", where, name), kDcpRemedy);
  }
  // Boxes have extents only here.
  member(metadata, "state_dict_metadata", where).for_each_entry([&](const PickleValue& key, const PickleValue& value) {
    const PickleValue* listed = value.find("chunks");
    if (listed == nullptr) return;
    const std::string name = text_of(key), what = where + ": " + name;
    std::map<std::vector<int64_t>, std::vector<int64_t>> extents;
    for (const PickleValue* chunk : listed->items) {
      extents[sizes_in(chunk->find("offsets"), what)] = sizes_in(chunk->find("sizes"), what);
    }
    const std::vector<int64_t>& shape = shapes_[name];
    for (Chunk& chunk : chunks_[name]) {
      const auto found = extents.find(chunk.box.offset);
      bool fits = found != extents.end() && found->second.size() == shape.size() && found->first.size() == shape.size();
      if (fits) chunk.box.extent = found->second;
      for (size_t d = 0; fits && d < shape.size(); ++d) fits = chunk.box.offset[d] <= shape[d] - chunk.box.extent[d];
      if (!fits) throw UserError(fmt::format("{}: boxes and files do not agree", what), kDcpRemedy);
      extents.erase(found);
    }
    if (!extents.empty()) throw UserError(fmt::format("{}: {} boxes are in no file", what, extents.size()), kDcpRemedy);
  });
  const PickleValue* flattened = metadata.find("mcore_data");
  if (flattened == nullptr) return;
  flattened->for_each_entry([&](const PickleValue& key, const PickleValue& value) {
    const PickleValue* original = value.find("nd_reformulated_orig_global_shape");
    const auto found = shapes_.find(text_of(key));
    if (original == nullptr || original->is(PickleValue::Kind::kNone) || found == shapes_.end()) return;
    flattened_[found->first] = std::exchange(found->second, sizes_in(original, where + ": " + found->first));
  });
}

void DcpFolder::read_items(const PickleValue& storage, const std::string& where) {
  storage.for_each_entry([&](const PickleValue& index, const PickleValue& info) {
    const PickleValue& fqn = member(index, "fqn", where);
    const std::string name = text_of(fqn), what = where + ": " + name;
    const PickleValue* offset = info.find("offset");
    const PickleValue* length = info.find("length");
    const PickleValue* transforms = info.find("transform_descriptors");
    Item item{.file = text_of(member(info, "relative_path", what))};
    if (transforms != nullptr && !transforms->items.empty()) {
      const std::string name_of_it = text_of(*transforms->items[0]);
      throw UserError(fmt::format("{} is stored transformed ({}), which is not read", what, name_of_it),
                      "save without extensions of the storage writer");
    }
    // Must not lead to other folders.
    if (item.file.empty() || fs::path(item.file).filename() != item.file || item.file == "." || item.file == "..") {
      throw UserError(fmt::format("{}: '{}' is not the name of a file in this folder", what, item.file), kDcpRemedy);
    }
    if (offset == nullptr || length == nullptr || !offset->whole() || !length->whole()) {
      throw UserError(fmt::format("{} has no place in {}", what, item.file), kDcpRemedy);
    }
    item.offset = *offset->whole();
    item.length = *length->whole();
    if (shapes_.contains(name)) {
      const PickleValue* box = index.find("offset");
      const bool has_box = box != nullptr && !box->is(PickleValue::Kind::kNone);
      const std::vector<int64_t> at = has_box ? sizes_in(box, what) : std::vector<int64_t>(shapes_[name].size());
      chunks_[name].push_back({.box = {.offset = at, .extent = {}}, .item = std::move(item)});
    } else {
      objects_[name] = std::move(item);
    }
  });
}

std::vector<std::string> DcpFolder::objects() const {
  std::vector<std::string> names;
  for (const auto& [name, item] : objects_) names.push_back(name);
  return names;
}

std::shared_ptr<const MappedFile> DcpFolder::file_of(const Item& item) const {
  std::shared_ptr<const MappedFile>& file = files_[item.file];
  if (file != nullptr) return file;
  if (!fs::exists(folder_ / item.file)) {
    throw UserError(fmt::format("{} is missing", (folder_ / item.file).string()),
                    "a rank's file was not copied: copy the whole folder");
  }
  file = std::make_shared<const MappedFile>(folder_ / item.file);
  return file;
}

std::unique_ptr<TorchArchive> DcpFolder::open(const Item& item, const std::string& name) const {
  return std::make_unique<TorchArchive>(file_of(item), item.offset, item.length,
                                        fmt::format("{}: {}", (folder_ / item.file).string(), name));
}

// A run [begin, end) of a flattened tensor becomes boxes of the real one. The stored shape is the number of local
// tensors along each dim, and their elements.
void DcpFolder::add_shards(ForeignTensor& tensor, const Chunk& chunk, FileTensor stored) const {
  const auto flattened = flattened_.find(tensor.name);
  if (flattened == flattened_.end()) {
    tensor.shards.push_back({chunk.box, std::move(stored)});
    return;
  }
  const size_t dims = tensor.shape.size();
  const auto fail = [&] {
    throw UserError(fmt::format("{}: {} [{}] is stored flattened as [{}], which does not fit", folder_.string(),
                                tensor.name, fmt::join(tensor.shape, ", "), fmt::join(flattened->second, ", ")),
                    kDcpRemedy);
  };
  const std::vector<int64_t>& counts = flattened->second;
  if (counts.size() != dims + 1) fail();
  Box local;
  for (size_t d = 0; d < dims; ++d) {
    if (counts[d] <= 0 || tensor.shape[d] % counts[d] != 0 || chunk.box.extent[d] != 1) fail();
    local.extent.push_back(tensor.shape[d] / counts[d]);
    local.offset.push_back(chunk.box.offset[d] * local.extent[d]);
  }
  const int64_t element = bits_of(stored.dtype) / 8;
  if (local.num_elements() != counts[dims] || stored.num_bytes != chunk.box.num_elements() * element) fail();
  for (ForeignTensor::Shard& shard : shards_of_run(local.extent, chunk.box.offset[dims], stored)) {
    for (size_t d = 0; d < dims; ++d) shard.box.offset[d] += local.offset[d];
    tensor.shards.push_back(std::move(shard));
  }
}

ForeignTensor DcpFolder::tensor(const std::string& name) const {
  const auto shape = shapes_.find(name);
  MEGALITH_CHECK(shape != shapes_.end(), "{} is not in {}", name, folder_.string());
  ForeignTensor tensor{.name = name, .shape = shape->second, .shards = {}};
  const auto chunks = chunks_.find(name);
  if (chunks == chunks_.end()) return tensor;  // without elements
  for (const Chunk& chunk : chunks->second) {
    const auto archive = open(chunk.item, name);
    auto stored = archive->tensor(archive->root());
    if (!stored || stored->shape != chunk.box.extent) {
      throw UserError(fmt::format("{} holds {}, expected a tensor [{}]", archive->what(),
                                  stored ? fmt::format("a tensor [{}]", fmt::join(stored->shape, ", ")) : "no tensor",
                                  fmt::join(chunk.box.extent, ", ")),
                      kDcpRemedy);
    }
    add_shards(tensor, chunk, std::move(*stored));
  }
  return tensor;
}

std::unique_ptr<TorchArchive> DcpFolder::object(const std::string& name) const {
  const auto found = objects_.find(name);
  MEGALITH_CHECK(found != objects_.end(), "{} is not in {}", name, folder_.string());
  return open(found->second, name);
}

}  // namespace megalith
