// The data sets of axolotl's, LLaMA-Factory's and TRL's files (finetuner_file.h).
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "compat/finetuner_reader.h"
#include "compat/json_text.h"
#include "core/error.h"
#include "core/strings.h"

namespace megalith {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSet = "dataset.";
constexpr const char* kRegister = "dataset_info.json";  // LLaMA-Factory's list of data sets

constexpr std::array kRowFacts = {"@form", "@column", "@renames", "@drops_system", "@role", "@content"};

const std::set<std::string> kKinds = {"json", "csv", "parquet", "text", "arrow"};  // instead of a path

bool is_of_set(std::string_view key) { return key.starts_with(kSet); }

}  // namespace

void FinetunerReader::choose_data() {
  for (const auto& [name, word] : words_) {
    if (is_of_set(name) && is_written(name)) refuse(name, "keys of a data set where it is listed");
  }
  const std::vector<std::string> train = mixed(read_sets(training_sets()));
  set("dataset.path", "sft_data_path", WrittenValue{WrittenValue::Form::kList, train});
  const std::vector<std::string> valid = read_sets(validation_sets());
  if (!valid.empty()) set("dataset.path", "sft_valid_data_path", WrittenValue{WrittenValue::Form::kList, valid});
  apply("template");
  apply("rows");
  std::erase_if(words_, [](const auto& one) { return is_of_set(one.first); });
  const bool packs_texts = text("@stage") == "pt" && tuner_.of != "trl" && !is_written("packing");
  set_fact("@is_packed", packs_texts || (has("packing") && is_on("packing")) ||
                                 (has("neat_packing") && is_on("neat_packing"))
                             ? "true"
                             : "false");
  const double share = has("val_size") ? number("val_size") : 0;
  if (!(share >= 0 && share < 1)) refuse("val_size", "a part of the rows below 1, such as 0.05");
  const std::string split = share == 0 ? "100,0,0" : fmt::format("{},{},0", number_text(1 - share), number_text(share));
  set_fact("@split", valid.empty() ? split : "", "val_size");
  set_fact("@has_valid", share > 0 || !valid.empty() ? "true" : "false", "val_size");
  if (has("eval_on_each_dataset") && is_on("eval_on_each_dataset") && is_written("eval_dataset")) {
    set_fact("@valid_names", fmt::format("[{}]", join(names_in("eval_dataset"), ", ")), "eval_on_each_dataset");
  }
  apply("evaluation");
}

// LLaMA-Factory's probabilities before the paths of sets that are drawn by turns.
std::vector<std::string> FinetunerReader::mixed(std::vector<std::string> paths) {
  if (tuner_.of != "llamafactory") return paths;
  apply("mixture");
  if (!text("mix_strategy").starts_with("interleave_") || !is_written("dataset")) return paths;
  const std::vector<std::string> names = names_in("dataset");
  if (names.size() != paths.size()) refuse("mix_strategy", "sets of one file, or of one name of the hub, each");
  set("dataset", "sft_set_names", WrittenValue{WrittenValue::Form::kList, names});
  const bool is_weighted = is_written("interleave_probs") && text("mix_strategy") != "interleave_once";
  if (!is_weighted) return paths;
  const std::vector<std::string> shares = names_in("interleave_probs");
  if (shares.size() != paths.size()) {
    refuse("interleave_probs", fmt::format("{} numbers, one for each set in dataset", paths.size()));
  }
  std::vector<std::string> items;
  for (size_t i = 0; i < paths.size(); ++i) items.insert(items.end(), {shares[i], paths[i]});
  return items;
}

std::vector<FinetunerReader::RowSet> FinetunerReader::sets_of(std::string_view key) {
  if (key != "pretraining_dataset" && is_written(key)) refuse(key, "a list of data sets, each with its path");
  std::vector<RowSet> sets;
  for (const auto& [name, list] : lists_) {
    if (name != key) continue;
    for (const YamlNode& item : list.items) {
      sets.push_back([this, &item] { flatten("dataset", item); });
    }
  }
  return sets;
}

