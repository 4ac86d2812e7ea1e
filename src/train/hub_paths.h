// Replaces hub names by local paths in Derived; the configuration keeps the names. Small files are fetched when a check
// needs them, weights and data once everything is valid.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "config/yaml_document.h"
#include "core/error.h"
#include "core/log.h"
#include "hub/names.h"
#include "train/config.h"

namespace megalith {

class HubPaths {
 public:
  // environment  of the process
  // exports      the experiment's `env`, which overrides it
  HubPaths(const EnvironmentMap& environment, const std::map<std::string, std::string>& exports);

  // load_hf: fetches files for architecture and tokenizer; without `may_fetch` the hub is not asked. True if
  // derived.checkpoint.load_hf is now a path, or no hub name. UserError when there is no such model, HubError when it
  // is unavailable; likewise below.
  bool find_model(Resolved& resolved, bool may_fetch);

  // Likewise for tokenizer_model; also true without one.
  bool find_tokenizer(Resolved& resolved, bool may_fetch);

  // Fetches load_hf's weights and the data paths' token files, including those listed in data_args_path and
  // per_split_data_args_path: lists that name a hub data set are copied to derived.data. Texts become tokens
  // (kinds/text/text_data.h). UserErrors for what is unavailable.
  void fetch_large_files(Resolved& resolved);

  // Dry run: checks that the hub has the token files that are not local, without fetching.
  void look_for_data(const Resolved& resolved);

  // True for a name of the hub that is not in the cache while HF_HUB_OFFLINE is set.
  bool is_out_of_reach(const Resolved& resolved, const std::optional<std::string>& name) const;

  // For a run refused before asking the hub: missing paths that may be hub names.
  std::vector<UserError> not_here(const Resolved& resolved) const;

 private:
  // The hub data set of `value`, if it is not local and may be a hub name.
  std::optional<HubName> missing_data(const std::string& value) const;

  EnvironmentMap environment_;
  // Separate, because the process that fetches for a node also reports.
  Logger log_;
  std::string model_name_;  // as given; empty if load_hf is not a hub name
};

}  // namespace megalith
