// Writing a folder of safetensors from the tensors of all ranks: the part that Hugging Face's folders and PEFT's share.
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
  std::string option;  // that names it, for messages: "--save_hf"
  std::string stem;    // of the weights' files: "model"
  std::string kind;    // what may be replaced, for messages: "a Hugging Face model"
  std::function<bool(const std::filesystem::path&)> is_replaceable;
  // Writes what lies beside the weights, on rank 0.
  std::function<void(const std::filesystem::path&)> write_rest;
  std::map<std::string, std::string> metadata = {};  // of the weights' files, the same on all ranks
};

// The folder appears whole or not at all, and keeps what an earlier one of its name had besides. Every rank writes its
// own boxes into the shared files. UserError when there is something that may not be replaced, or too little space.
// Collective over the world.
void write_export(const ExportFolder& target, std::span<const CheckpointTensor> tensors, const Groups& groups,
                  const HfExport& settings);

}  // namespace megalith
