#include "checkpoint/checkpoint_writer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/version.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "checkpoint/exchange.h"
#include "checkpoint/object_checkpoints.h"
#include "checkpoint/replica_share.h"
#include "core/error.h"
#include "core/strings.h"
#include "core/system_call.h"
#include "tensor_files/safetensors_writer.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

// The checksum of the pointer's checkpoint; see checkpoint_folder.h.
std::string previous_checksum(const fs::path& root, std::optional<int64_t> previous, int64_t iteration) {
  if (!previous) return "";
  try {
    const Manifest manifest = load_manifest(root / checkpoint_folder_name(*previous));
    return *previous == iteration ? manifest.previous : manifest.checksum;
  } catch (const UserError&) {
    return "";  // damaged or gone
  }
}

std::map<std::string, int64_t> layout_of(const Mesh& mesh) {
  std::map<std::string, int64_t> layout = {{"world_size", mesh.world_size()}};
  for (const Axis axis : {Axis::kTp, Axis::kCp, Axis::kDp, Axis::kPp, Axis::kEtp, Axis::kEp}) {
    layout[std::string(name_of(axis))] = mesh.size(axis);
  }
  return layout;
}

// Checks that every element is there once. Boxes written by two ranks (owners of tied weights) count once.
void keep_each_once(std::vector<StoredChunk>& chunks) {
  struct Found {
    const StoredChunk* first;
    int64_t num_elements = 0;
  };
  std::set<std::tuple<std::string, std::string, std::vector<int64_t>, std::vector<int64_t>>> boxes;
  std::erase_if(chunks, [&](const StoredChunk& chunk) {
    return !boxes.insert({chunk.key, chunk.name, chunk.box.offset, chunk.box.extent}).second;
  });
  std::map<std::pair<std::string, std::string>, Found> tensors;
  for (const StoredChunk& chunk : chunks) {
    Found& found = tensors.try_emplace({chunk.key, chunk.name}, Found{&chunk}).first->second;
    MEGALITH_CHECK(found.first->shape == chunk.shape && found.first->dtype == chunk.dtype,
                   "{} {} is held with two shapes or dtypes", chunk.key, chunk.name);
    found.num_elements += chunk.box.num_elements();
  }
  for (const auto& [name, found] : tensors) {
    const int64_t expected = Box::whole(found.first->shape).num_elements();
    MEGALITH_CHECK(found.num_elements == expected, "{} {}: the ranks hold {} of {} elements", name.first, name.second,
                   found.num_elements, expected);
  }
}

// A rank's files wait here for their upload to object storage: ".iter_0000100.tmp-rank3".
constexpr std::string_view kStagedMark = ".tmp-rank";

// Leftovers of this rank go; other ranks may be staging beside it.
fs::path make_staging_folder(const fs::path& root, int64_t iteration, int rank, int64_t num_bytes) {
  const std::string ending = fmt::format("{}{}", kStagedMark, rank);
  for (const fs::directory_entry& entry : list_folder(root)) {
    if (entry.path().filename().string().ends_with(ending)) remove_tree(entry.path());
  }
  if (const int64_t available = free_disk_bytes(root); available < num_bytes) {
    throw UserError(fmt::format("rank {}'s part of the checkpoint of iteration {} needs {} in {}, where {} are free",
                                rank, iteration, format_bytes(num_bytes), root.string(), format_bytes(available)),
                    "free space, or set TMPDIR to a larger local disk: files pass through it to object storage");
  }
  fs::path folder = root / fmt::format(".{}{}", checkpoint_folder_name(iteration), ending);
  make_directories(folder);
  return folder;
}

}  // namespace

CheckpointTensor model_tensor(const Parameter& parameter) {
  return {.key = std::string(kModelKey),
          .placement = &parameter.placement(),
          .local = parameter.is_packed() ? parameter.value() : parameter.data(),
          .range = std::nullopt,
          .replica_axes = parameter.placement().replica_axes};
}

std::vector<CheckpointTensor> model_tensors(const std::vector<Parameter*>& parameters) {
  std::vector<CheckpointTensor> tensors;
  for (Parameter* parameter : parameters) {
    tensors.push_back(model_tensor(*parameter));
    if (parameter->is_packed()) tensors.back().packed = parameter;
  }
  return tensors;
}

std::vector<CheckpointTensor> model_tensors(const DataParallel& data) {
  std::vector<CheckpointTensor> tensors;
  for (const OwnedPart& part : data.model_parts()) {
    tensors.push_back({.key = std::string(kModelKey),
                       .placement = &part.parameter->placement(),
                       .local = part.model,
                       .range = part.range,
                       .replica_axes = part.replica_axes,
                       .packed = part.parameter->is_packed() ? part.parameter : nullptr});
  }
  return tensors;
}

CheckpointWriter::CheckpointWriter(fs::path root, CheckpointState state, const Groups& groups, Logger& log,
                                   SaveSettings settings)
    : root_(std::move(root)), state_(std::move(state)), groups_(groups), log_(log), settings_(std::move(settings)) {
  plan();
  open();
}

