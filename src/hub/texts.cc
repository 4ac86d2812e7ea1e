#include "hub/texts.h"

#include <fmt/format.h>

#include <filesystem>

#include "core/error.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

std::vector<std::string> files_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code code;
  for (const auto& entry : fs::recursive_directory_iterator(folder, code)) {
    if (fs::is_regular_file(entry.path(), code)) {
      names.push_back(entry.path().lexically_relative(folder).generic_string());
    }
  }
  return names;
}

}  // namespace

std::vector<std::string> resolve_hub_texts(const std::string& option, const std::string& value,
                                           const EnvironmentMap& environment, const HubOptions& options, Logger& log,
                                           const std::optional<std::string>& split) {
  std::error_code code;
  const std::optional<HubName> name = parse_hub_name(value, HubRepoType::kDataset);
  const bool is_pattern = value.find_first_of("*?[") != std::string::npos;
  const bool is_file = name && !name->inner.empty() && is_texts_name(name->inner);
  if (fs::exists(value, code) || !name || is_pattern || is_file) {
    return {resolve_hub_path(option, value, HubNeed::kTextFile, environment, options, log).string()};
  }
  const HubSettings settings = read_hub_settings(environment, options);
  const std::string what = fmt::format("{} {}", option, name->text());
  fs::path folder;
  std::vector<std::string> chosen;
  if (settings.is_offline) {
    const std::optional<fs::path> cached = cached_snapshot(settings, *name);
    if (!cached) {
      throw UserError(fmt::format("{}: there is no such path, HF_HUB_OFFLINE is set, and the cache {} lacks this "
                                  "repository",
                                  what, settings.cache.string()),
                      offline_remedy(settings, *name));
    }
    folder = *cached;
    chosen = choose_texts(files_in(folder), name->inner, name->repo, split);
  } else {
    // Only the hub knows all files; cached ones are not refetched.
    HubFetch fetch(settings, *name, what, log);
    try {
      fetch.list();
    } catch (const UserError& error) {
      throw UserError(error.message(),
                      fmt::format("{}\n  if a path was meant: '{}' does not exist here", error.remedy(), value));
    }
    std::vector<std::string> files;
    for (const HubFile& file : fetch.listing().files) files.push_back(file.name);
    chosen = choose_texts(files, name->inner, name->repo, split);
    fetch.get(chosen);
    folder = fetch.folder();
  }
  for (std::string& file : chosen) file = (folder / file).string();
  return chosen;
}

}  // namespace megalith
