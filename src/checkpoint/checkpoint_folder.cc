#include "checkpoint/checkpoint_folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "checkpoint/exchange.h"
#include "checkpoint/folder_kind.h"
#include "checkpoint/manifest.h"
#include "checkpoint/object_checkpoints.h"
#include "core/checksum.h"
#include "core/error.h"
#include "core/file.h"
#include "core/strings.h"
#include "core/system_call.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kPrefix = "iter_";

std::optional<int64_t> parse_count(std::string_view text) {
  int64_t value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc{} || result.ptr != text.data() + text.size() || text.empty() || value < 0)
    return std::nullopt;
  return value;
}

// The iteration of a checkpoint moved aside.
std::optional<int64_t> parse_replaced_name(const fs::path& path) {
  return parse_checkpoint_folder_name(replaced_target(path.filename().string()));
}

// In the order to try.
std::vector<int64_t> candidates(const fs::path& root, const Pointer& pointer) {
  std::vector<int64_t> iterations = list_checkpoints(root);
  std::reverse(iterations.begin(), iterations.end());
  if (!pointer.iteration ||
      !std::binary_search(iterations.begin(), iterations.end(), *pointer.iteration, std::greater<>())) {
    return iterations;
  }
  // Follows the chain from the pointer's to the same run's later ones.
  std::map<std::string, std::pair<int64_t, std::string>> follower_of;  // previous checksum to iteration, checksum
  std::string checksum;
  for (const int64_t iteration : iterations) {
    try {
      const Manifest manifest = load_manifest(checkpoint_folder(root, iteration));
      if (iteration == *pointer.iteration) {
        checksum = manifest.checksum;
      } else if (!manifest.previous.empty()) {
        follower_of.emplace(manifest.previous, std::pair(iteration, manifest.checksum));  // of two, the later
      }
    } catch (const UserError&) {
      // Reported in its turn.
    }
  }
  std::vector<int64_t> first = {*pointer.iteration};
  for (auto next = follower_of.find(checksum); next != follower_of.end();
       next = follower_of.find(next->second.second)) {
    if (std::find(first.begin(), first.end(), next->second.first) != first.end()) break;
    first.push_back(next->second.first);
  }
  std::reverse(first.begin(), first.end());
  for (const int64_t iteration : iterations) {
    if (std::find(first.begin(), first.end(), iteration) == first.end()) first.push_back(iteration);
  }
  return first;
}

std::vector<std::string> chunk_faults(const fs::path& folder, const Manifest& manifest, int rank, int size) {
  std::vector<std::string> faults;
  std::map<std::string, std::vector<const StoredChunk*>> chunks_by_file;
  for (const StoredChunk& chunk : manifest.chunks) chunks_by_file[chunk.file].push_back(&chunk);
  // By tensors: one file may be most of a checkpoint.
  size_t number = 0;
  for (const auto& [file_name, chunks] : chunks_by_file) {
    const fs::path path = folder / file_name;
    std::unique_ptr<SafetensorsFile> file;
    try {
      if (!fs::exists(path)) throw UserError(fmt::format("{} is missing", path.string()));
      file = std::make_unique<SafetensorsFile>(path);
    } catch (const UserError& error) {
      if (rank == 0) faults.push_back(error.message());
      number += chunks.size();
      continue;
    }
    if (rank == 0 && file->metadata() != std::map<std::string, std::string>{{"format", "pt"}}) {
      faults.push_back(fmt::format("{} is damaged: its metadata is not what was written", path.string()));
    }
    for (const StoredChunk* chunk : chunks) {
      if (number++ % static_cast<size_t>(size) != static_cast<size_t>(rank)) continue;
      const std::string entry_name = chunk_entry_name(chunk->name, chunk->shape, chunk->box);
      const SafetensorsTensor* tensor = file->find(entry_name);
      if (tensor == nullptr) {
        faults.push_back(fmt::format("{} does not hold {}", path.string(), entry_name));
      } else if (tensor->dtype != chunk->dtype || tensor->shape != chunk->box.extent) {
        faults.push_back(fmt::format("{} in {} is {} [{}], expected {} [{}]", entry_name, path.string(),
                                     name_of(tensor->dtype), fmt::join(tensor->shape, ", "), name_of(chunk->dtype),
                                     fmt::join(chunk->box.extent, ", ")));
      } else if (checksum128(file->bytes(*tensor)) != chunk->checksum) {
        faults.push_back(fmt::format("{} in {} is damaged: its checksum does not fit", entry_name, path.string()));
      }
    }
  }
  return faults;
}

