#include "checkpoint/tensor_store.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "checkpoint/mxfp4.h"
#include "core/error.h"
#include "core/json.h"
#include "storage/object_mirror.h"
#include "tensor_files/outline.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

// "a, b and 3 more".
std::string shortened(const std::vector<std::string>& items, size_t num_shown = 5) {
  if (items.size() <= num_shown) return fmt::format("{}", fmt::join(items, ", "));
  return fmt::format("{} and {} more",
                     fmt::join(items.begin(), items.begin() + static_cast<ptrdiff_t>(num_shown), ", "),
                     items.size() - num_shown);
}

void add_file(TensorStore& store, const fs::path& path, std::set<std::string>* names = nullptr) {
  const auto file = std::make_shared<const SafetensorsFile>(path);
  for (const auto& [name, tensor] : file->tensors()) {
    store.add(name, tensor.shape, {.box = Box::whole(tensor.shape), .stored = file->place(tensor)});
    if (names != nullptr) names->insert(name);
  }
}

// Without making the common box: each of a thousand ranks' parts is compared with all others.
bool overlap(const Box& a, const Box& b) {
  for (size_t d = 0; d < a.offset.size(); ++d) {
    const int64_t begin = std::max(a.offset[d], b.offset[d]);
    if (begin >= std::min(a.offset[d] + a.extent[d], b.offset[d] + b.extent[d])) return false;
  }
  return true;
}

int64_t blocks_in(int64_t extent, int64_t block) { return (extent + block - 1) / block; }

// out = stored * the scale of each element's block. `offset`: the stored box's; `scales`: of the blocks it touches.
void copy_scaled(const at::Tensor& stored, const std::vector<int64_t>& offset, const at::Tensor& scales,
                 const std::vector<int64_t>& block, const at::Tensor& out) {
  const at::Tensor host = out.is_cpu() ? out : at::empty(out.sizes(), out.options().device(at::kCPU));
  const int64_t rows = stored.size(0), columns = stored.size(1), first_column = offset[1] % block[1];
  const at::Tensor column_blocks = at::arange(first_column, first_column + columns).div(block[1], "floor");
  const at::Tensor by_column = scales.index_select(1, column_blocks);  // (block rows, columns)
  int64_t row = 0;
  for (int64_t i = 0; i < scales.size(0); ++i) {
    const int64_t count = std::min((offset[0] / block[0] + i + 1) * block[0] - offset[0], rows) - row;
    host.narrow(0, row, count).copy_(stored.narrow(0, row, count).to(at::kFloat).mul_(by_column[i]));
    row += count;
  }
  if (!out.is_cpu()) out.copy_(host);
}

[[noreturn]] void fail_no_weights(const fs::path& folder) {
  std::vector<std::string> pickles, others;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".bin") || name.ends_with(".pt") || name.ends_with(".pth")) pickles.push_back(name);
    if (name.ends_with(".safetensors")) others.push_back(name);
  }
  std::sort(pickles.begin(), pickles.end());
  std::sort(others.begin(), others.end());
  const std::string message =
      fmt::format("{} has neither model.safetensors nor model.safetensors.index.json", folder.string());
  if (!pickles.empty()) {
    throw UserError(
        fmt::format("{}, only {}", message, shortened(pickles)),
        "pickled weights are not read, because opening them runs code: save the model again with transformers' "
        "save_pretrained(folder, safe_serialization=True)");
  }
  if (!others.empty()) {
    throw UserError(
        fmt::format("{}, only {}", message, shortened(others)),
        "name a single file model.safetensors; for several the index is needed: fetch it from where they came");
  }
  throw UserError(message, "give the folder that holds config.json and the weights");
}

}  // namespace

TensorStore TensorStore::open_file(const fs::path& path) {
  TensorStore store;
  add_file(store, path);
  return store;
}

