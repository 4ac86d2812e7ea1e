#include "hub/hub.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <exception>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>
#include <utility>

#include "config/option_value.h"
#include "core/error.h"
#include "core/file.h"
#include "core/folder.h"
#include "core/json.h"
#include "core/strings.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

constexpr size_t kMostConnections = 4;
constexpr std::string_view kWeightsIndex = "model.safetensors.index.json";

// transformers' names and diffusers'.
struct WeightFiles {
  std::string_view single, index;
};
constexpr std::array kWeightFiles = {
    WeightFiles{"model.safetensors", kWeightsIndex},
    WeightFiles{"diffusion_pytorch_model.safetensors", "diffusion_pytorch_model.safetensors.index.json"}};

// A diffusers pipeline: an index above folders of model, encoders and decoder.
constexpr std::string_view kPipelineIndex = "model_index.json", kTransformer = "transformer";
constexpr std::array<std::string_view, 3> kEncoderFolders = {"vae", "text_encoder", "text_encoder_2"};
constexpr std::array<std::string_view, 3> kPipelinePatterns = {"scheduler/*.json", "transformer/config.json",
                                                               "transformer/*.index.json"};
constexpr std::array<std::string_view, 3> kEncoderPatterns = {"vae/*.json", "text_encoder*/*.json", "tokenizer*/*"};

std::function<void(std::chrono::seconds)> waiting_note(Logger& log, const std::string& what) {
  return [&log, what](std::chrono::seconds waited) {
    log.info("{}: another process is fetching it; waiting for {}", what,
             format_duration(static_cast<double>(waited.count())));
  };
}

std::vector<std::string> top_files(const HubListing& listing, const std::vector<std::string>& patterns) {
  std::vector<std::string> names;
  for (const HubFile& file : listing.files) {
    if (file.name.find('/') == std::string::npos && is_included(file.name, patterns, {})) names.push_back(file.name);
  }
  return names;
}

// kinds/encoder/sentence_folder.h; empty for other models.
std::vector<std::string> sentence_files(const HubListing& listing) {
  std::vector<std::string> names = top_files(listing, {"modules.json"});
  if (names.empty()) return names;
  for (const HubFile& file : listing.files) {
    const bool is_of_pooling = file.name.ends_with("_Pooling/config.json");
    if (file.name == "sentence_bert_config.json" || is_of_pooling) names.push_back(file.name);
  }
  return names;
}

bool has_tokenizer(const fs::path& folder) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    const bool is_whole = name == "tokenizer.json" || name == "tekken.json" || name == "vocab.txt" ||
                          name.ends_with(".model") || name.ends_with(".tiktoken") ||
                          (name == "vocab.json" && is_there(folder / "merges.txt"));
    if (is_whole && is_there(entry.path())) return true;
  }
  return false;
}

// UserError if broken, or leading out of its folder.
std::vector<std::string> files_of_index(const fs::path& index) {
  const std::string where = index.string();
  const Json parsed = load_json(index);
  const Json& map = get_member(parsed, "weight_map", where);
  std::set<std::string> names;
  if (!map.is_object()) throw UserError(fmt::format("{}: weight_map is no object", where), "fetch it again");
  for (const auto& [tensor, file] : map.items()) {
    const std::string* name = try_text(file);
    if (name == nullptr || !is_safe_hub_file(*name)) {
      throw UserError(fmt::format("{}: the file of {} is no file name", where, tensor), "fetch it again");
    }
    names.insert(*name);
  }
  return {names.begin(), names.end()};
}

bool has_weights(const fs::path& folder) {
  for (const WeightFiles& files : kWeightFiles) {
    if (is_there(folder / files.single)) return true;
    if (!is_there(folder / files.index)) continue;
    const std::vector<std::string> names = files_of_index(folder / files.index);
    return std::all_of(names.begin(), names.end(), [&](const std::string& name) { return is_there(folder / name); });
  }
  return false;
}

fs::path model_part_of(const fs::path& folder) {
  return is_there(folder / kPipelineIndex) ? folder / kTransformer : folder;
}

bool has_encoders(const fs::path& folder) {
  return is_there(folder / kPipelineIndex) && has_tokenizer(folder / "tokenizer") &&
         has_tokenizer(folder / "tokenizer_2") &&
         std::ranges::all_of(kEncoderFolders, [&](std::string_view part) { return has_weights(folder / part); });
}

