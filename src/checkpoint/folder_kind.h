// The kind of folder in --load, --pretrained_checkpoint or --load_hf: our checkpoint, a Hugging Face model,
// Megatron-LM's checkpoint, or none. Judged by names only, so that a wrong path is explained before anything is read.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "core/error.h"

namespace megalith {

enum class FolderKind {
  kMissing,      // does not exist
  kFile,         // not a folder
  kEmpty,        // no visible entries
  kCheckpoint,   // ours: one checkpoint or a folder of them, even damaged
  kHuggingFace,  // config.json or safetensors files
  kMegatron,     // torch_dist (.metadata, common.pt, *.distcp) or one file a rank (mp_rank_00)
  kOther,
};

FolderKind kind_of_folder(const std::filesystem::path& path);

// The folder of checkpoints that `path` means: checkpoints/ in a run's folder (--output_dir) without checkpoints of its
// own; otherwise `path`.
std::filesystem::path checkpoints_of(const std::filesystem::path& path);

// The Hugging Face folder that `path` means: for a diffusers pipeline (model_index.json), its transformer's.
std::filesystem::path model_folder_of(const std::filesystem::path& path);

// Why no checkpoint can be loaded from this path, with a remedy; nothing if it holds one, even damaged, or, with
// may_be_absent, may begin a run.
// option  that gave the path: "load"
std::optional<UserError> check_checkpoint_path(std::string_view option, const std::filesystem::path& path,
                                               bool may_be_absent);

// Why no Hugging Face model can be read from this path, if the names tell.
std::optional<UserError> check_hf_path(std::string_view option, const std::filesystem::path& path);

// The first few entries: "config.json, model.safetensors and 3 more"; "nothing" for an empty folder.
std::string entries_text(const std::filesystem::path& folder);

// The same error, for code that opens a Megatron-LM folder later.
UserError megatron_checkpoint_error(const std::filesystem::path& path);

}  // namespace megalith
