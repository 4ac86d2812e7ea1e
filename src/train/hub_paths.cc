// Hub names in a configuration; see hub_paths.h.
#include "train/hub_paths.h"

#include "config/resolve.h"
#include "hub/hub.h"
#include "train/text_data.h"

namespace megalith {
namespace {

bool is_no_name(const std::string& path) {
  return std::filesystem::exists(path) || (url_scheme(path).empty() && !parse_hub_name(path, HubRepoType::kModel));
}

// The option that a path of a split came with, for messages.
const char* listed_option(const DataOptions& options, const char* of_split) {
  return options.per_split_data_args_path ? "per_split_data_args_path" : of_split;
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
  if (config.train.dry_run) return;
  std::vector<UserError> errors;
  const auto keep_error = [&](const auto& action) {
    try {
      action();
    } catch (const UserError& error) {
      errors.push_back(error);
    }
  };
  if (!model_name_.empty()) {
    keep_error([&] {
      // The commit whose config.json was read: the branch may have moved on since.
      derived.checkpoint.load_hf =
          resolve_hub_weights("load_hf", *derived.checkpoint.load_hf, environment_, config.hub, log_).string();
    });
  }
  // Names in files of lists count too. Without any, the files stay as they were given.
  keep_error([&] {
    DataOptions data = with_listed_paths(config.data);
    bool has_names = false;
    const std::pair<const char*, std::vector<std::string>*> lists[] = {
        {config.data.data_args_path ? "data_args_path" : "data_path", &data.data_path},
        {listed_option(config.data, "train_data_path"), &data.train_data_path},
        {listed_option(config.data, "valid_data_path"), &data.valid_data_path},
        {listed_option(config.data, "test_data_path"), &data.test_data_path},
    };
    for (const auto& [option, values] : lists) {
      for (std::string& value : *values) {
        keep_error([&, option = option] {
          const std::string found =
              resolve_hub_path(option, value, HubNeed::kTokenData, environment_, config.hub, log_).string();
          has_names = has_names || found != value;
          value = found;
        });
      }
    }
    if (has_names) derived.data = std::move(data);
  });
  throw_if_any(errors);
  prepare_texts(resolved, log_);
}

}  // namespace megalith
