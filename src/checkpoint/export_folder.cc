#include "checkpoint/export_folder.h"

#include <fmt/format.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string_view>
#include <vector>

#include "checkpoint/exchange.h"
#include "checkpoint/replica_share.h"
#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "core/strings.h"
#include "tensor_files/safetensors_writer.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

struct Shard {
  std::string file;
  SafetensorsLayout layout;
};

constexpr std::string_view kTensorsOfRanks = "what the ranks told of their tensors";

// Each once, in model order: later stages are later ranks.
std::vector<SafetensorsEntry> gather_entries(std::span<const CheckpointTensor> tensors, SafetensorsDtype dtype,
                                             Group& world) {
  Json mine = Json::array();
  for (const CheckpointTensor& tensor : tensors) {
    for (const Piece& piece : tensor.placement->pieces) mine.push_back({piece.name, piece.shape});
  }
  std::map<std::string, std::vector<int64_t>> shapes;
  std::vector<SafetensorsEntry> entries;
  for (const std::string& text : gather_texts(world, dump_json(mine), "export tensors")) {
    for (const Json& item : parse_json(text, kTensorsOfRanks)) {
      const auto name = json_as<std::string>(item.at(0), kTensorsOfRanks);
      const auto shape = json_as<std::vector<int64_t>>(item.at(1), kTensorsOfRanks);
      const auto [entry, is_new] = shapes.emplace(name, shape);
      MEGALITH_CHECK(entry->second == shape, "{} is held with two shapes", name);
      if (is_new) entries.push_back({.name = name, .dtype = dtype, .shape = shape});
    }
  }
  return entries;
}

// In model order, as transformers; a tensor larger than a shard gets its own.
std::vector<Shard> make_shards(const std::vector<SafetensorsEntry>& entries, const ExportFolder& target,
                               int64_t max_bytes) {
  const std::string& stem = target.stem;
  std::vector<std::vector<SafetensorsEntry>> groups(1);
  int64_t bytes = 0;
  for (const SafetensorsEntry& entry : entries) {
    const int64_t size = safetensors_bytes(entry.dtype, entry.shape).value();
    if (bytes + size > max_bytes && !groups.back().empty()) {
      groups.emplace_back();
      bytes = 0;
    }
    bytes += size;
    groups.back().push_back(entry);
  }
  std::vector<Shard> shards;
  for (std::vector<SafetensorsEntry>& group : groups) {
    const std::string file =
        groups.size() == 1 ? stem + ".safetensors"
                           : fmt::format("{}-{:05d}-of-{:05d}.safetensors", stem, shards.size() + 1, groups.size());
    shards.push_back({file, make_safetensors_layout(std::move(group), target.metadata)});
  }
  return shards;
}

void write_index(const fs::path& folder, const std::string& stem, const std::vector<Shard>& shards,
                 int64_t total_bytes) {
  if (shards.size() == 1) return;
  Json weight_map = Json::object();
  for (const Shard& shard : shards) {
    for (const auto& [name, tensor] : shard.layout.tensors) weight_map[name] = shard.file;
  }
  const Json index = {{"metadata", {{"total_size", total_bytes}}}, {"weight_map", std::move(weight_map)}};
  write_file_atomic(folder / (stem + ".safetensors.index.json"), dump_json_pretty(index));
}

// Only an export may be replaced.
void check_target(const ExportFolder& target) {
  const fs::path& folder = target.folder;
  if (!fs::exists(folder) || (fs::is_directory(folder) && fs::is_empty(folder))) return;
  if (target.is_replaceable(folder)) return;
  throw UserError(fmt::format("{} ({}) exists and is not {}", folder.string(), target.option, target.kind),
                  "choose another name, or remove it");
}

// Excludes old shards, which would be read with the new ones.
void keep_other_files(const fs::path& old, const fs::path& fresh, const std::string& stem) {
  std::error_code none;
  for (const fs::directory_entry& entry : fs::directory_iterator(old, none)) {
    const std::string name = entry.path().filename().string();
    const bool is_weights = name == stem + ".safetensors" || name == stem + ".safetensors.index.json" ||
                            (name.starts_with(stem + "-") && name.ends_with(".safetensors"));
    if (is_weights || fs::exists(fs::symlink_status(fresh / name))) continue;
    constexpr auto kCopy = fs::copy_options::recursive | fs::copy_options::copy_symlinks;
    std::error_code error;
    fs::copy(entry.path(), fresh / name, kCopy | fs::copy_options::create_hard_links, error);
    if (!error) continue;
    fs::remove_all(fresh / name, error);
    fs::copy(entry.path(), fresh / name, kCopy, error);  // no links here
    if (!error) continue;
    throw UserError(fmt::format("{} cannot be kept beside the new model: {}", entry.path().string(), error.message()),
                    "move it away, or name another folder");
  }
}

int64_t bytes_to_write(const std::vector<Chunk>& chunks, at::ScalarType dtype) {
  int64_t elements = 0;
  for (const Chunk& chunk : chunks) {
    elements += std::accumulate(chunk.box.extent.begin(), chunk.box.extent.end(), int64_t{1}, std::multiplies<>());
  }
  return elements * static_cast<int64_t>(c10::elementSize(dtype));
}

