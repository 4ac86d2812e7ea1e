// Kinds of folder in --load, --pretrained_checkpoint or --load_hf, judged by names, before anything is read.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "core/error.h"

namespace megalith {

enum class FolderKind {
  kMissing,
  kFile,
  kEmpty,        // nothing visible
  kCheckpoint,   // ours: one or a folder of them, even damaged
  kHuggingFace,  // config.json or safetensors files
  kMegatron,     // torch_dist (.metadata, common.pt, *.distcp) or a file per rank (mp_rank_00)
  kOther,
};

FolderKind kind_of_folder(const std::filesystem::path& path);

// checkpoints/ in a run's folder (--output_dir) without checkpoints of its own; else `path`.
std::filesystem::path checkpoints_of(const std::filesystem::path& path);

// A diffusers pipeline's (model_index.json) transformer; else `path`.
std::filesystem::path model_folder_of(const std::filesystem::path& path);

// Error why no checkpoint can be loaded; null if there is one, even damaged, or, with may_be_absent, if a run may
// begin.
//   option  "load"
std::optional<UserError> check_checkpoint_path(std::string_view option, const std::filesystem::path& path,
                                               bool may_be_absent);

// Error why no Hugging Face model can be read, if names tell.
std::optional<UserError> check_hf_path(std::string_view option, const std::filesystem::path& path);

// "config.json, model.safetensors and 3 more"; "nothing".
std::string entries_text(const std::filesystem::path& folder);

// For code that opens the folder later.
UserError megatron_checkpoint_error(const std::filesystem::path& path);

}  // namespace megalith