// "a/b" of "a/b", "a/b.bin" and "a/b.idx".
std::string data_prefix(std::string name) {
  if (name.ends_with(".bin") || name.ends_with(".idx")) name.resize(name.size() - 4);
  return name;
}

std::vector<std::string> data_prefixes(const std::vector<std::string>& files) {
  const std::set<std::string> all(files.begin(), files.end());
  std::vector<std::string> prefixes;
  for (const std::string& name : all) {
    if (name.ends_with(".idx") && all.contains(fmt::format("{}.bin", data_prefix(name)))) {
      prefixes.push_back(data_prefix(name));
    }
  }
  return prefixes;
}

std::vector<std::string> files_below(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::recursive_directory_iterator(folder, error)) {
    if (is_there(entry.path()) && !entry.is_directory()) {
      names.push_back(entry.path().lexically_relative(folder).generic_string());
    }
  }
  return names;
}

// Null if incomplete.
std::optional<fs::path> find_cached(const HubSettings& settings, const HubName& name, HubNeed need) {
  const std::optional<fs::path> folder = cached_snapshot(settings, name);
  if (!folder) return std::nullopt;
  const auto if_true = [](bool is_enough, fs::path path) {
    return is_enough ? std::optional<fs::path>(std::move(path)) : std::nullopt;
  };
  const fs::path inner = *folder / name.inner;
  switch (need) {
    case HubNeed::kTokenizer:
      return if_true(name.inner.empty() ? has_tokenizer(*folder) : is_there(inner),
                     name.inner.empty() ? *folder : inner);
    case HubNeed::kModelConfig:
      return if_true(is_there(model_part_of(*folder) / "config.json"), *folder);
    case HubNeed::kModel: {
      const fs::path model = model_part_of(*folder);
      return if_true(is_there(model / "config.json") && has_weights(model), *folder);
    }
    case HubNeed::kEncoders:
      return if_true(has_encoders(*folder), *folder);
    case HubNeed::kTextFile:
      return if_true(!name.inner.empty() && is_there(inner), inner);
    case HubNeed::kTokenData:
      break;
  }
  const std::vector<std::string> prefixes = data_prefixes(files_below(*folder));
  if (name.inner.empty()) return if_true(prefixes.size() == 1, *folder / (prefixes.empty() ? "" : prefixes.front()));
  const std::string wanted = data_prefix(name.inner);
  return if_true(std::find(prefixes.begin(), prefixes.end(), wanted) != prefixes.end(), *folder / wanted);
}

std::string some_of(const std::vector<std::string>& names) {
  constexpr size_t kMost = 8;
  std::vector<std::string> shown(names.begin(),
                                 names.begin() + static_cast<std::ptrdiff_t>(std::min(names.size(), kMost)));
  if (names.size() > kMost) shown.emplace_back("…");
  return join(shown, ", ");
}

bool is_listed(const HubListing& listing, std::string_view name) {
  return std::ranges::find(listing.files, name, &HubFile::name) != listing.files.end();
}

// part: folder in a pipeline, "vae/"; may be empty. The index was fetched before.
void get_weights(HubFetch& fetch, const HubName& name, const std::string& what, const std::string& part = "") {
  std::vector<std::string> names;
  for (const WeightFiles& files : kWeightFiles) {
    if (!names.empty()) break;
    if (const fs::path index = fetch.folder() / part / files.index; is_there(index)) {
      for (const std::string& file : files_of_index(index)) names.push_back(part + file);
    } else if (std::string single = fmt::format("{}{}", part, files.single); is_listed(fetch.listing(), single)) {
      names.push_back(std::move(single));
    }
  }
  if (names.empty()) {
    const std::vector<std::string> others = top_files(fetch.listing(), {"*.bin", "*.pt", "*.pth", "*.gguf", "*.h5"});
    throw UserError(fmt::format("{}: the model {} has no safetensors weights{}{}{}{}", what, name.repo,
                                part.empty() ? "" : " in ", part, others.empty() ? "" : ", but ", some_of(others)),
                    "name a revision or repository that has model.safetensors (refs/pr/… often hold a conversion), or "
                    "convert them");
  }
  fetch.get(names);
}

