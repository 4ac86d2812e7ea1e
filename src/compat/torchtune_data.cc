// The data sets of torchtune's recipes (torchtune_words.h). Source: meta-pytorch/torchtune, torchtune/datasets.
#include <fmt/format.h>

#include <array>
#include <optional>
#include <string_view>

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

// The rows of a section, dataset or dataset_val; `word` becomes the key that names them.
std::vector<std::string> paths_of(const RecipeWords& words, const std::string& section, std::string& word) {
  const std::string key = section + ".source", files = section + ".data_files", folder = section + ".data_dir";
  std::string source = words.text(words.is_written(key) ? key : "@source");
  std::vector<std::string> paths;
  if (words.is_written(files)) paths = words.items(files);
  if (paths.empty() && words.is_written(folder)) paths = {words.text(folder)};
  word = words.is_written(files) ? files : key;
  const bool is_kind =
      source == "json" || source == "csv" || source == "parquet" || source == "text" || source == "arrow";
  if (is_kind && paths.empty()) {
    words.refuse(key, "files of this kind in data_files", fmt::format("add {}.data_files=FILE", section));
  }
  if (is_kind) return paths;
  if (source.empty()) words.refuse(key, "a data set of the hub, or json with data_files");
  std::string subset = words.text("@subset");
  for (const char* name : {".subset", ".name"}) {
    if (words.is_written(section + name)) subset = words.text(section + name);
  }
  if (!subset.empty()) source += "/" + subset;
  return {source};
}

void set_paths(RecipeWords& words, const std::string& word, const std::string& option, std::vector<std::string> paths) {
  words.set(word, option, WrittenValue{WrittenValue::Form::kList, std::move(paths)});
}

// Keys and facts in which the items of a list must agree: options here are of all rows.
constexpr std::array kOfAllSets = {"@rows",
                                   "@column",
                                   "@trains",
                                   "dataset.split",
                                   "dataset.packed",
                                   "dataset.column",
                                   "dataset.train_on_input",
                                   "dataset.conversation_column",
                                   "dataset.conversation_style"};

// torchtune's list of data sets has each row once in a pass.
void choose_sets(RecipeWords& words, const WordRules& rules) {
  std::vector<std::string> all, first_texts;
  std::string first_word, word;
  for (size_t i = 0; i < words.num_sets(); ++i) {
    words.take_set(i);
    for (const char* fact : {"@rows", "@source", "@subset", "@column", "@trains"}) words.set_fact(fact, "");
    rules.apply("dataset", words);
    for (std::string& path : paths_of(words, "dataset", word)) all.push_back(std::move(path));
    for (size_t k = 0; k < kOfAllSets.size(); ++k) {
      const std::string text = words.text(kOfAllSets[k]);
      if (i == 0) first_texts.push_back(text);
      if (text == first_texts[k]) continue;
      const bool is_key = std::string_view(kOfAllSets[k]).front() != '@' && words.is_written(kOfAllSets[k]);
      words.refuse(is_key ? kOfAllSets[k] : "dataset._component_",
                   "data sets of a list that are read alike, as the first one is",
                   "train on one of them after the other, or write their rows into files of one form");
    }
    if (i == 0) first_word = word;
  }
  words.take_set(0);
  set_paths(words, first_word, "sft_data_path", std::move(all));
}

void choose_parts(RecipeWords& words) {
  const std::string key = "dataset.split";
  const RecipePart train = part_of(words, key);
  const bool is_whole = train.begin == 0 && train.end == 100;
  if (!is_whole && words.num_sets() > 1) words.refuse(key, "whole splits of several data sets");
  if (train.split != "train") words.set(key, "sft_dataset_split", train.split);
  const bool validates = words.is_written("run_val_every_n_steps") && words.is_written("dataset_val._component_");
  if (validates && (words.is_written("dataset_val.source") || words.is_written("dataset_val.data_files"))) {
    std::string word;
    std::vector<std::string> paths = paths_of(words, "dataset_val", word);
    set_paths(words, word, "sft_valid_data_path", std::move(paths));
    if (is_whole) return;
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
  choose_sets(words, rules);
  rules.apply("rows", words);
  choose_parts(words);
  rules.apply("packs", words);
}

}  // namespace megalith