CheckpointWriter::~CheckpointWriter() {
  if (directory_ == nullptr && folder_.filename().string().find(kStagedMark) != std::string::npos) {
    try_remove_tree(folder_);
  }
}

void CheckpointWriter::step(std::string_view what) const {
  if (settings_.before_step) settings_.before_step(what);
}

void CheckpointWriter::plan() {
  std::vector<std::string> keys;
  std::map<std::string, std::vector<PieceView>> views;
  ReplicaShare share(groups_);
  for (const CheckpointTensor& tensor : state_.tensors) {
    if (!settings_.with_optimizer && tensor.key != kModelKey) continue;
    const std::vector<int>& places = tensor.placement->pipeline_ranks;
    if (!share.is_mine(tensor.replica_axes, places, static_cast<int64_t>(tensor.local.nbytes()))) continue;
    if (!views.contains(tensor.key)) keys.push_back(tensor.key);
    std::vector<PieceView>& list = views[tensor.key];
    for (PieceView& view : piece_views(*tensor.placement, tensor.local, tensor.range, tensor.form)) {
      list.push_back(std::move(view));
    }
  }
  const Group& world = *groups_.world;
  for (const std::string& key : keys) {
    RankFile file{.key = key, .name = {}, .chunks = make_chunks(views[key])};
    if (file.chunks.empty()) continue;
    file.name = world.size() == 1 ? fmt::format("{}.safetensors", key)
                                  : fmt::format("{}-{:05d}-of-{:05d}.safetensors", key, world.rank() + 1, world.size());
    for (const Chunk& chunk : file.chunks) num_bytes_ += chunk.num_bytes();
    files_.push_back(std::move(file));
  }
}

void CheckpointWriter::open() {
  Group& world = *groups_.world;
  if (const auto store = mirrored_store(root_, log_)) {
    std::string infix;  // keeps a replaced checkpoint's files until the new one is whole
    run_on_all(world, "checkpoint folder", [&] {
      if (world.rank() != 0) return;
      step("create folder");
      remove_interrupted_saves(*store, log_);
      if (store->list(checkpoint_folder_name(state_.train.iteration) + "/").empty()) return;
      infix = fmt::format(".{:x}", std::chrono::system_clock::now().time_since_epoch().count());
    });
    infix = broadcast_text(world, infix, 0, "checkpoint folder");
    for (RankFile& file : files_) file.name.insert(file.name.rfind('.'), infix);
    run_on_all(world, "checkpoint folder", [&] {
      folder_ = make_staging_folder(root_, state_.train.iteration, world.rank(), num_bytes_);
    });
    return;
  }
  const fs::path target = root_ / checkpoint_folder_name(state_.train.iteration);
  int64_t total_bytes = 0;
  for (const std::string& bytes : gather_texts(world, std::to_string(num_bytes_), "checkpoint bytes")) {
    total_bytes += std::stoll(bytes);
  }
  run_on_all(world, "checkpoint folder", [&] {
    if (world.rank() != 0) return;
    step("create folder");
    make_directories(root_);
    remove_leftovers(root_, log_, settings_.before_step);
    // For names, shapes and manifest.
    const int64_t needed = total_bytes + total_bytes / 100 + (int64_t{1} << 20);
    const int64_t available = free_disk_bytes(root_);
    if (available < needed) {
      throw UserError(
          fmt::format("the checkpoint of iteration {} needs {} in {}, where {} are free", state_.train.iteration,
                      format_bytes(needed), root_.string(), format_bytes(available)),
          "free space, choose another --save, or keep fewer checkpoints (--keep_last)");
    }
    directory_ = std::make_unique<AtomicDirectory>(target, /*replace=*/true);
  });
  folder_ = broadcast_text(world, directory_ ? directory_->path().string() : "", 0, "checkpoint folder");
  run_on_all(world, "checkpoint folder", [&] {
    if (!fs::is_directory(folder_)) {
      throw UserError(fmt::format("{} (--save) was made by rank 0, but this rank does not see it", folder_.string()),
                      "give a folder on a file system that all hosts share");
    }
  });
}

void CheckpointWriter::copy_to_host(std::vector<at::Tensor>& buffers) {
  size_t next = 0;
  for (RankFile& file : files_) {
    for (Chunk& chunk : file.chunks) {
      if (next == buffers.size()) buffers.emplace_back();
      chunk = megalith::copy_to_host(chunk, buffers[next++]);
    }
  }
  buffers.resize(next);
}

void CheckpointWriter::write() noexcept {
  try {
    // This rank's bytes; others have as many.
    Progress progress(log_, fmt::format("saving iteration {}", state_.train.iteration), num_bytes_, "bytes");
    for (const RankFile& file : files_) write_file(file, progress);
    progress.finish();
  } catch (...) {
    failure_ = std::current_exception();
  }
}