// The prefix of the token files to fetch.
std::string chosen_prefix(const HubListing& listing, const HubName& name, const std::string& what) {
  std::vector<std::string> files;
  for (const HubFile& file : listing.files) files.push_back(file.name);
  const std::vector<std::string> prefixes = data_prefixes(files);
  const std::string wanted = data_prefix(name.inner);
  if (prefixes.empty()) {
    throw UserError(fmt::format("{}: the dataset {} holds no .bin and .idx files", what, name.repo),
                    "its text has to be made into tokens first: 'megalith prepare --help'");
  }
  if (name.inner.empty() && prefixes.size() == 1) return prefixes.front();
  if (std::find(prefixes.begin(), prefixes.end(), wanted) != prefixes.end()) return wanted;
  throw UserError(fmt::format("{}: the dataset {} holds {}: {}", what, name.repo,
                              name.inner.empty() ? "several prefixes" : "other prefixes", some_of(prefixes)),
                  fmt::format("write {}/PREFIX{}{}", name.repo, name.revision == "main" ? "" : "@",
                              name.revision == "main" ? "" : name.revision));
}

// Skips weights beside the folders: other forms of the same.
fs::path fetch_of_pipeline(HubFetch& fetch, const HubName& name, HubNeed need, const std::string& what) {
  std::vector<std::string> patterns(kPipelinePatterns.begin(), kPipelinePatterns.end());
  patterns.emplace_back(kPipelineIndex);
  if (need == HubNeed::kEncoders) patterns.insert(patterns.end(), kEncoderPatterns.begin(), kEncoderPatterns.end());
  std::vector<std::string> names;
  for (const HubFile& file : fetch.listing().files) {
    if (is_included(file.name, patterns, {})) names.push_back(file.name);
  }
  fetch.get(names);
  if (need == HubNeed::kModel) get_weights(fetch, name, what, fmt::format("{}/", kTransformer));
  if (need == HubNeed::kEncoders) {
    for (const std::string_view part : kEncoderFolders) get_weights(fetch, name, what, fmt::format("{}/", part));
  }
  return fetch.folder();
}

fs::path fetch_needed(HubFetch& fetch, const HubName& name, HubNeed need, const std::string& what) {
  const bool is_of_model = need == HubNeed::kModelConfig || need == HubNeed::kModel || need == HubNeed::kEncoders;
  if (is_of_model && is_listed(fetch.listing(), kPipelineIndex)) return fetch_of_pipeline(fetch, name, need, what);
  switch (need) {
    case HubNeed::kEncoders:
      throw UserError(fmt::format("{}: the model {} has no {}, and so no encoders", what, name.repo, kPipelineIndex),
                      "name a repository in the form that diffusers reads, such as black-forest-labs/FLUX.1-dev");
    case HubNeed::kTokenizer:
    case HubNeed::kModelConfig:
    case HubNeed::kModel: {
      std::vector<std::string> patterns = tokenizer_file_patterns();
      if (need != HubNeed::kTokenizer) patterns.emplace_back(kWeightsIndex);
      std::vector<std::string> names = top_files(fetch.listing(), patterns);
      if (need != HubNeed::kTokenizer) {
        for (std::string& file : sentence_files(fetch.listing())) names.push_back(std::move(file));
      }
      if (!name.inner.empty()) names = {name.inner};
      fetch.get(names);
      if (need == HubNeed::kModel) get_weights(fetch, name, what);
      if (need == HubNeed::kTokenizer && name.inner.empty() && !has_tokenizer(fetch.folder())) {
        throw UserError(fmt::format("{}: the model {} has no tokenizer's files", what, name.repo),
                        "name another repository, or a folder with a tokenizer.json");
      }
      if (need != HubNeed::kTokenizer && !is_there(fetch.folder() / "config.json")) {
        throw UserError(fmt::format("{}: the model {} has no config.json", what, name.repo),
                        "name a repository in the form that transformers reads");
      }
      return name.inner.empty() ? fetch.folder() : fetch.folder() / name.inner;
    }
    case HubNeed::kTextFile:
      if (name.inner.empty()) {
        std::vector<std::string> files;
        for (const HubFile& file : fetch.listing().files) files.push_back(file.name);
        throw UserError(fmt::format("{}: which of the files of {} is not said: {}", what, name.repo, some_of(files)),
                        fmt::format("write {}/FILE", name.repo));
      }
      fetch.get({name.inner});
      return fetch.folder() / name.inner;
    case HubNeed::kTokenData:
      break;
  }
  const std::string prefix = chosen_prefix(fetch.listing(), name, what);
  fetch.get({fmt::format("{}.bin", prefix), fmt::format("{}.idx", prefix)});
  return fetch.folder() / prefix;
}

bool is_existing_value(const std::string& value, HubNeed need) {
  if (is_there(value)) return true;
  return need == HubNeed::kTokenData && (is_there(value + ".idx") || is_there(value + ".bin"));
}