TensorStore TensorStore::open_folder(const fs::path& folder) {
  if (!fs::is_directory(folder)) {
    throw UserError(fmt::format("{} is not a folder", folder.string()),
                    "give the folder that holds config.json and the weights");
  }
  // transformers' and diffusers'.
  fs::path index_path;
  for (const char* stem : {"model", "diffusion_pytorch_model"}) {
    const std::string file = std::string(stem) + ".safetensors";
    if (fs::exists(folder / (file + ".index.json"))) {
      index_path = folder / (file + ".index.json");
      break;
    }
    if (fs::exists(folder / file)) return open_file(folder / file);
  }
  if (index_path.empty()) fail_no_weights(folder);
  const Json index = load_json(index_path);
  const std::string where = index_path.string();
  const Json& weight_map = get_member(index, "weight_map", where);
  if (!weight_map.is_object()) throw UserError(fmt::format("{}: weight_map is no object", where));
  std::map<std::string, std::vector<std::string>> names_by_file;
  for (const auto& [name, file] : weight_map.items()) {
    const auto file_name = json_as<std::string>(file, fmt::format("{}: weight_map.{}", where, name));
    // Untrusted: must not lead to other folders.
    if (file_name.empty() || fs::path(file_name).filename() != file_name || file_name == "." || file_name == "..") {
      throw UserError(fmt::format("{}: '{}' is not the name of a file in this folder", where, file_name));
    }
    names_by_file[file_name].push_back(name);
  }
  std::vector<std::string> missing_files;
  for (const auto& [file, names] : names_by_file) {
    if (!fs::exists(folder / file)) missing_files.push_back(file);
  }
  if (!missing_files.empty()) {
    throw UserError(
        fmt::format("{} names {} files that are not there: {}", where, missing_files.size(), shortened(missing_files)),
        "fetch them, or point to the complete folder");
  }
  TensorStore store;
  for (const auto& [file, names] : names_by_file) {
    std::set<std::string> found;
    add_file(store, folder / file, &found);
    for (const std::string& name : names) {
      if (!found.contains(name)) {
        throw UserError(fmt::format("{}: {} is said to be in {}, which does not hold it", where, name, file),
                        "index and files come from different versions: fetch them again");
      }
    }
  }
  return store;
}

void TensorStore::drop_prefix(std::string_view prefix) {
  std::map<std::string, Entry, std::less<>> renamed;
  for (auto& [name, entry] : entries_) {
    const std::string rest = name.starts_with(prefix) ? name.substr(prefix.size()) : name;
    if (renamed.emplace(rest, std::move(entry)).second) continue;
    throw UserError(fmt::format("the files have both {0} and {1}{0}", rest, prefix),
                    "keep the one that belongs to the model of this config.json");
  }
  entries_ = std::move(renamed);
}

void TensorStore::add(const std::string& name, const std::vector<int64_t>& shape, Part part) {
  Entry& entry = entries_[name];
  if (entry.parts.empty()) {
    entry.shape = shape;
    entry.dtype = part.stored.dtype;
  }
  const Part* other = entry.parts.empty() ? &part : &entry.parts.front();
  if (entry.shape != shape || entry.dtype != part.stored.dtype) {
    throw UserError(fmt::format("{} is {} [{}] in {}, but {} [{}] in {}", name, name_of(entry.dtype),
                                fmt::join(entry.shape, ", "), other->path().string(), name_of(part.stored.dtype),
                                fmt::join(shape, ", "), part.path().string()),
                    "the files do not belong together: fetch or save them again");
  }
  for (const Part& present : entry.parts) {
    const FileTensor &a = present.stored, &b = part.stored;
    // A second name of the same bytes, as Megatron-core's layers of two kinds ask for.
    if (present.box == part.box && a.file == b.file && a.offset == b.offset && a.strides == b.strides) return;
    const bool is_same_empty = part.box.is_empty() && present.box == part.box;
    if (is_same_empty || overlap(present.box, part.box)) {
      throw UserError(
          fmt::format("{} is both in {} and in {}", name, present.path().string(), part.path().string()),
          "the files do not belong together: fetch or save them again");
    }
  }
  entry.parts.push_back(std::move(part));
}

