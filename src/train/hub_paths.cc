#include "train/hub_paths.h"

#include <algorithm>
#include <utility>

#include "checkpoint/folder_kind.h"
#include "config/resolve.h"
#include "core/collect_errors.h"
#include "data/blend.h"
#include "data/indexed_dataset.h"
#include "hub/cache.h"
#include "hub/client.h"
#include "hub/hub.h"
#include "train/unopened_tokenizer.h"

namespace megalith {
namespace {

bool is_no_name(const std::string& path) {
  return std::filesystem::exists(path) || (url_scheme(path).empty() && !parse_hub_name(path, HubRepoType::kModel));
}

// Every prefix of token files with its option. Unreadable lists are reported elsewhere.
std::vector<std::pair<std::string, std::string>> listed_data(const DataOptions& given) {
  std::vector<std::pair<std::string, std::string>> all;
  try {
    const DataOptions data = with_listed_paths(given);
    const std::pair<const char*, const std::vector<std::string>*> lists[] = {{"data_path", &data.data_path},
                                                                             {"train_data_path", &data.train_data_path},
                                                                             {"valid_data_path", &data.valid_data_path},
                                                                             {"test_data_path", &data.test_data_path}};
    for (const auto& [option, items] : lists) {
      if (items->empty()) continue;
      for (const std::string& prefix : parse_blend(*items, option).prefixes) all.emplace_back(option, prefix);
    }
  } catch (const UserError&) {
  }
  return all;
}

}  // namespace

HubPaths::HubPaths(const EnvironmentMap& environment, const std::map<std::string, std::string>& exports)
    : environment_(environment) {
  for (const auto& [name, value] : exports) environment_[name] = value;
}

bool HubPaths::find_model(Resolved& resolved, bool may_fetch) {
  std::optional<std::string>& load_hf = resolved.derived.checkpoint.load_hf;
  if (!load_hf) return false;
  if (!may_fetch) return is_no_name(*load_hf);
  const std::string given = *load_hf;
  resolve_hub_option("load_hf", load_hf, HubNeed::kModelConfig, environment_, resolved.config.hub, log_);
  if (*load_hf != given) model_name_ = given;
  load_hf = model_folder_of(*load_hf).string();
  return true;
}

bool HubPaths::find_tokenizer(Resolved& resolved, bool may_fetch) {
  std::optional<std::string>& tokenizer = resolved.derived.tokenizer.tokenizer_model;
  if (!may_fetch) return !tokenizer || is_no_name(*tokenizer);
  resolve_hub_option("tokenizer_model", tokenizer, HubNeed::kTokenizer, environment_, resolved.config.hub, log_);
  return true;
}

void HubPaths::fetch_large_files(Resolved& resolved) {
  const Config& config = resolved.config;
  Derived& derived = resolved.derived;
  std::vector<UserError> errors;
  if (!model_name_.empty()) {
    collect(errors, [&] {
      // The commit whose config.json was read: the branch may have moved.
      derived.checkpoint.load_hf =
          complete_hub_folder("load_hf", *derived.checkpoint.load_hf, HubNeed::kModel, environment_, config.hub, log_)
              .string();
    });
  }
  resolved.kind().fetch_inputs(resolved, environment_, log_, errors);
  throw_if_any(errors);
  resolved.kind().prepare_data(resolved, log_);
}

std::optional<HubName> HubPaths::missing_data(const std::string& value) const {
  const std::string prefix = data_prefix(value);
  std::error_code error;
  const auto has_files = [&](const std::string& path) {
    return std::filesystem::exists(path + ".idx", error) || std::filesystem::exists(path + ".bin", error);
  };
  if (value.empty() || has_files(prefix)) return std::nullopt;
  std::optional<HubName> name = parse_hub_name(value, HubRepoType::kDataset);
  if (!name) return std::nullopt;
  const auto snapshot = cached_snapshot(read_hub_settings(environment_), *name);
  if (snapshot && (name->inner.empty() || has_files((*snapshot / data_prefix(name->inner)).string())))
    return std::nullopt;
  return name;
}

void HubPaths::look_for_data(const Resolved& resolved) {
  std::vector<UserError> errors;
  for (const auto& [option, value] : listed_data(resolved.config.data)) {
    const std::optional<HubName> name = missing_data(value);
    if (!name) continue;
    const std::string hint = fmt::format("if a path was meant: '{}' does not exist here", value);
    const auto with_hint = [&](const std::string& remedy) { return remedy.empty() ? hint : remedy + "\n  " + hint; };
    try {
      const HubSettings settings = read_hub_settings(environment_, resolved.config.hub);
      const std::string what = fmt::format("{} {}", option, name->text());
      if (settings.is_offline)
        throw UserError(fmt::format("{}: there is no such path, and HF_HUB_OFFLINE is set", what));
      const HubListing listing = HubClient(settings, *name, what, log_).list();
      const std::string wanted = data_prefix(name->inner);
      const bool has_it = std::any_of(listing.files.begin(), listing.files.end(), [&](const HubFile& file) {
        return wanted.empty() ? file.name.ends_with(".idx") : file.name == wanted + ".idx";
      });
      if (!has_it)
        throw UserError(fmt::format("{}: the dataset {} holds no such .bin and .idx files", what, name->repo));
    } catch (const UserError& error) {
      errors.emplace_back(error.message(), with_hint(error.remedy()));
    } catch (const HubError& error) {
      throw HubError(error.message(), with_hint(error.remedy()));
    }
  }
  throw_if_any(errors);
}

bool HubPaths::is_out_of_reach(const Resolved& resolved, const std::optional<std::string>& path) const {
  if (!path || is_no_name(*path)) return false;
  const HubSettings settings = read_hub_settings(environment_, resolved.config.hub);
  const std::optional<HubName> name = parse_hub_name(*path, HubRepoType::kModel);
  return settings.is_offline && name && !cached_snapshot(settings, *name);
}

std::vector<UserError> HubPaths::not_here(const Resolved& resolved) const {
  std::vector<UserError> errors;
  const auto add = [&](std::string_view option, const std::string& value) {
    errors.emplace_back(fmt::format("{} {} does not exist here", option, value),
                        "if it is a name of the Hugging Face hub: the hub is asked once nothing else is wrong");
  };
  const HubSettings settings = read_hub_settings(environment_);
  const std::pair<const char*, const std::optional<std::string>*> models[] = {
      {"load_hf", &resolved.config.checkpoint.load_hf},
      {"tokenizer_model", &resolved.config.tokenizer.tokenizer_model}};
  for (const auto& [option, value] : models) {
    if (!*value || is_no_name(**value)) continue;
    if (value == &resolved.config.tokenizer.tokenizer_model && unopened_vocabulary(resolved)) continue;
    const std::optional<HubName> name = parse_hub_name(**value, HubRepoType::kModel);
    if (name && !cached_snapshot(settings, *name)) add(option, **value);
  }
  for (const auto& [option, value] : listed_data(resolved.config.data)) {
    if (missing_data(value)) add(option, value);
  }
  return errors;
}

}  // namespace megalith
