// Writes a folder of safetensors from all ranks' tensors: the common part of Hugging Face's and PEFT's folders.
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
  std::string option;  // for messages: "--save_hf"
  std::string stem;    // of the weights' files: "model"
  std::string kind;    // what may be replaced, for messages: "a Hugging Face model"
  std::function<bool(const std::filesystem::path&)> is_replaceable;
  // Writes the other files, on rank 0.
  std::function<void(const std::filesystem::path&)> write_rest;
  std::map<std::string, std::string> metadata = {};  // of the weights' files, the same on all ranks
};

// The folder appears atomically and keeps its predecessor's other files. Ranks write their boxes to shared files.
// UserError for an existing folder that may not be replaced, or too little space. Collective over the world.
void write_export(const ExportFolder& target, std::span<const CheckpointTensor> tensors, const Groups& groups,
                  const HfExport& settings);

}  // namespace megalith
