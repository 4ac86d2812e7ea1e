#include "data/data_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/collect_errors.h"
#include "core/input_file.h"
#include "core/json.h"
#include "core/strings.h"
#include "data/blend.h"
#include "data/set_names.h"

namespace megalith {

void DataOptions::visit(OptionVisitor& v) {
  v.group("Data", {.acts_in = {RunCommand::kEvaluate}});
  v.field(
       "data_path", data_path,
       "Data sets by the prefix of their .bin and .idx files: one, several, or weight prefix weight prefix …; or "
       "data sets of the Hugging Face hub: org/name, or org/name/prefix when the repository has several. A file or a "
       "folder of texts (JSON lines, Parquet, Arrow, CSV) is made into tokens first, once.")
      .by_rank(ByRank::kSameContents)
      .acts_in({RunCommand::kEvaluate, RunCommand::kEmbed});
  v.field("train_data_path", train_data_path, "Data sets that are used whole for training, instead of data_path.")
      .by_rank(ByRank::kSameContents);
  v.field("valid_data_path", valid_data_path, "Data sets that are used whole for validation.")
      .by_rank(ByRank::kSameContents);
  v.field("multiple_validation_sets", multiple_validation_sets,
          "Evaluate each data set of valid_data_path, or path of sft_valid_data_path, by itself, instead of all mixed: "
          "each has its losses.")
      .read_by(kAllModels - kClassifiers - kPictureModels)
      .acts_in(kTrainOnly);
  v.field(
       "validation_set_names", validation_set_names,
       "Names of multiple_validation_sets, which they turn on, in the order of the paths: a set is validation-NAME in "
       "log and metrics. Default: 1, 2, ….")
      .read_by(kAllModels - kClassifiers - kPictureModels)
      .acts_in(kTrainOnly);
  v.field(
       "data_set_names", data_set_names,
       "Names of the sets in data_path or train_data_path, in their order: each has its loss, train-NAME, in log and "
       "metrics. sft_set_names are those of sft_data_path.")
      .read_by(kAllModels - kClassifiers - kPictureModels)
      .acts_in(kTrainOnly);
  v.field("test_data_path", test_data_path, "Data sets that are used whole for testing.")
      .by_rank(ByRank::kSameContents);
  v.field("data_args_path", data_args_path,
          "A file with the items of data_path, for blends that are too long for a command line. Names of the hub work "
          "too.")
      .by_rank(ByRank::kSameContents);
  v.field("per_split_data_args_path", per_split_data_args_path,
          "A JSON file with lists under train, valid and test: the items of train_data_path, valid_data_path and "
          "test_data_path.")
      .by_rank(ByRank::kSameContents);
  v.field("split", split, "Weights of training, validation and test in data_path. Default: 969, 30, 1.");
  v.field(
       "mock_data", mock_data,
       "Read made-up documents that count upwards, to try a configuration or to measure speed: losses then say nothing "
       "about a model.")
      .toy("true");
  v.field(
       "data_cache_path", data_cache_path,
       "Folder for sample indices. Default: {prefix}/cache/GPTDataset_indices of each data set; blends and mock data "
       "are then kept in memory.")
      .by_rank(ByRank::kFree)
      .read_by(kAllModels - kClassifiers)
      .acts_in({RunCommand::kEvaluate, RunCommand::kEmbed});
  v.field("allow_other_tokenizer", allow_other_tokenizer,
          "Read data that 'prepare' made with another tokenizer than this run's: their ids are taken as they are.")
      .changes_numbers(false)
      .read_by(kAllModels - kClassifiers)
      .acts_in({RunCommand::kEvaluate, RunCommand::kEmbed});
  v.field("num_workers", num_workers,
          "Threads that read the next step's batch while a step runs; with 0 each step first reads its own. The "
          "batches are the same.")
      .unit("threads")
      .within(0, 256)
      .changes_numbers(false)
      .by_rank(ByRank::kFree)
      .acts_in(kTrainOnly);
  v.field("mid_level_dataset_surplus", mid_level_dataset_surplus,
          "Share of samples that each data set of a blend holds ready beyond its weight.")
      .at_least(0)
      .read_by(kAllModels - kClassifiers);
  v.group("Data", {.read_by = kAllModels - kClassifiers, .acts_in = {RunCommand::kEvaluate}});
  v.choice("dataloader_type", dataloader_type, {"single", "cyclic"},
           "single: one pass in the data set's own order. cyclic: pass after pass, each in a new order (see "
           "no_data_sharding).");
  v.field("no_data_sharding", no_data_sharding,
          "cyclic: each pass is one permutation of all samples, whatever micro_batch_size and the number of ranks. "
          "false: Megatron's order, in which every data-parallel rank shuffles its own part of the data; it depends on "
          "both, and leaves out what does not fill a microbatch of all ranks.")
      .opposite("data_sharding");
  v.field("reset_position_ids", reset_position_ids, "Start positions anew behind each end of a document.")
      .in_toy(InToy::kKept);
  v.field("reset_attention_mask", reset_attention_mask, "Attend only within a document.").in_toy(InToy::kKept);
  v.field("eod_mask_loss", eod_mask_loss,
          "Leave the prediction that follows an end-of-document token out of the loss.");
  sft.visit(v);
  flux.visit(v);
}

DataOptions with_listed_paths(DataOptions options) {
  if (options.data_args_path) {
    options.data_path = split_words(read_stream(*options.data_args_path));
    if (options.data_path.empty()) {
      throw UserError(fmt::format("data_args_path {} is empty", *options.data_args_path),
                      "it holds what --data_path would: weight prefix weight prefix …");
    }
    options.data_args_path.reset();
  }
  if (options.per_split_data_args_path) {
    const std::string path = *options.per_split_data_args_path;
    const Json lists = load_json(path);
    const auto read_list = [&](std::string_view key, std::vector<std::string>& into) {
      const Json* list = find_member(lists, key, path);
      if (list == nullptr) return;
      if (!list->is_array()) throw UserError(fmt::format("{}: {} is not a list of paths", path, key));
      // Megatron's files mix numbers and texts: [0.3, "a", 0.7, "b"].
      for (const Json& item : *list) {
        const std::string* text = try_text(item);
        into.push_back(text != nullptr ? *text : dump_json(item));
      }
    };
    read_list("train", options.train_data_path);
    read_list("valid", options.valid_data_path);
    read_list("test", options.test_data_path);
    options.per_split_data_args_path.reset();
    if (!options.has_split_paths()) {
      throw UserError(fmt::format("{} lists nothing under train, valid or test", path),
                      R"(write {"train": ["0.3", "first_prefix", "0.7", "second_prefix"], "valid": ["third_prefix"]})");
    }
  }
  return options;
}

std::vector<ValidationSet> validation_sets(const DataOptions& options) {
  const std::vector<std::string>& names = options.validation_set_names;
  if (!options.multiple_validation_sets && names.empty()) return {};
  const bool has_rows = !options.sft.sft_valid_data_path.empty();
  const char* option = has_rows ? "sft_valid_data_path" : "valid_data_path";
  std::vector<std::string> paths = options.sft.sft_valid_data_path;
  if (!has_rows && !options.valid_data_path.empty()) {
    const BlendSpec blend = parse_blend(options.valid_data_path, option);
    if (!blend.weights.empty()) {
      throw UserError("valid_data_path has weights, and multiple_validation_sets evaluates each set by itself",
                      "leave the weights out");
    }
    paths = blend.prefixes;
  }
  if (paths.empty()) {
    throw UserError("multiple_validation_sets is given without the sets",
                    "name them with --sft_valid_data_path or --valid_data_path");
  }
  std::vector<ValidationSet> sets;
  for (size_t i = 0; i < paths.size(); ++i) {
    sets.push_back({i < names.size() ? names[i] : std::to_string(i + 1), paths[i]});
  }
  if (!names.empty()) check_set_names("validation_set_names", names, option, paths.size());
  return sets;
}

UserError no_data_error() {
  return UserError(
      "no data is given",
      "name token files with --data_path PREFIX (megalith prepare makes them of text), or add --mock_data to "
      "read made-up documents, which show speed and memory, but no loss that means anything");
}

namespace {

void append_sft_errors(const DataOptions& options, std::vector<UserError>& errors) {
  const SftOptions& sft = options.sft;
  const bool has_texts = !options.data_path.empty() || options.data_args_path || options.has_split_paths();
  if (sft.has_paths() && has_texts) {
    errors.emplace_back("sft_data_path and another data path are given together",
                        "a run learns from instructions or from texts: drop one of them");
  }
  if (sft.sft_data_path.empty() && !sft.sft_valid_data_path.empty()) {
    errors.emplace_back("sft_valid_data_path is given without sft_data_path", "name what to train on: --sft_data_path");
  }
  if (sft.stage == TrainingStage::kSft && !sft.has_paths()) {
    errors.emplace_back("stage sft without instructions to learn from", "name them with --sft_data_path FILE");
  }
  if (sft.stage == TrainingStage::kPretrain && sft.has_paths()) {
    errors.emplace_back("stage pretrain with sft_data_path", "drop one of them");
  }
  if (sft.enable_packed_sequences && !sft.has_paths()) {
    errors.emplace_back("enable_packed_sequences without sft_data_path",
                        "texts of data_path always fill their sequences: drop it");
  }
  if (sft.balance_sequences && !(sft.enable_packed_sequences && sft.use_packed_attention && sft.has_paths())) {
    errors.emplace_back("balance_sequences is about samples of several lengths in a sequence, each seeing only itself",
                        "add --enable_packed_sequences and --sft_data_path, without use_packed_attention false; or "
                        "leave --balance_sequences out");
  }
  if (sft.max_samples_per_sequence && sft.has_paths() && !sft.enable_packed_sequences) {
    errors.emplace_back("max_samples_per_sequence without enable_packed_sequences", "add --enable_packed_sequences");
  }
  if (sft.has_pairs() && !sft.has_paths()) {
    errors.emplace_back(
        sft.loss == SftLoss::kDpo ? "loss dpo without pairs of answers" : "loss kto without rated answers",
        "name their rows with --sft_data_path FILE");
  }
  const SftOptions none;
  if (sft.loss != SftLoss::kKto && (sft.kto_desirable_weight != none.kto_desirable_weight ||
                                    sft.kto_undesirable_weight != none.kto_undesirable_weight)) {
    errors.emplace_back("kto_desirable_weight or kto_undesirable_weight is given, and loss is not kto",
                        "add --loss kto, or leave them out");
  }
  if (sft.has_paths() && (options.reset_position_ids || options.reset_attention_mask || options.eod_mask_loss)) {
    errors.emplace_back("reset_position_ids, reset_attention_mask or eod_mask_loss with sft_data_path",
                        "they are for texts of data_path; use_packed_attention keeps samples apart");
  }
  if (sft.has_paths() && options.split && !sft.sft_valid_data_path.empty()) {
    errors.emplace_back("split is given together with sft_valid_data_path", "split divides sft_data_path; drop it");
  }
}

}  // namespace

void check_data_set_names(const DataOptions& options) {
  if (options.data_set_names.empty()) return;
  if (options.data_args_path || options.per_split_data_args_path) return;  // listed paths are known later
  const bool is_whole = options.data_path.empty();
  const BlendSpec blend = is_whole ? parse_blend(options.train_data_path, "train_data_path")
                                   : parse_blend(options.data_path, "data_path");
  if (blend.prefixes.size() < 2) {
    throw UserError("data_set_names is given without several data sets", "name them with --data_path, or leave it out");
  }
  check_set_names("data_set_names", options.data_set_names, is_whole ? "train_data_path" : "data_path",
                  blend.prefixes.size());
}

std::vector<UserError> check_data_options(const DataOptions& options) {
  std::vector<UserError> errors;
  if (options.data_args_path && !options.data_path.empty()) {
    errors.emplace_back("data_path and data_args_path are given together", "drop one of them");
  }
  if (options.per_split_data_args_path &&
      (!options.train_data_path.empty() || !options.valid_data_path.empty() || !options.test_data_path.empty())) {
    errors.emplace_back(
        "per_split_data_args_path and train_data_path, valid_data_path or test_data_path are given together",
        "drop one of them");
  }
  if ((!options.data_path.empty() || options.data_args_path) && options.has_split_paths()) {
    errors.emplace_back("data_path and train_data_path, valid_data_path or test_data_path are given together",
                        "give data_path with split, or one path for each split");
  }
  append_sft_errors(options, errors);
  collect(errors, [&] { options.sft.training_sets(); });
  // The sets of per_split_data_args_path are known later.
  if (!options.per_split_data_args_path) collect(errors, [&] { validation_sets(options); });
  collect(errors, [&] { check_data_set_names(options); });
  if (options.mock_data && options.has_paths()) {
    errors.emplace_back("mock_data and a data path are given together", "drop one of them");
  }
  if (options.split && options.has_split_paths()) {
    errors.emplace_back("split is given together with train_data_path, valid_data_path or test_data_path",
                        "split divides data_path; drop it");
  }
  return errors;
}

}  // namespace megalith
