// What lies in a folder that somebody names with --load, --pretrained_checkpoint or --load_hf: a checkpoint of ours, a
// Hugging Face model, a checkpoint of Megatron-LM, or nothing of the kind. Only names are looked at, so a wrong path is
// told as what it is before anything is read or allocated.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "core/error.h"

namespace megalith {

enum class FolderKind {
  kMissing,      // nothing has this name
  kFile,         // a file, not a folder
  kEmpty,        // a folder without visible entries
  kCheckpoint,   // ours: one checkpoint, or a folder of them, damaged ones included
  kHuggingFace,  // config.json or safetensors files
  kMegatron,     // Megatron-LM's: torch_dist (.metadata, common.pt, *.distcp), or one file a rank (mp_rank_00)
  kOther,
};

FolderKind kind_of_folder(const std::filesystem::path& path);

// Where the checkpoints lie that somebody means by this path: in checkpoints/ below the folder of a run (--output_dir),
// which holds none itself; otherwise in `path`.
std::filesystem::path checkpoints_of(const std::filesystem::path& path);

// The folder of a Hugging Face model that `path` means: of a pipeline of diffusers' (model_index.json) its
// transformer's.
std::filesystem::path model_folder_of(const std::filesystem::path& path);

// Why no checkpoint can be loaded from this path, and what to do instead; nothing when it holds one (which may still be
// damaged) or, with may_be_absent, a folder in which a run may begin.
// option  that named the path: "load"
std::optional<UserError> check_checkpoint_path(std::string_view option, const std::filesystem::path& path,
                                               bool may_be_absent);

// Why a Hugging Face model cannot be read from this path, where that is plain from what lies there instead.
std::optional<UserError> check_hf_path(std::string_view option, const std::filesystem::path& path);

// The names of the first few entries: "config.json, model.safetensors and 3 more"; "nothing" for an empty folder.
std::string entries_text(const std::filesystem::path& folder);

// The same as one error, for whoever looks into a folder of Megatron-LM's later.
UserError megatron_checkpoint_error(const std::filesystem::path& path);

}  // namespace megalith
