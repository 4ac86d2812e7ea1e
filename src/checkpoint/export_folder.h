// Writes a folder of safetensors from all ranks' tensors, as Hugging Face or PEFT.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>

#include "checkpoint/checkpoint_state.h"
#include "checkpoint/hf.h"
#include "comm/groups.h"

namespace megalith {

struct ExportFolder {
  std::filesystem::path folder;
  std::string option;  // "--save_hf"
  std::string stem;    // weights' files: "model"
  std::string kind;    // replaceable: "a Hugging Face model"
  std::function<bool(const std::filesystem::path&)> is_replaceable;
  // Other files, on rank 0.
  std::function<void(const std::filesystem::path&)> write_rest;
  std::map<std::string, std::string> metadata = {};  // the weights' files', equal on all ranks
};

// Appears atomically, keeping its predecessor's other files. Ranks write boxes to shared files. UserError if it may not
// replace, or lacks space. Collective over the world.
void write_export(const ExportFolder& target, std::span<const CheckpointTensor> tensors, const Groups& groups,
                  const HfExport& settings);

}  // namespace megalith