int64_t TensorStore::Entry::num_found() const {
  int64_t count = 0;
  for (const Part& part : parts) count += part.box.num_elements();
  return count;
}

void TensorStore::set_block_scales(const std::vector<int64_t>& block) {
  MEGALITH_CHECK(block.size() == 2 && block[0] > 0 && block[1] > 0, "blocks of [{}]", fmt::join(block, ", "));
  constexpr std::array kFloats = {SafetensorsDtype::kF16, SafetensorsDtype::kBf16, SafetensorsDtype::kF32,
                                  SafetensorsDtype::kF64};
  for (auto& [name, entry] : entries_) {
    if (entry.dtype != SafetensorsDtype::kF8E4M3) continue;
    const std::string where = fmt::format("{}: {}", entry.parts.front().path().string(), name);
    if (entry.shape.size() != 2) {
      throw UserError(
          fmt::format("{} is F8_E4M3 [{}], and block scales belong to matrices", where, fmt::join(entry.shape, ", ")),
          "load the unquantised model that it was made from");
    }
    const std::string scale_name = name + "_scale_inv";
    const Entry* scales = find(scale_name);
    if (scales == nullptr) {
      throw UserError(fmt::format("{} is F8_E4M3, but its scales {} are in no file", where, scale_name),
                      "fetch the whole folder again");
    }
    const std::vector<int64_t> expected = {blocks_in(entry.shape[0], block[0]), blocks_in(entry.shape[1], block[1])};
    const bool is_float = std::find(kFloats.begin(), kFloats.end(), scales->dtype) != kFloats.end();
    if (!is_float || scales->shape != expected) {
      throw UserError(fmt::format("{}: {} is {} [{}], expected floats [{}]: one for each {} x {} block of [{}]",
                                  scales->parts.front().path().string(), scale_name, name_of(scales->dtype),
                                  fmt::join(scales->shape, ", "), fmt::join(expected, ", "), block[0], block[1],
                                  fmt::join(entry.shape, ", ")),
                      "config.json (quantization_config.weight_block_size) and the weights do not belong together: "
                      "fetch them again");
    }
    entry.scales = scale_name;
    entry.block = block;
  }
}

void TensorStore::unpack_mxfp4() {
  constexpr std::string_view kEnding = "_blocks";
  std::map<std::string, Entry> unpacked;
  for (const auto& [blocks_name, blocks] : entries_) {
    if (!blocks_name.ends_with(kEnding) || blocks.dtype != SafetensorsDtype::kU8) continue;
    const std::string name = blocks_name.substr(0, blocks_name.size() - kEnding.size()), scales_name = name + "_scales";
    const Entry* scales = find(scales_name);
    const std::string where = fmt::format("{}: {}", blocks.parts.front().path().string(), blocks_name);
    if (scales == nullptr || find(name) != nullptr) {
      throw UserError(fmt::format("{} are blocks of MXFP4, and {}", where,
                                  scales == nullptr ? "their scales " + scales_name + " are in no file"
                                                    : name + " itself is there too"),
                      "the files do not belong together: fetch the whole folder again");
    }
    const std::vector<int64_t>& shape = blocks.shape;
    if (shape.size() != 4 || shape[3] != kMxfp4Bytes || scales->dtype != SafetensorsDtype::kU8 ||
        scales->shape != std::vector<int64_t>(shape.begin(), shape.begin() + 3)) {
      throw UserError(fmt::format("{} is [{}] and its scales {} [{}], expected blocks of MXFP4 (experts, columns, "
                                  "groups, {}) and a U8 scale for each",
                                  where, fmt::join(shape, ", "), name_of(scales->dtype), fmt::join(scales->shape, ", "),
                                  kMxfp4Bytes),
                      "the file is damaged: fetch it again");
    }
    unpacked[name] = {.shape = {shape[0], shape[2] * kMxfp4Block, shape[1]},
                      .dtype = SafetensorsDtype::kBf16,
                      .parts = {},
                      .scales = scales_name,
                      .packed = blocks_name};
  }
  entries_.merge(unpacked);
}

