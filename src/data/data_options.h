// The options that say what data a run reads. Names, meanings and defaults are Megatron's.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "config/option.h"
#include "core/error.h"
#include "data/flux_data_options.h"
#include "data/order.h"
#include "data/sft_options.h"

namespace megalith {

struct DataOptions {
  std::vector<std::string> data_path, train_data_path, valid_data_path, test_data_path;
  std::optional<std::string> data_args_path, per_split_data_args_path;
  bool multiple_validation_sets = false;
  std::vector<std::string> validation_set_names, data_set_names;
  std::optional<std::string> split;
  bool mock_data = false;
  std::optional<std::string> data_cache_path;
  bool allow_other_tokenizer = false;
  int64_t num_workers = 2;
  double mid_level_dataset_surplus = 0.005;
  DataloaderType dataloader_type = DataloaderType::kSingle;
  bool no_data_sharding = false;
  bool reset_position_ids = false;
  bool reset_attention_mask = false;
  bool eod_mask_loss = false;
  SftOptions sft;
  FluxDataOptions flux;

  void visit(OptionVisitor& v);
  bool has_split_paths() const {
    return !train_data_path.empty() || !valid_data_path.empty() || !test_data_path.empty() || per_split_data_args_path;
  }
  bool has_paths() const { return !data_path.empty() || data_args_path || has_split_paths() || sft.has_paths(); }
};

// A copy with the paths listed in data_args_path or per_split_data_args_path instead of those on the command line.
// UserError for files that cannot be read or list nothing.
DataOptions with_listed_paths(DataOptions options);

struct ValidationSet {
  std::string name, path;
};
// The paths of valid_data_path or sft_valid_data_path that are sets of their own; empty unless
// multiple_validation_sets or names ask for them. UserError for names or paths that do not fit. Listed paths are read
// before (with_listed_paths()).
std::vector<ValidationSet> validation_sets(const DataOptions& options);

// UserError unless data_set_names name each of several training sets. Listed paths are read before.
void check_data_set_names(const DataOptions& options);

// Error when neither data nor mock_data is given: mock documents say nothing about a model.
UserError no_data_error();

// Broken rules between options; empty if none.
std::vector<UserError> check_data_options(const DataOptions& options);

}  // namespace megalith
