// checkpoint.json: a checkpoint without its tensors' bytes.
//
// The folder holds safetensors files of one state each (model.safetensors, exp_avg.safetensors, …; with several ranks
// one per writer: model-00003-of-00008.safetensors) and this file, which lists every box of every canonical tensor with
// file and checksum, and checksums itself. Whole tensors have their canonical names in files, boxes also a range:
// "model.norm.weight[0:128]".
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_state.h"
#include "core/checksum.h"
#include "core/json.h"
#include "tensor_files/safetensors.h"

namespace megalith {

inline constexpr const char* kManifestFile = "checkpoint.json";
inline constexpr int64_t kCheckpointFormatVersion = 1;

struct StoredChunk {
  std::string key;
  std::string name;  // canonical
  SafetensorsDtype dtype = SafetensorsDtype::kF32;
  std::vector<int64_t> shape;  // the whole tensor's
  Box box;
  std::string file;      // in the folder
  Checksum128 checksum;  // of the box, row-major

  bool is_whole() const { return box == Box::whole(shape); }
};

// In its file.
std::string chunk_entry_name(const std::string& name, const std::vector<int64_t>& shape, const Box& box);

struct Manifest {
  TrainState train;
  Configuration architecture, configuration;
  std::map<std::string, int64_t> layout;  // world_size, tp, cp, …: only informative
  std::string torch_version;
  std::string previous;  // the newest checkpoint's checksum when written; "" if none
  std::vector<StoredChunk> chunks;
  std::string checksum;  // of the document; set on reading and writing
};

// For exchange between ranks.
Json chunk_to_json(const StoredChunk& chunk);
StoredChunk chunk_from_json(const Json& json, const std::string& where);

// One line, for exchange between ranks; exact. The reader throws a UserError.
std::string train_state_text(const TrainState& train);
TrainState parse_train_state(const std::string& text, const std::string& where);

// Sets manifest.checksum.
std::string manifest_text(Manifest& manifest);

// UserError if missing, damaged, inconsistent or of a newer format.
Manifest load_manifest(const std::filesystem::path& folder);

}  // namespace megalith