// hint: advice added to errors; may be empty.
fs::path find_or_fetch(const std::string& option, const HubName& name, HubNeed need, const std::string& hint,
                       const EnvironmentMap& environment, const HubOptions& options, Logger& log) {
  const HubSettings settings = read_hub_settings(environment, options);
  if (std::optional<fs::path> found = find_cached(settings, name, need)) return *found;
  const std::string what = fmt::format("{} {}", option, name.text());
  const auto with_hint = [&](const std::string& remedy) {
    return fmt::format("{}{}{}", remedy, remedy.empty() || hint.empty() ? "" : "\n  ", hint);
  };
  if (settings.is_offline) {
    throw UserError(
        fmt::format("{}: there is no such path, HF_HUB_OFFLINE is set, and the cache {} lacks {}", what,
                    settings.cache.string(), cached_snapshot(settings, name) ? "some of its files" : "this repository"),
        with_hint(offline_remedy(settings, name)));
  }
  try {
    HubFetch fetch(settings, name, what, log);
    // Another process may have fetched it.
    if (std::optional<fs::path> found = find_cached(settings, name, need)) return *found;
    fetch.list();
    return fetch_needed(fetch, name, need, what);
  } catch (const UserError& error) {
    throw UserError(error.message(), with_hint(error.remedy()));
  } catch (const HubError& error) {
    throw HubError(error.message(), with_hint(error.remedy()));
  }
}

}  // namespace

const std::vector<std::string>& tokenizer_file_patterns() {
  static const std::vector<std::string> patterns = {"config.json",       "generation_config.json",
                                                    "tokenizer*",        "special_tokens_map.json",
                                                    "added_tokens.json", "vocab.*",
                                                    "merges.txt",        "*.model",
                                                    "*.tiktoken",        "tekken.json",
                                                    "chat_template*"};
  return patterns;
}

fs::path resolve_hub_path(const std::string& option, const std::string& value, HubNeed need,
                          const EnvironmentMap& environment, const HubOptions& options, Logger& log) {
  if (value.empty() || is_existing_value(value, need)) return value;
  if (const std::optional<UserError> refusal = refuse_url(option, value)) throw *refusal;
  const bool is_data = need == HubNeed::kTokenData || need == HubNeed::kTextFile;
  const std::optional<HubName> name = parse_hub_name(value, is_data ? HubRepoType::kDataset : HubRepoType::kModel);
  if (!name) return value;
  // Names not found are mostly mistyped paths.
  return find_or_fetch(option, *name, need, fmt::format("if a path was meant: '{}' does not exist here", value),
                       environment, options, log);
}

fs::path complete_hub_folder(const std::string& option, const std::string& folder, HubNeed need,
                             const EnvironmentMap& environment, const HubOptions& options, Logger& log) {
  std::optional<HubName> name = parse_hub_name(folder, HubRepoType::kModel);
  if (!name || !is_commit(name->revision)) return folder;
  const std::string inner = std::exchange(name->inner, "");
  const fs::path found = find_or_fetch(option, *name, need, "", environment, options, log);
  return inner.empty() ? found : found / inner;
}

void resolve_hub_option(const std::string& option, std::optional<std::string>& value, HubNeed need,
                        const EnvironmentMap& environment, const HubOptions& options, Logger& log) {
  if (value) value = resolve_hub_path(option, *value, need, environment, options, log).string();
}

std::vector<UserError> refuse_urls(const OptionSet& options, const std::set<std::string_view>& stored) {
  // A command that lacks one skips it.
  constexpr std::string_view kPathOptions[] = {"load",
                                               "save",
                                               "output_dir",
                                               "adapter",
                                               "save_adapter",
                                               "load_hf",
                                               "save_hf",
                                               "pretrained_checkpoint",
                                               "tokenizer_model",
                                               "vocab_file",
                                               "merge_file",
                                               "data_path",
                                               "train_data_path",
                                               "valid_data_path",
                                               "test_data_path",
                                               "data_args_path",
                                               "per_split_data_args_path",
                                               "data_cache_path",
                                               "input",
                                               "input_prefixes",
                                               "output_prefix",
                                               "encode_file",
                                               "metrics_file",
                                               "loss_plot_file",
                                               "page_file",
                                               "tensorboard_dir",
                                               "wandb_save_dir",
                                               "mlflow_dir",
                                               "profile_dir"};
  std::vector<UserError> errors;
  for (const std::string_view name : kPathOptions) {
    const Option* option = options.find(name);
    if (option == nullptr) continue;
    for (const std::string& value : parse_list(option->text()).value_or(std::vector<std::string>{})) {
      if (url_scheme(value) == "s3" && stored.contains(name)) continue;
      if (std::optional<UserError> refusal = refuse_url(option->named_at(option->source()), value)) {
        errors.push_back(std::move(*refusal));
      }
    }
  }
  return errors;
}