std::vector<std::string> FinetunerReader::names_in(std::string_view key) const {
  const auto names = parse_list(join(items(key), ","));
  if (!names) refuse(key, "names with commas between them");
  return *names;
}

// A set of LLaMA-Factory's, by its name in the register.
FinetunerReader::RowSet FinetunerReader::registered_set(const std::string& name) {
  return [this, name] {
    const fs::path folder = text("dataset_dir"), file = folder / kRegister;
    const std::string where = fmt::format("{}: {}", file.string(), name);
    std::error_code code;
    if (!fs::exists(file, code)) {
      throw UserError(fmt::format("{}: there is no {}, which says what the data set {} is", said("dataset"),
                                  file.string(), name),
                      "start where LLaMA-Factory's folder data is, or name it with dataset_dir=FOLDER");
    }
    const Json json = load_json(file);
    const Json* entry = find_member(json, name, file.string());
    if (entry == nullptr) {
      throw UserError(fmt::format("{} has no data set '{}'", file.string(), name), "name one that it has");
    }
    const auto put = [&](const std::string& key, const Json& value) {
      add(key, {WrittenValue::of(plain_text(value)), where, key});
    };
    put("dataset.path", Json(name));
    for (const auto& [key, value] : entry->items()) {
      if (!value.is_object()) put(fmt::format("dataset.{}", key), value);
      if (!value.is_object()) continue;
      for (const auto& [inner, text] : value.items()) put(fmt::format("dataset.{}.{}", key, inner), text);
    }
  };
}

// TRL's dataset_name with one of its splits.
FinetunerReader::RowSet FinetunerReader::hub_set(const std::string& split_key) {
  return [this, split_key] {
    for (const auto& [key, from] : {std::pair("dataset.path", std::string("dataset_name")),
                                    std::pair("dataset.name", std::string("dataset_config")),
                                    std::pair("dataset.split", split_key)}) {
      const FileWord* word = find(from);
      add(key, word != nullptr ? *word : FileWord{WrittenValue::of(text(from)), said(from), from});
    }
  };
}

std::vector<FinetunerReader::RowSet> FinetunerReader::training_sets() {
  std::vector<RowSet> sets = sets_of("pretraining_dataset");
  if (sets.empty()) sets = sets_of("datasets");
  if (is_written("pretraining_dataset")) {
    sets.push_back([this] { add("dataset.path", *find("pretraining_dataset")); });
  }
  if (is_written("dataset_name") && sets.empty()) {
    sets.push_back(hub_set("dataset_train_split"));
  } else if (is_written("dataset_name")) {
    note(fmt::format("{}: datasets are used instead, as TRL does", said("dataset_name")));
  }
  if (is_written("dataset")) {
    for (const std::string& name : names_in("dataset")) sets.push_back(registered_set(name));
  }
  if (sets.empty()) {
    throw UserError(fmt::format("{}: no data set is named", file_.string()),
                    "name one in the file, or rows with --sft_data_path");
  }
  return sets;
}

std::vector<FinetunerReader::RowSet> FinetunerReader::validation_sets() {
  std::vector<RowSet> sets = sets_of("test_datasets");
  if (is_written("eval_dataset")) {
    for (const std::string& name : names_in("eval_dataset")) sets.push_back(registered_set(name));
  }
  const bool is_held_out = has("val_size") && number("val_size") > 0;
  const bool is_named = is_written("dataset_name") && sets_of("datasets").empty();
  if (is_named && text("eval_strategy") != "no" && !is_held_out) {
    sets.push_back(hub_set("dataset_test_split"));
  }
  return sets;
}

