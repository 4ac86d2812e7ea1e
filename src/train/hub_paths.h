// Names of the Hugging Face hub in a run's configuration, as local paths in Derived; the configuration keeps the names.
// Small files come when what depends on them is next to be checked; weights and data when nothing is wrong.
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
  // exports      the experiment's `env`, which wins over it
  HubPaths(const EnvironmentMap& environment, const std::map<std::string, std::string>& exports);

  // load_hf: fetches what the architecture and the tokenizer are read from. With `may_fetch` false, nothing is asked of
  // the hub. Returns whether derived.checkpoint.load_hf is a path now, or no name at all. UserError when there is no
  // such model, HubError when it cannot be had now; the functions below throw the same.
  bool find_model(Resolved& resolved, bool may_fetch);

  // tokenizer_model, in the same way; also true when there is none.
  bool find_tokenizer(Resolved& resolved, bool may_fetch);

  // The weights of load_hf, and token files of the data paths, also of those that data_args_path and
  // per_split_data_args_path list: where one of these names a data set of the hub, the lists take the files' place in
  // derived.data. Texts are made into tokens (train/text_data.h). UserErrors for what cannot be had.
  void fetch_large_files(Resolved& resolved);

  // For a dry run: whether the hub has the token files that are named and are not here. Fetches and keeps nothing.
  void look_for_data(const Resolved& resolved);

  // For a run that is refused anyway, when the hub is not asked: what is not here, and may be a name of the hub.
  std::vector<UserError> not_here(const Resolved& resolved) const;

 private:
  // The token files of a data set that are not on this machine; nothing for what is here, or can be no name.
  std::optional<HubName> missing_data(const std::string& value) const;

  EnvironmentMap environment_;
  // Its own, because whichever process of a node fetches also speaks.
  Logger log_;
  std::string model_name_;  // as it was given; empty when load_hf is no name
};

}  // namespace megalith