HubFetch::HubFetch(const HubSettings& settings, HubName name, std::string what, Logger& log)
    : settings_(settings),
      name_(std::move(name)),
      what_(std::move(what)),
      log_(log),
      lock_(settings, name_, "snapshot", waiting_note(log, what_)) {}

void HubFetch::list() {
  listing_ = HubClient(settings_, name_, what_, log_).list();
  write_hub_ref(settings_, name_, listing_.commit);
}

fs::path HubFetch::folder() const { return hub_snapshot(settings_, name_, listing_.commit); }

void HubFetch::check_room(int64_t num_bytes) const {
  const int64_t room = free_disk_bytes(settings_.cache);
  if (num_bytes <= room) return;
  throw UserError(fmt::format("{}: {} are to be fetched, and {} has room for {}", what_, format_bytes(num_bytes),
                              settings_.cache.string(), format_bytes(room)),
                  "make room, or name a folder on another disk with HF_HUB_CACHE");
}

void HubFetch::get(const std::vector<std::string>& names) {
  std::map<std::string, const HubFile*> listed;
  for (const HubFile& file : listing_.files) listed[file.name] = &file;
  std::vector<HubFile> missing;
  int64_t num_bytes = 0;
  std::error_code error;
  HubClient client(settings_, name_, what_, log_);
  for (const std::string& name : names) {
    const auto found = listed.find(name);
    if (found == listed.end()) {
      throw UserError(fmt::format("{}: the {} {} has no file {}", what_, name_.type_word(), name_.repo, name),
                      fmt::format("its files: {}/{}/tree/main", settings_.shown_endpoint(), name_.page()));
    }
    if (is_there(folder() / name)) continue;
    HubFile file = *found->second;
    client.describe(listing_.commit, file);
    const fs::path blob = hub_blob(settings_, name_, file.hash);
    const auto present = fs::file_size(is_there(blob) ? blob : fs::path(blob.string() + ".incomplete"), error);
    num_bytes += std::max<int64_t>(file.size - (error ? 0 : static_cast<int64_t>(present)), 0);
    missing.push_back(std::move(file));
  }
  if (missing.empty()) return make_directories(folder());  // a repository without files
  make_directories(hub_repo_folder(settings_, name_) / "blobs");
  check_room(num_bytes);
  log_.info("fetching {} ({}) of {} at commit {} into {}",
            missing.size() == 1 ? missing[0].name : fmt::format("{} files", missing.size()), format_bytes(num_bytes),
            name_.text(), listing_.commit.substr(0, 12), settings_.cache.string());

  Progress progress(log_, fmt::format("fetch {}", name_.text()), num_bytes, "bytes");
  const auto on_bytes = [&](int64_t count) { progress.advance(count); };
  std::atomic<size_t> next{0};
  std::atomic<bool> stop{false};
  std::mutex mutex;
  std::exception_ptr failure;
  const auto work = [&] {
    try {
      HubClient own(settings_, name_, what_, log_);
      for (size_t i; !stop && (i = next++) < missing.size();) get_one(own, missing[i], on_bytes, stop);
    } catch (...) {
      std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
      stop = true;
    }
  };
  std::vector<std::thread> threads;
  while (threads.size() < std::min(kMostConnections, missing.size())) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
  progress.finish();
}

void HubFetch::get_one(HubClient& client, const HubFile& file, const std::function<void(int64_t)>& on_bytes,
                       const std::atomic<bool>& stop) {
  const fs::path blob = hub_blob(settings_, name_, file.hash);
  const HubLock lock(settings_, name_, file.hash, waiting_note(log_, fmt::format("{} {}", what_, file.name)));
  std::error_code error;
  // Other lengths were truncated while being written.
  if (is_there(blob) && static_cast<int64_t>(fs::file_size(blob, error)) != file.size) fs::remove(blob, error);
  if (!is_there(blob)) client.download(listing_.commit, file, blob, on_bytes, stop);
  if (is_there(blob)) link_hub_blob(settings_, name_, listing_.commit, file.name, file.hash);
}

}  // namespace megalith