std::vector<std::string> FinetunerReader::read_sets(const std::vector<RowSet>& sets) {
  std::vector<std::string> paths;
  for (const RowSet& load : sets) {
    std::erase_if(words_, [](const auto& one) { return is_of_set(one.first); });
    load();
    for (const auto& [name, word] : words_) {
      if (!is_of_set(name) || keys_.find(name) != nullptr || !is_written(name)) continue;
      fail(fmt::format("{}: nothing here reads {} of a data set", word.where, name.substr(kSet.size())),
           "remove it, or write the rows as docs/finetuning.md says");
    }
    check_keys(kSet);
    name_useless_keys(file_.string(), [&](const std::string& name) { return is_of_set(name) && is_written(name); });
    for (const char* fact : kRowFacts) set_fact(fact, "", "dataset.path");
    apply("dataset");
    std::string renames = text("@renames");
    if (renames.ends_with(',')) renames.pop_back();
    set_fact("@renames", renames, "dataset.path");
    const RowForm rows{text("dataset.path"), {text("@form"), text("@column"), renames, text("@drops_system")}};
    if (!rows_) rows_ = rows;
    if (rows.facts != rows_->facts) {
      throw UserError(fmt::format("{} and {} have rows of two forms, which no run mixes here", rows_->of, rows.of),
                      "write the rows of one set in the form of the other");
    }
    for (std::string& path : paths_of_set()) paths.push_back(std::move(path));
  }
  return paths;
}

std::vector<std::string> FinetunerReader::paths_of_set() {
  std::string source = text("dataset.path");
  if (is_written("dataset.hf_hub_url")) source = text("dataset.hf_hub_url");
  if (is_written("dataset.file_name")) source = (fs::path(text("dataset_dir")) / text("dataset.file_name")).string();
  if (source.empty()) refuse("dataset.path", "a data set of the hub, a file or a folder");
  for (const char* other : {"dataset.ms_hub_url", "dataset.om_hub_url"}) {
    if (!is_written(other) || source != text("dataset.path")) continue;
    refuse(other, "data sets of Hugging Face's hub", "fetch it, and name its files");
  }
  const std::string end = (is_written("dataset.revision") ? "@" + text("dataset.revision") : "") + part_of_set();
  std::vector<std::string> paths;
  if (is_written("dataset.data_files")) {
    for (const std::string& file : items("dataset.data_files")) {
      paths.push_back((kKinds.contains(source) ? file : source + "/" + file) + end);
    }
    return paths;
  }
  if (kKinds.contains(source)) refuse("dataset.path", "files of this kind in data_files", "add data_files: FILE");
  for (const char* inner : {"dataset.name", "dataset.data_dir"}) {
    if (is_written(inner)) source += "/" + text(inner);
  }
  return {source + end};
}

// "[test]", "[:1000]", "[train_sft[:5%]]", or "": the split train whole.
std::string FinetunerReader::part_of_set() {
  const std::string written = text("dataset.split");
  const size_t bracket = std::min(written.find('['), written.size());
  const std::string split = written.substr(0, bracket);
  std::string rows = written.substr(bracket);
  if (split.find('+') != std::string::npos) refuse("dataset.split", "one split, perhaps a part of it: train[:95%]");
  constexpr int64_t kAll = std::numeric_limits<int64_t>::max();
  int64_t most = kAll;
  for (const char* limit : {"dataset.num_samples", "max_samples"}) {
    if (!has(limit)) continue;
    if (!rows.empty()) refuse(limit, "a limit of rows, or a part of a split, not both");
    most = std::min(most, whole(limit));
  }
  if (most < kAll) rows = fmt::format("[:{}]", most);
  if (is_written("dataset.fraction")) {
    const double percents = 100 * number("dataset.fraction");
    const bool is_whole = std::abs(percents - std::round(percents)) < 1e-6;
    if (!is_whole || percents < 1 || percents > 100 || !rows.empty()) {
      refuse("dataset.fraction", "whole percents of a split, such as 0.05");
    }
    rows = fmt::format("[:{}%]", std::lround(percents));
  }
  if (split == "train") return rows;
  return fmt::format("[{}{}]", split, rows);
}

}  // namespace megalith