void remove_checkpoint(const fs::path& root, int64_t iteration, Logger& log, const StepHook& before_step) {
  const fs::path folder = root / checkpoint_folder_name(iteration);
  if (fs::is_symlink(folder)) return;
  try {
    if (const auto store = mirrored_store(root, log)) remove_stored_checkpoint(*store, iteration);
    // Hidden first: a killed run leaves no damaged checkpoint.
    const fs::path hidden = root / fmt::format(".{}.tmp-removed", checkpoint_folder_name(iteration));
    if (before_step) before_step("remove");
    remove_tree(hidden);
    rename_path(folder, hidden);
    if (before_step) before_step("remove hidden");
    remove_tree(hidden);
  } catch (const std::exception& error) {
    log.warn("could not delete the old checkpoint {}: {}", folder.string(), error.what());
  }
}

}  // namespace

std::string checkpoint_folder_name(int64_t iteration) { return fmt::format("{}{:07d}", kPrefix, iteration); }

std::optional<int64_t> parse_checkpoint_folder_name(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const std::optional<int64_t> iteration = parse_count(name.substr(kPrefix.size()));
  // Only our spelling: one folder per iteration.
  if (!iteration || checkpoint_folder_name(*iteration) != name) return std::nullopt;
  return iteration;
}

std::vector<int64_t> list_checkpoints(const fs::path& root) {
  std::set<int64_t> iterations;
  if (!fs::is_directory(root)) return {};
  for (const fs::directory_entry& entry : list_folder(root)) {
    auto iteration = parse_checkpoint_folder_name(entry.path().filename().string());
    if (!iteration) iteration = parse_replaced_name(entry.path());
    if (iteration && entry.is_directory()) iterations.insert(*iteration);
  }
  return {iterations.begin(), iterations.end()};
}

fs::path checkpoint_folder(const fs::path& root, int64_t iteration) {
  const fs::path named = root / checkpoint_folder_name(iteration);
  if (fs::exists(named) || !fs::is_directory(root)) return named;
  for (const fs::directory_entry& entry : list_folder(root)) {
    if (parse_replaced_name(entry.path()) == iteration) return entry.path();
  }
  return named;
}

Pointer read_pointer(const fs::path& root) {
  const fs::path path = root / kPointerFile;
  std::error_code error;
  if (!fs::exists(path, error) && !error) return {std::nullopt, "is missing"};
  std::string text;
  try {
    text = read_file(path);
  } catch (const UserError& error) {
    return {std::nullopt, fmt::format("cannot be read ({})", error.message())};
  }
  const std::string_view word = trim(text);
  if (word.empty()) return {std::nullopt, "is empty"};
  const std::optional<int64_t> iteration = parse_count(word);
  if (!iteration)
    return {std::nullopt, fmt::format("holds {}, not an iteration", dump_json(Json(std::string(word.substr(0, 40)))))};
  return {iteration, ""};
}

void write_pointer(const fs::path& root, int64_t iteration) {
  write_file_atomic(root / kPointerFile, fmt::format("{}\n", iteration));
}

std::vector<std::string> verify_checkpoint(const fs::path& folder, Group& world) {
  std::vector<std::string> faults;
  try {
    faults = chunk_faults(folder, load_manifest(folder), world.rank(), world.size());
  } catch (const UserError& error) {
    faults = {error.message()};
  }
  std::vector<std::string> all;
  for (const std::string& text : gather_texts(world, dump_json(Json(faults)), "checkpoint faults")) {
    for (std::string& fault : json_as<std::vector<std::string>>(parse_json(text, "checkpoint faults"), "a fault")) {
      if (std::find(all.begin(), all.end(), fault) == all.end()) all.push_back(std::move(fault));
    }
  }
  return all;
}

