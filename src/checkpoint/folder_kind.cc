// Source of Megatron-LM's names: megatron/training/checkpointing.py and
// megatron/core/dist_checkpointing/strategies/torch.py.
#include "checkpoint/folder_kind.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/manifest.h"
#include "core/folder.h"
#include "core/strings.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

bool is_megatron_checkpoint(const fs::path& folder) {
  if (is_there(folder / "common.pt") || is_there(folder / ".metadata")) return true;
  const std::vector<std::string> names = names_in(folder);
  return std::any_of(names.begin(), names.end(),
                     [](const std::string& name) { return name.starts_with("mp_rank_") || name.ends_with(".distcp"); });
}

bool is_hugging_face(const fs::path& folder) {
  if (is_there(folder / "config.json")) return true;
  const std::vector<std::string> names = names_in(folder);
  return std::any_of(names.begin(), names.end(),
                     [](const std::string& name) { return name.ends_with(".safetensors"); });
}

}  // namespace

FolderKind kind_of_folder(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path, error)) return FolderKind::kMissing;
  if (!fs::is_directory(path, error)) return FolderKind::kFile;
  if (is_there(path / kManifestFile)) return FolderKind::kCheckpoint;
  const std::vector<std::string> names = names_in(path);
  bool has_iterations = false, has_megatron = is_megatron_checkpoint(path);
  for (const std::string& name : names) {
    const bool is_iteration = parse_checkpoint_folder_name(name).has_value();
    if (is_iteration && is_there(path / name / kManifestFile)) return FolderKind::kCheckpoint;
    has_iterations = has_iterations || is_iteration;
    // torchtitan's are step-N.
    const bool is_theirs = is_iteration || name == "release" || name.starts_with("step-");
    has_megatron = has_megatron || (is_theirs && is_megatron_checkpoint(path / name));
  }
  if (has_megatron) return FolderKind::kMegatron;
  // Ours may lack everything, or be hidden while being replaced.
  if (has_iterations || !list_checkpoints(path).empty()) return FolderKind::kCheckpoint;
  if (is_hugging_face(path)) return FolderKind::kHuggingFace;
  const bool is_empty = std::all_of(names.begin(), names.end(), [](const std::string& name) { return name[0] == '.'; });
  return is_empty ? FolderKind::kEmpty : FolderKind::kOther;
}

fs::path model_folder_of(const fs::path& path) {
  return is_there(path / "model_index.json") ? path / "transformer" : path;
}

fs::path checkpoints_of(const fs::path& path) {
  const fs::path below = path / "checkpoints";
  const bool is_run = kind_of_folder(path) == FolderKind::kOther && kind_of_folder(below) == FolderKind::kCheckpoint;
  return is_run ? below : path;
}

std::string entries_text(const fs::path& folder) {
  constexpr size_t kMost = 4;
  std::vector<std::string> names = names_in(folder);
  std::erase_if(names, [](const std::string& name) { return name[0] == '.'; });
  if (names.empty()) return "nothing";
  const size_t num_more = names.size() > kMost ? names.size() - kMost : 0;
  names.resize(names.size() - num_more);
  return join(names, ", ") + (num_more > 0 ? fmt::format(" and {} more", num_more) : "");
}

UserError megatron_checkpoint_error(const fs::path& path) {
  return UserError(
      fmt::format("{} holds a checkpoint of Megatron-LM or torchtitan", path.string()),
      fmt::format("give it whole, with .metadata or all mp_rank folders, to --load: --load {}, and --finetune to begin "
                  "at iteration 0",
                  path.string()));
}

std::optional<UserError> check_checkpoint_path(std::string_view option, const fs::path& path, bool may_be_absent) {
  const std::string asked = fmt::format("{} {}", option, path.string());
  const std::string remedy = "give a run's folder, the folder that --save named, or one checkpoint of it";
  switch (kind_of_folder(path)) {
    case FolderKind::kCheckpoint:
      return std::nullopt;
    case FolderKind::kMissing:
      return UserError(fmt::format("{} holds no checkpoint: there is no such folder", asked), remedy);
    case FolderKind::kFile:
      return UserError(fmt::format("{} holds no checkpoint: it is a file", asked), remedy);
    case FolderKind::kMegatron:
      return megatron_checkpoint_error(path);
    case FolderKind::kHuggingFace:
      return UserError(
          fmt::format("{} holds no checkpoint: it is a Hugging Face model ({})", asked, entries_text(path)),
          fmt::format("give it to --load_hf: --load_hf {}", path.string()));
    case FolderKind::kEmpty:
    case FolderKind::kOther:
      if (may_be_absent) return std::nullopt;
      return UserError(fmt::format("{} holds no checkpoint: in it there is {}", asked, entries_text(path)),
                       remedy + "; a Hugging Face model is given to --load_hf");
  }
  MEGALITH_CHECK(false, "a kind of folder without a case");
}

std::optional<UserError> check_hf_path(std::string_view option, const fs::path& path) {
  const std::string asked = fmt::format("{} {}", option, path.string());
  switch (kind_of_folder(path)) {
    case FolderKind::kCheckpoint:
      return UserError(fmt::format("{}: this is a checkpoint of megalith ({})", asked, entries_text(path)),
                       fmt::format("give it to --load: --load {}", path.string()));
    case FolderKind::kMegatron:
      return megatron_checkpoint_error(path);
    default:
      return std::nullopt;  // the reader names what is missing
  }
}

}  // namespace megalith
