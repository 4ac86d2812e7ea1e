// The data sets of axolotl's, LLaMA-Factory's and TRL's files (finetuner_file.h).
#include <fmt/format.h>

#include <cmath>
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

const std::set<std::string> kKinds = {"json", "csv", "parquet", "text", "arrow"};  // in place of a path

}  // namespace

void FinetunerReader::choose_data() {
  const std::vector<std::string> train = read_sets(training_sets());
  apply("template");
  set("dataset.path", "sft_data_path", WrittenValue{WrittenValue::Form::kList, train});
  apply("rows");
  const bool packs_texts = text("@stage") == "pt" && tuner_.of != "trl" && !is_written("packing");
  set_fact("@is_packed", packs_texts || (has("packing") && is_on("packing")) ||
                                 (has("neat_packing") && is_on("neat_packing"))
                             ? "true"
                             : "false");
  const std::vector<std::string> valid = read_sets(validation_sets());
  if (!valid.empty()) set("dataset.path", "sft_valid_data_path", WrittenValue{WrittenValue::Form::kList, valid});
  const double share = has("val_size") ? number("val_size") : 0;
  if (share < 0 || share >= 1) refuse("val_size", "a part of the rows below 1, such as 0.05");
  const std::string split = share == 0 ? "100,0,0" : fmt::format("{},{},0", number_text(1 - share), number_text(share));
  set_fact("@split", valid.empty() ? split : "", "val_size");
  set_fact("@has_valid", share > 0 || !valid.empty() ? "true" : "false", "val_size");
  apply("evaluation");
}

std::vector<FinetunerReader::RowSet> FinetunerReader::sets_of(std::string_view key) {
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
  if (is_written("dataset_name")) sets.push_back(hub_set("dataset_train_split"));
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
  if (is_written("dataset_name") && text("eval_strategy") != "no" && !is_held_out) {
    sets.push_back(hub_set("dataset_test_split"));
  }
  return sets;
}

std::vector<std::string> FinetunerReader::read_sets(const std::vector<RowSet>& sets) {
  std::vector<std::string> paths;
  std::string form, column, first;
  for (const RowSet& load : sets) {
    std::erase_if(words_, [](const auto& one) { return one.first.starts_with(kSet); });
    load();
    for (const auto& [name, word] : words_) {
      if (!name.starts_with(kSet) || keys_.find(name) != nullptr || !is_written(name)) continue;
      fail(fmt::format("{}: nothing here reads {} of a data set", word.where, name.substr(kSet.size())),
           "remove it, or write the rows as docs/finetuning.md says");
    }
    check_keys(kSet);
    set_fact("@form", "", "dataset.path");
    set_fact("@column", "", "dataset.path");
    apply("dataset");
    if (!paths.empty() && (form != text("@form") || column != text("@column"))) {
      throw UserError(fmt::format("{} and {} have rows of two forms, which no run mixes here", first,
                                  text("dataset.path")),
                      "write the rows of one set in the form of the other");
    }
    if (paths.empty()) form = text("@form"), column = text("@column"), first = text("dataset.path");
    for (std::string& path : paths_of_set()) paths.push_back(std::move(path));
  }
  return paths;
}

std::vector<std::string> FinetunerReader::paths_of_set() {
  std::string source = text("dataset.path");
  if (is_written("dataset.hf_hub_url")) source = text("dataset.hf_hub_url");
  if (is_written("dataset.file_name")) source = (fs::path(text("dataset_dir")) / text("dataset.file_name")).string();
  if (source.empty()) refuse("dataset.path", "a data set of the hub, a file or a folder");
  if (is_written("dataset.ms_hub_url") && source == text("dataset.path")) {
    refuse("dataset.ms_hub_url", "data sets of Hugging Face's hub", "fetch it, and name its files");
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
  for (const char* limit : {"dataset.num_samples", "max_samples"}) {
    if (has(limit) && rows.empty()) rows = fmt::format("[:{}]", whole(limit));
  }
  if (is_written("dataset.fraction")) rows = fmt::format("[:{}%]", std::lround(100 * number("dataset.fraction")));
  if (split == "train") return rows;
  return fmt::format("[{}{}]", split, rows);
}

}  // namespace megalith