std::optional<FoundCheckpoint> find_checkpoint(const fs::path& root, std::optional<int64_t> step, Group& world,
                                               Logger& log) {
  // All ranks try the folders rank 0 sees.
  Json plan;
  run_on_all(world, "checkpoint search", [&] {
    if (world.rank() != 0) return;
    if (kind_of_folder(root) == FolderKind::kMegatron) throw megatron_checkpoint_error(root);
    if (fs::exists(root / kManifestFile)) {
      const int64_t iteration = load_manifest(root).train.iteration;
      if (step && *step != iteration) {
        throw UserError(
            fmt::format("ckpt_step is {}, but {} is the checkpoint of iteration {}", *step, root.string(), iteration),
            "leave --ckpt_step away, or give the folder that holds the checkpoints to --load");
      }
      plan = {{"names", {""}}, {"iterations", {iteration}}, {"pointer", iteration}, {"problem", ""}};
      return;
    }
    const Pointer pointer = read_pointer(root);
    const std::vector<int64_t> iterations = step ? std::vector<int64_t>{*step} : candidates(root, pointer);
    Json names = Json::array();
    for (const int64_t iteration : iterations) names.push_back(checkpoint_folder(root, iteration).filename().string());
    plan = {{"names", names},
            {"iterations", iterations},
            {"pointer", pointer.iteration.value_or(-1)},
            {"problem", pointer.problem}};
    if (step && !fs::is_directory(checkpoint_folder(root, *step))) {
      std::vector<int64_t> present = list_checkpoints(root);
      throw UserError(fmt::format("{} has no checkpoint of iteration {} (ckpt_step)", root.string(), *step),
                      present.empty() ? "it has none at all" : fmt::format("it has {}", fmt::join(present, ", ")));
    }
  });
  const std::string where = "checkpoint search";
  plan = parse_json(broadcast_text(world, world.rank() == 0 ? plan.dump() : "", 0, where), where);
  const auto iterations = json_get<std::vector<int64_t>>(plan, "iterations", where);
  const auto names = json_get<std::vector<std::string>>(plan, "names", where);
  const auto pointer = json_get<int64_t>(plan, "pointer", where);
  if (iterations.empty()) return std::nullopt;

  std::vector<std::string> all_faults;
  for (size_t i = 0; i < iterations.size(); ++i) {
    const int64_t iteration = iterations[i];
    const std::string& name = names.at(i);
    const fs::path folder = name.empty() ? root : root / name;
    const std::vector<std::string> faults = verify_checkpoint(folder, world);
    if (faults.empty()) {
      const std::string problem = json_get<std::string>(plan, "problem", where);
      const std::string pointer_path = (root / kPointerFile).string();
      if (!step && !problem.empty()) {
        log.info("{} {}: taking the newest intact checkpoint, iteration {}", pointer_path, problem, iteration);
      } else if (!step && pointer != iteration) {
        log.info("{} says {}: taking iteration {}, the newest intact checkpoint{}", pointer_path, pointer, iteration,
                 iteration > pointer ? "; --ckpt_step goes back" : "");
      }
      return FoundCheckpoint{iteration, folder};
    }
    for (const std::string& fault : faults) all_faults.push_back(fault);
    const std::string more = faults.size() > 1 ? fmt::format(" (and {} more faults)", faults.size() - 1) : "";
    if (!step && iterations.size() > 1) log.info("checkpoint {} is not intact: {}{}", folder.string(), faults[0], more);
  }
  constexpr size_t kShown = 5;
  const size_t num_shown = std::min(kShown, all_faults.size());
  throw UserError(
      fmt::format("no intact checkpoint{} in {}: {}{}", step ? fmt::format(" of iteration {}", *step) : "",
                  root.string(),
                  fmt::join(all_faults.begin(), all_faults.begin() + static_cast<ptrdiff_t>(num_shown), "; "),
                  all_faults.size() > kShown ? fmt::format("; and {} more faults", all_faults.size() - kShown) : ""),
      step ? "leave --ckpt_step away to take the newest intact one"
           : "copy the checkpoint again, or give another --load");
}