void CheckpointWriter::write_file(const RankFile& file, Progress& progress) {
  std::vector<SafetensorsEntry> entries;
  for (const Chunk& chunk : file.chunks) {
    entries.push_back({.name = chunk_entry_name(chunk.name, chunk.shape, chunk.box),
                       .dtype = safetensors_dtype_of(chunk.dtype),
                       .shape = chunk.box.extent});
  }
  step("create file");
  SafetensorsWriter writer(folder_ / file.name, make_safetensors_layout(std::move(entries)));
  for (const Chunk& chunk : file.chunks) {
    StoredChunk stored{.key = file.key,
                       .name = chunk.name,
                       .dtype = safetensors_dtype_of(chunk.dtype),
                       .shape = chunk.shape,
                       .box = chunk.box,
                       .file = file.name,
                       .checksum = {}};
    const std::string entry_name = chunk_entry_name(chunk.name, chunk.shape, chunk.box);
    StreamingChecksum checksum;
    int64_t offset = 0;
    step("write tensor");
    for_each_block(chunk, chunk.dtype, settings_.block_bytes, [&](const Box&, const at::Tensor& block) {
      const std::span bytes(static_cast<const std::byte*>(block.const_data_ptr()), block.nbytes());
      checksum.update(bytes);
      writer.write(entry_name, offset, bytes);
      offset += static_cast<int64_t>(bytes.size());
      progress.advance(static_cast<int64_t>(bytes.size()));
    });
    stored.checksum = checksum.sum128();
    chunks_.push_back(std::move(stored));
  }
  step("flush file");
  writer.finish();
  if (const auto store = mirrored_store(root_, log_)) {
    step("upload file");
    store->put_file(fmt::format("{}/{}", checkpoint_folder_name(state_.train.iteration), file.name),
                    folder_ / file.name);
    remove_tree(folder_ / file.name);
  }
}

fs::path CheckpointWriter::finish() {
  Group& world = *groups_.world;
  run_on_all(world, "checkpoint written", [&] {
    if (failure_) std::rethrow_exception(failure_);
  });
  Json chunks = Json::array();
  for (const StoredChunk& chunk : chunks_) chunks.push_back(chunk_to_json(chunk));
  const std::vector<std::string> chunk_lists = gather_texts(world, dump_json(chunks), "checkpoint contents");
  run_on_all(world, "checkpoint commit", [&] {
    if (world.rank() == 0) commit(chunk_lists);
  });
  run_on_all(world, "checkpoint mirrored", [&] {
    if (const auto store = mirrored_store(root_, log_)) pull_checkpoints(store->url().text(), log_);
  });
  return root_ / checkpoint_folder_name(state_.train.iteration);
}

void CheckpointWriter::commit(const std::vector<std::string>& chunk_lists) {
  const int64_t iteration = state_.train.iteration;
  const std::optional<int64_t> previous = read_pointer(root_).iteration;
  Manifest manifest{.train = state_.train,
                    .architecture = state_.architecture,
                    .configuration = state_.configuration,
                    .layout = layout_of(groups_.mesh),
                    .torch_version = TORCH_VERSION,
                    .previous = previous_checksum(root_, previous, iteration),
                    .chunks = {},
                    .checksum = {}};
  for (const std::string& list : chunk_lists) {
    for (const Json& chunk : parse_json(list, "a rank's chunks"))
      manifest.chunks.push_back(chunk_from_json(chunk, "a rank's chunk"));
  }
  keep_each_once(manifest.chunks);
  if (const auto store = mirrored_store(root_, log_)) {
    const std::string name = checkpoint_folder_name(iteration);
    const std::vector<StoredObject> earlier = store->list(name + "/");
    for (const KeptFile& file : settings_.files) store->put(fmt::format("{}/{}", name, file.name), file.content);
    step("write manifest");
    store->put(fmt::format("{}/{}", name, kManifestFile), manifest_text(manifest));
    step("write pointer");
    store->put(kPointerFile, fmt::format("{}\n", iteration));
    std::set<std::string> files;
    for (const StoredChunk& chunk : manifest.chunks) files.insert(fmt::format("{}/{}", name, chunk.file));
    for (const StoredObject& object : earlier) {
      if (object.name.ends_with(".safetensors") && !files.contains(object.name)) store->remove(object.name);
    }
    apply_retention(root_, iteration, previous, settings_.retention, log_, settings_.before_step);
    step("done");
    return;
  }
  for (const KeptFile& file : settings_.files) {
    step("write kept file");
    make_directories((folder_ / file.name).parent_path());
    write_file_atomic(folder_ / file.name, file.content);
  }
  step("write manifest");
  write_file_atomic(folder_ / kManifestFile, manifest_text(manifest));
  step("commit");
  directory_->commit();
  step("write pointer");
  write_pointer(root_, iteration);
  apply_retention(root_, iteration, previous, settings_.retention, log_, settings_.before_step);
  step("done");
}

fs::path save_checkpoint(const fs::path& root, const CheckpointState& state, const Groups& groups, Logger& log,
                         const SaveSettings& settings) {
  CheckpointWriter writer(root, state, groups, log, settings);
  writer.write();
  return writer.finish();
}

}  // namespace megalith