// By expert: decoded values take eight times the stored bytes.
void TensorStore::read_mxfp4(const Entry& entry, const Box& box, const at::Tensor& out) const {
  const int64_t first_row = box.offset[1], first_group = first_row / kMxfp4Block;
  const int64_t num_groups = blocks_in(first_row + box.extent[1], kMxfp4Block) - first_group;
  for (int64_t i = 0; i < box.extent[0]; ++i) {
    const Box groups{{box.offset[0] + i, box.offset[2], first_group}, {1, box.extent[2], num_groups}};
    Box bytes = groups;
    bytes.offset.push_back(0);
    bytes.extent.push_back(kMxfp4Bytes);
    const at::Tensor scales = at::empty(groups.extent, at::kByte), blocks = at::empty(bytes.extent, at::kByte);
    read(entry.scales, groups, scales);
    read(entry.packed, bytes, blocks);
    const at::Tensor columns = decode_mxfp4(blocks, scales)[0];
    out[i].copy_(columns.narrow(1, first_row - first_group * kMxfp4Block, box.extent[1]).t());
  }
}

const TensorStore::Entry* TensorStore::find(std::string_view name) const {
  const auto found = entries_.find(name);
  return found == entries_.end() ? nullptr : &found->second;
}

std::string_view TensorStore::resolve(const Piece& piece) const {
  if (find(piece.name) != nullptr) return piece.name;
  for (const std::string& alias : piece.aliases) {
    if (find(alias) != nullptr) return alias;
  }
  return "";
}

// Brings the rows of the first dim that `box` touches, if the file is a mirror with holes.
void fill_rows(const TensorStore::Part& part, const Box& box) {
  const FileTensor& stored = part.stored;
  const bool has_rows = !stored.shape.empty() && stored.shape[0] > 0 && stored.strides == row_major(stored.shape);
  const int64_t row_bytes = has_rows ? stored.num_bytes / stored.shape[0] : stored.num_bytes;
  const int64_t first = has_rows ? box.offset[0] - part.box.offset[0] : 0, count = has_rows ? box.extent[0] : 1;
  fill_mirrored(part.path(), stored.offset + first * row_bytes, count * row_bytes);
}

// (block rows, block columns) float32, of blocks that the box touches.
at::Tensor TensorStore::scales_of(const Entry& entry, const Box& box) const {
  Box blocks = box;
  for (size_t d = 0; d < 2; ++d) {
    blocks.offset[d] = box.offset[d] / entry.block[d];
    blocks.extent[d] = blocks_in(box.offset[d] + box.extent[d], entry.block[d]) - blocks.offset[d];
  }
  at::Tensor scales = at::empty(blocks.extent, at::kFloat);
  read(entry.scales, blocks, scales);
  return scales;
}

void TensorStore::read(std::string_view name, const Box& box, const at::Tensor& out) const {
  const at::NoGradGuard no_grad;
  const Entry* entry = find(name);
  MEGALITH_CHECK(entry != nullptr, "{} is not in the store", name);
  if (!entry->packed.empty()) return read_mxfp4(*entry, box, out);
  int64_t num_read = 0;
  for (const Part& part : entry->parts) {
    const Box common = intersect(part.box, box);
    if (common.is_empty()) continue;
    fill_rows(part, common);
    const at::Tensor source = values_of(slice_box(outline_of(part.stored), common, part.box.offset));
    const at::Tensor target = slice_box(out, common, box.offset);
    if (entry->scales.empty())
      target.copy_(source);
    else
      copy_scaled(source, common.offset, scales_of(*entry, common), entry->block, target);
    num_read += common.num_elements();
  }
  if (num_read != box.num_elements()) {
    throw UserError(
        fmt::format("{} of {} elements of {} (offset [{}], extent [{}]) are in no file", box.num_elements() - num_read,
                    box.num_elements(), name, fmt::join(box.offset, ", "), fmt::join(box.extent, ", ")),
        "files of this checkpoint are missing: copy the whole folder");
  }
}