void check_shared_folder(const fs::path& root, Group& world, const std::function<bool(const fs::path&)>& sees) {
  if (world.size() == 1) return;
  std::string name;
  bool was_there = true;
  run_on_all(world, "checkpoint folder", [&] {
    if (world.rank() != 0) return;
    was_there = fs::exists(root);
    make_directories(root);
    // Unique: an earlier run's would make separate hosts seem to share.
    name = fmt::format(".seen_by_all_{}_{}", ::getpid(), std::chrono::system_clock::now().time_since_epoch().count());
    try {
      write_file_atomic(root / name, "");
    } catch (...) {  // it may exist: perhaps only the flush failed
      try_remove_tree(root / name);
      throw;
    }
  });
  name = broadcast_text(world, name, 0, "checkpoint folder");
  const fs::path probe = root / name;
  const auto clean = [&] {
    if (world.rank() == 0) try_remove_tree(probe);
    std::error_code ignored;
    if (world.rank() == 0 && !was_there) fs::remove(root, ignored);
  };
  try {
    run_on_all(world, "checkpoint folder", [&] {
      if (sees ? sees(probe) : fs::exists(probe)) return;
      throw UserError(fmt::format("{} (--save) is not the folder that rank 0 sees under this name", root.string()),
                      "give a folder on a file system that all hosts share");
    });
  } catch (...) {
    clean();
    throw;
  }
  clean();
}

void apply_retention(const fs::path& root, int64_t iteration, std::optional<int64_t> previous,
                     const Retention& retention, Logger& log, const StepHook& before_step) {
  if (!retention.keep_last && !retention.retain_interval) return;
  std::vector<int64_t> old;  // removable, ascending
  for (const int64_t present : list_checkpoints(root)) {
    if (present < iteration) old.push_back(present);
  }
  if (retention.keep_last) {
    const auto num_kept = static_cast<size_t>(std::max<int64_t>(0, *retention.keep_last - 1));
    old.resize(old.size() - std::min(old.size(), num_kept));
  } else {
    std::erase_if(old, [&](int64_t present) { return present != previous; });
  }
  for (const int64_t present : old) {
    if (retention.retain_interval && present % *retention.retain_interval == 0) continue;
    if (std::ranges::count(retention.kept, present) > 0) continue;
    remove_checkpoint(root, present, log, before_step);
  }
}

void remove_other_checkpoints(const fs::path& root, int64_t iteration, Logger& log) {
  int64_t count = 0;
  for (const int64_t present : list_checkpoints(root)) {
    if (present == iteration) continue;
    remove_checkpoint(root, present, log, {});
    ++count;
  }
  if (count > 0) log.info("overwrite: removed {} checkpoints of the earlier run from {}", count, root.string());
}

void remove_leftovers(const fs::path& root, Logger& log, const StepHook& before_step) {
  if (!fs::is_directory(root)) return;
  std::vector<fs::path> leftovers;
  for (const fs::directory_entry& entry : list_folder(root)) {
    const std::string name = entry.path().filename().string();
    const bool is_temporary = name.find(".tmp-") != std::string::npos;
    const bool is_ours =
        name.starts_with(fmt::format(".{}", kPrefix)) || name.starts_with(fmt::format(".{}", kPointerFile));
    if (is_temporary && is_ours) leftovers.push_back(entry.path());
  }
  // The first of several for one iteration is restored.
  std::erase_if(leftovers, [&](const fs::path& leftover) {
    const std::optional<int64_t> iteration = parse_replaced_name(leftover);
    if (!iteration || fs::exists(root / checkpoint_folder_name(*iteration))) return false;
    if (before_step) before_step("put back");
    try {
      rename_path(leftover, root / checkpoint_folder_name(*iteration));
      sync_path(root);
    } catch (const UserError& error) {
      log.warn("could not put {} back: {}", leftover.string(), error.message());
      return true;
    }
    log.info("put the checkpoint of iteration {} back, which a run was replacing when it was stopped", *iteration);
    return true;
  });
  for (const fs::path& leftover : leftovers) {
    if (before_step) before_step("remove leftover");
    try {
      remove_tree(leftover);
      log.info("removed {}, left by a run that was stopped while it saved", leftover.string());
    } catch (const UserError& error) {
      log.warn("could not remove {}: {}", leftover.string(), error.what());
    }
  }
}

}  // namespace megalith