void write_chunk(const Chunk& chunk, at::ScalarType dtype, int64_t block_bytes, SafetensorsWriter& writer,
                 Progress* progress) {
  const auto element_bytes = static_cast<int64_t>(c10::elementSize(dtype));
  for_each_block(chunk, dtype, block_bytes, [&](const Box& box, const at::Tensor& block) {
    const std::span bytes(static_cast<const std::byte*>(block.const_data_ptr()), block.nbytes());
    for_each_run(chunk.shape, box, [&](int64_t in_tensor, int64_t in_box, int64_t count) {
      writer.write(
          chunk.name, in_tensor * element_bytes,
          bytes.subspan(static_cast<size_t>(in_box * element_bytes), static_cast<size_t>(count * element_bytes)));
    });
    if (progress != nullptr) progress->advance(static_cast<int64_t>(bytes.size()));
  });
}

}  // namespace

void write_export(const ExportFolder& target, std::span<const CheckpointTensor> tensors, const Groups& groups,
                  const HfExport& settings) {
  const fs::path& folder = target.folder;
  Group& world = *groups.world;
  std::vector<PieceView> views;  // this rank's
  ReplicaShare share(groups);
  for (const CheckpointTensor& tensor : tensors) {
    const std::vector<int>& places = tensor.placement->pipeline_ranks;
    if (!share.is_mine(tensor.replica_axes, places, static_cast<int64_t>(tensor.local.nbytes()))) continue;
    for (PieceView& view : piece_views(*tensor.placement, tensor.local, tensor.range)) views.push_back(std::move(view));
  }
  const std::vector<Chunk> chunks = make_chunks(views);
  const std::vector<Shard> shards = make_shards(gather_entries(tensors, safetensors_dtype_of(settings.dtype), world),
                                                target, settings.max_shard_bytes);
  int64_t total_bytes = 0;
  for (const Shard& shard : shards) {
    for (const auto& [name, tensor] : shard.layout.tensors) total_bytes += tensor.num_bytes;
  }

  // Rank 0 creates full-size files; others join.
  std::unique_ptr<AtomicDirectory> directory;
  std::vector<std::unique_ptr<SafetensorsWriter>> writers;
  int64_t bytes_written = 0;
  run_on_all(world, "export folder", [&] {
    if (world.rank() != 0) return;
    check_target(target);
    const int64_t needed = total_bytes + total_bytes / 100 + (int64_t{1} << 20);
    const int64_t available = free_disk_bytes(folder);
    if (available < needed) {
      throw UserError(fmt::format("{} needs {} in {}, where {} are free", target.kind, format_bytes(needed),
                                  folder.string(), format_bytes(available)),
                      "free space or choose another " + target.option);
    }
    if (folder.has_parent_path()) make_directories(folder.parent_path());
    directory = std::make_unique<AtomicDirectory>(folder, /*replace=*/true);
    for (const Shard& shard : shards) {
      writers.push_back(std::make_unique<SafetensorsWriter>(directory->path() / shard.file, shard.layout));
    }
  });
  const fs::path temporary = broadcast_text(world, directory ? directory->path().string() : "", 0, "export folder");
  run_on_all(world, "export write", [&] {
    if (world.rank() != 0) {
      if (!fs::is_directory(temporary)) {
        throw UserError(
            fmt::format("{} ({}) was made by rank 0, but this rank does not see it", temporary.string(), target.option),
            "give a folder on a file system that all hosts share");
      }
      for (const Shard& shard : shards) {
        writers.push_back(
            std::make_unique<SafetensorsWriter>(temporary / shard.file, shard.layout, SafetensorsWriter::Mode::kJoin));
      }
    }
    // This rank's bytes; others have as many.
    std::optional<Progress> progress;
    if (settings.log != nullptr) {
      progress.emplace(*settings.log, fmt::format("exporting to {}", folder.string()),
                       bytes_to_write(chunks, settings.dtype), "bytes", settings.progress);
    }
    for (const Chunk& chunk : chunks) {
      for (size_t i = 0; i < shards.size(); ++i) {
        if (shards[i].layout.tensors.contains(chunk.name))
          write_chunk(chunk, settings.dtype, settings.block_bytes, *writers[i], progress ? &*progress : nullptr);
      }
    }
    for (const auto& writer : writers) {
      bytes_written += writer->data_bytes_written();
      writer->finish();
    }
    if (progress) progress->finish();
  });
  // Tied weights have two owners: more is possible; less means a missing part.
  const double all_bytes_written = world.reduced(static_cast<double>(bytes_written), ReduceOp::kSum, "export bytes");
  MEGALITH_CHECK(all_bytes_written >= static_cast<double>(total_bytes), "{} of {} bytes written", all_bytes_written,
                 total_bytes);
  run_on_all(world, "export commit", [&] {
    if (world.rank() != 0) return;
    write_index(directory->path(), target.stem, shards, total_bytes);
    target.write_rest(directory->path());
    keep_other_files(folder, directory->path(), target.stem);
    directory->commit();
  });
}

}  // namespace megalith
