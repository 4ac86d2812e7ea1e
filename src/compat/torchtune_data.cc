// The data sets of torchtune's recipes (torchtune_words.h). Source: meta-pytorch/torchtune, torchtune/datasets.
#include <fmt/format.h>

#include <optional>

#include "compat/torchtune_words.h"
#include "core/error.h"

namespace megalith {
namespace {

// "train[:95%]": the first 95 of 100 rows of the split train.
struct RecipePart {
  std::string split = "train";
  int begin = 0, end = 100;  // percent
};

std::optional<int> percent(const std::string& text, int fallback) {
  if (text.empty()) return fallback;
  const auto value = parse_integer(text.substr(0, text.size() - 1));
  if (!text.ends_with('%') || !value || *value < 0 || *value > 100) return std::nullopt;
  return static_cast<int>(*value);
}

RecipePart part_of(const RecipeWords& words, const std::string& key) {
  const std::string text = words.text(key);
  const char* expected = "the name of a split, perhaps with a part such as train[:95%] or train[95%:]";
  RecipePart part;
  const size_t bracket = text.find('[');
  part.split = text.substr(0, bracket);
  if (part.split.find('+') != std::string::npos) words.refuse(key, expected);
  if (bracket == std::string::npos) return part;
  const size_t colon = text.find(':', bracket);
  if (colon == std::string::npos || !text.ends_with(']')) words.refuse(key, expected);
  const auto begin = percent(text.substr(bracket + 1, colon - bracket - 1), 0);
  const auto end = percent(text.substr(colon + 1, text.size() - colon - 2), 100);
  if (!begin || !end || *begin >= *end) words.refuse(key, expected);
  part.begin = *begin;
  part.end = *end;
  return part;
}

// Sets the rows of a section, dataset or dataset_val.
void choose_paths(RecipeWords& words, const std::string& section, const std::string& option) {
  const std::string key = section + ".source", files = section + ".data_files", folder = section + ".data_dir";
  std::string source = words.text(words.is_written(key) ? key : "@source");
  std::vector<std::string> paths;
  if (words.is_written(files)) paths = words.items(files);
  if (paths.empty() && words.is_written(folder)) paths = {words.text(folder)};
  const bool is_kind =
      source == "json" || source == "csv" || source == "parquet" || source == "text" || source == "arrow";
  if (is_kind && paths.empty()) {
    words.refuse(key, "files of this kind in data_files", fmt::format("add {}.data_files=FILE", section));
  }
  if (!is_kind) {
    if (source.empty()) words.refuse(key, "a data set of the hub, or json with data_files");
    std::string subset = words.text("@subset");
    for (const char* name : {".subset", ".name"}) {
      if (words.is_written(section + name)) subset = words.text(section + name);
    }
    if (!subset.empty()) source += "/" + subset;
    paths = {source};
  }
  words.set(words.is_written(files) ? files : key, option, WrittenValue{WrittenValue::Form::kList, std::move(paths)});
}

void choose_parts(RecipeWords& words) {
  const std::string key = "dataset.split";
  const RecipePart train = part_of(words, key);
  if (train.split != "train") words.set(key, "sft_dataset_split", train.split);
  const bool validates = words.is_written("run_val_every_n_steps") && words.is_written("dataset_val._component_");
  if (validates && (words.is_written("dataset_val.source") || words.is_written("dataset_val.data_files"))) {
    choose_paths(words, "dataset_val", "sft_valid_data_path");
    if (train.begin == 0 && train.end == 100) return;
    words.refuse(key, "a whole split beside other rows for validation");
  }
  if (train.begin > 0) words.refuse(key, "a part that begins with the first row, such as train[:95%]");
  if (train.end == 100 && validates) {
    words.refuse(key, "a part of the rows where others are for validation, such as train[:95%]");
  }
  // The remainder is for validation.
  words.set(key, "split", fmt::format("{},{},0", train.end, 100 - train.end));
}

}  // namespace

void choose_recipe_data(RecipeWords& words, const WordRules& rules) {
  if (!words.is_written("dataset._component_")) return;
  rules.apply("dataset", words);
  choose_paths(words, "dataset", "sft_data_path");
  rules.apply("rows", words);
  choose_parts(words);
  rules.apply("packs", words);
}

}  // namespace megalith
