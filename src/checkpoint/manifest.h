// checkpoint.json: everything about a checkpoint except the tensors' bytes.
//
// A checkpoint folder holds safetensors files of one state each (model.safetensors, exp_avg.safetensors, …; with
// several ranks one for each that has something to write: model-00003-of-00008.safetensors) and this file, which lists
// every box of every canonical tensor with its file and checksum. A tensor that is stored whole has its canonical name
// in the file; a box of it has a name that says which: "model.norm.weight[0:128]". The file has a checksum of itself.
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

// A box of a canonical tensor, as it lies in a file.
struct StoredChunk {
  std::string key;
  std::string name;  // canonical
  SafetensorsDtype dtype = SafetensorsDtype::kF32;
  std::vector<int64_t> shape;  // of the canonical tensor
  Box box;
  std::string file;      // in the checkpoint's folder
  Checksum128 checksum;  // of the box's bytes, row-major

  bool is_whole() const { return box == Box::whole(shape); }
};

// The name of a box in its file.
std::string chunk_entry_name(const std::string& name, const std::vector<int64_t>& shape, const Box& box);

struct Manifest {
  TrainState train;
  Configuration architecture, configuration;
  std::map<std::string, int64_t> layout;  // world_size, tp, cp, …: for people; a load needs none of it
  std::string torch_version;
  std::string previous;  // checksum of the checkpoint that was the newest when this one was written; "" for the first
  std::vector<StoredChunk> chunks;
  std::string checksum;  // of the document; set by reading and by writing
};

// A single chunk, for the exchange between ranks.
Json chunk_to_json(const StoredChunk& chunk);
StoredChunk chunk_from_json(const Json& json, const std::string& where);

// The file's text. Sets manifest.checksum.
std::string manifest_text(Manifest& manifest);

// Reads folder/checkpoint.json. UserError when it is missing, damaged, of a newer format, or says what cannot be.
Manifest load_manifest(const std::filesystem::path& folder);

}  // namespace megalith