void require_floats(std::string_view name, const TensorStore::Entry& entry) {
  constexpr std::array kReadable = {SafetensorsDtype::kBf16,       SafetensorsDtype::kF16,
                                    SafetensorsDtype::kF32,        SafetensorsDtype::kF64,
                                    SafetensorsDtype::kF8E4M3,     SafetensorsDtype::kF8E5M2,
                                    SafetensorsDtype::kF8E4M3Fnuz, SafetensorsDtype::kF8E5M2Fnuz};
  if (std::find(kReadable.begin(), kReadable.end(), entry.dtype) != kReadable.end()) return;
  std::vector<std::string_view> names;
  for (const SafetensorsDtype dtype : kReadable) names.push_back(name_of(dtype));
  throw UserError(
      fmt::format("{}: {} is of type {}, expected one of {}", entry.parts.front().path().string(), name,
                  name_of(entry.dtype), fmt::join(names, ", ")),
      "the file is damaged, or its weights are quantised in a way that is not read here: fetch it again, or "
      "save the model in one of these types");
}

StoreFit compare_with_store(const TensorStore& store, std::span<const PieceView> views) {
  StoreFit fit;
  std::set<std::string_view> seen;
  for (const PieceView& view : views) {
    const Piece& piece = view.piece;
    if (!seen.insert(piece.name).second) continue;
    const std::string_view name = store.resolve(piece);
    if (name.empty()) {
      fit.missing.push_back(piece.name);
      continue;
    }
    const auto use = [&](std::string_view used) {
      const TensorStore::Entry* found = store.find(used);
      if (found == nullptr) return;
      fit.used.emplace(used);
      if (!found->scales.empty()) fit.used.insert(found->scales);
      if (!found->packed.empty()) fit.used.insert(found->packed);
    };
    use(name);
    for (const std::string& alias : piece.aliases) use(alias);
    const TensorStore::Entry& entry = *store.find(name);
    if (entry.shape != piece.shape) {
      fit.misshaped.push_back(
          fmt::format("{} is [{}], expected [{}]", name, fmt::join(entry.shape, ", "), fmt::join(piece.shape, ", ")));
    } else if (!scalar_type_of(entry.dtype)) {
      fit.misshaped.push_back(fmt::format("{} is of type {}, which cannot be read", name, name_of(entry.dtype)));
    } else if (at::isFloatingType(view.stored_dtype())) {
      require_floats(name, entry);
    }
  }
  return fit;
}

void read_pieces(const TensorStore& store, std::span<const PieceView> views, NonfiniteWeights nonfinite) {
  const at::NoGradGuard no_grad;
  const auto check = [&](const PieceView& view, std::string_view name, const at::Tensor& values) {
    if (nonfinite == NonfiniteWeights::kAllowed) return;
    const TensorStore::Entry& entry = *store.find(name);
    const TensorStore::Entry& in_file = entry.packed.empty() ? entry : *store.find(entry.packed);
    require_finite(view.piece.name, values, view.piece.canonical.offset, in_file.parts.front().path());
  };
  for (const PieceView& view : views) {
    const std::string_view name = store.resolve(view.piece);
    if (!view.form) {
      store.read(name, view.piece.canonical, view.tensor);
      check(view, name, view.tensor);
      continue;
    }
    const at::Tensor stored = at::empty(view.tensor.sizes(), view.tensor.options().dtype(view.form->dtype));
    store.read(name, view.piece.canonical, stored);
    check(view, name, stored);
    view.form->split(stored, view.form->parts);
  }
}

void read_pieces(const TensorStore& store, const Placement& placement, const at::Tensor& local,
                 const std::optional<FlatRange>& range) {
  const at::NoGradGuard no_grad;
  if (placement.num_local_elements() != placement.num_canonical_elements()) at::Tensor(local).zero_();
  read_pieces(store, piece_views(placement, local, range));
}

}  // namespace megalith
