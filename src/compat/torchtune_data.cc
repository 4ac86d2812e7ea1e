// See torchtune_data.h. Source: meta-pytorch/torchtune, torchtune/datasets.
#include "compat/torchtune_data.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "core/error.h"

namespace megalith {
namespace {

enum class RecipeRows { kAlpaca, kText, kChat };

struct RecipeDataSet {
  std::string_view name;  // of the component
  RecipeRows rows;
  std::string_view source = "", subset = "", column = "";  // without a word of the recipe
  bool trains_on_input = false;
};

constexpr RecipeDataSet kDataSets[] = {
    {"alpaca_dataset", RecipeRows::kAlpaca, "tatsu-lab/alpaca", "", "", true},
    {"alpaca_cleaned_dataset", RecipeRows::kAlpaca, "yahma/alpaca-cleaned/alpaca_data_cleaned.json", "", "", true},
    {"text_completion_dataset", RecipeRows::kText, "", "", "text"},
    {"wikitext_dataset", RecipeRows::kText, "EleutherAI/wikitext_document_level", "wikitext-103-v1", "page"},
    {"chat_dataset", RecipeRows::kChat},
};

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

RecipePart part_of(const RecipeValues& values, const std::string& key) {
  const std::string text = values.text(key, "train");
  const char* expected = "the name of a split, perhaps with a part such as train[:95%] or train[95%:]";
  RecipePart part;
  const size_t bracket = text.find('[');
  part.split = text.substr(0, bracket);
  if (part.split.find('+') != std::string::npos) values.refuse(key, expected);
  if (bracket == std::string::npos) return part;
  const size_t colon = text.find(':', bracket);
  if (colon == std::string::npos || !text.ends_with(']')) values.refuse(key, expected);
  const auto begin = percent(text.substr(bracket + 1, colon - bracket - 1), 0);
  const auto end = percent(text.substr(colon + 1, text.size() - colon - 2), 100);
  if (!begin || !end || *begin >= *end) values.refuse(key, expected);
  part.begin = *begin;
  part.end = *end;
  return part;
}

class RecipeData {
 public:
  RecipeData(const RecipeValues& values, std::vector<std::string>& notes) : values_(values), notes_(notes) {}

  std::vector<RecipeSetting> settings() {
    if (!values_.is_given("dataset._component_")) return {};
    choose_set();
    choose_paths("dataset", "sft_data_path");
    choose_rows();
    choose_parts();
    if (values_.is_on("dataset.packed", false)) {
      if (!values_.is_given("tokenizer.max_seq_len")) {
        throw UserError(
            fmt::format("{} needs tokenizer.max_seq_len, the length of a pack", values_.said("dataset.packed")),
            "add tokenizer.max_seq_len=8192");
      }
      add("dataset.packed", "enable_packed_sequences", "true");
    }
    return std::move(settings_);
  }

 private:
  void add(std::string key, std::string option, std::string value) {
    settings_.push_back({std::move(key), std::move(option), WrittenValue::of(std::move(value))});
  }

  void choose_set() {
    const std::string component = values_.text("dataset._component_");
    const std::string name = component.substr(component.rfind('.') + 1);
    const auto found = std::find_if(std::begin(kDataSets), std::end(kDataSets),
                                    [&](const RecipeDataSet& one) { return one.name == name; });
    if (found != std::end(kDataSets)) {
      set_ = &*found;
      return;
    }
    std::vector<std::string_view> names;
    for (const RecipeDataSet& one : kDataSets) names.push_back(one.name);
    values_.refuse("dataset._component_", fmt::format("{}", fmt::join(names, ", ")),
                   "no other data set has a counterpart here; write its rows into a file of JSON lines, and name it "
                   "with dataset=torchtune.datasets.chat_dataset dataset.source=json dataset.data_files=FILE");
  }

  void choose_paths(const std::string& section, const std::string& option) {
    const std::string key = section + ".source";
    std::string source = values_.text(key, section == "dataset" || !values_.is_given(key) ? set_->source : "");
    std::vector<std::string> paths = values_.items(section + ".data_files");
    if (paths.empty() && values_.is_given(section + ".data_dir")) paths = {values_.text(section + ".data_dir")};
    // The kind of local files.
    const bool is_kind =
        source == "json" || source == "csv" || source == "parquet" || source == "text" || source == "arrow";
    if (is_kind && paths.empty()) {
      values_.refuse(key, "files of this kind in data_files", fmt::format("add {}.data_files=FILE", section));
    }
    if (!is_kind) {
      if (source.empty()) values_.refuse(key, "a data set of the hub, or json with data_files");
      const std::string subset = values_.text(section + ".name", values_.text(section + ".subset", set_->subset));
      if (!subset.empty()) source += "/" + subset;
      paths = {source};
    }
    const std::string said_by = values_.is_given(section + ".data_files") ? section + ".data_files" : key;
    settings_.push_back({said_by, option, WrittenValue{WrittenValue::Form::kList, std::move(paths)}});
  }

  void choose_rows() {
    switch (set_->rows) {
      case RecipeRows::kText:
        return add("dataset.column", "sft_column", values_.text("dataset.column", set_->column));
      case RecipeRows::kAlpaca:
        add("dataset._component_", "sft_conversation_format", "alpaca");
        notes_.push_back(
            fmt::format("{}: a row is Alpaca's words, the answer and the end of the text; the marks that "
                        "torchtune's tokenizers put around messages are left out",
                        values_.said("dataset._component_")));
        break;
      case RecipeRows::kChat:
        check_conversations();
        add("dataset._component_", "sft_conversation_format", "chat_template");
        break;
    }
    if (values_.is_on("dataset.train_on_input", set_->trains_on_input)) {
      add("dataset.train_on_input", "train_on_input", "true");
    }
  }

  void check_conversations() {
    const std::string style = values_.text("dataset.conversation_style", "sharegpt");
    if (style != "sharegpt" && style != "openai") values_.refuse("dataset.conversation_style", "sharegpt, openai");
    const std::string column = values_.text("dataset.conversation_column", "messages");
    if (column != "conversations" && column != "messages") {
      values_.refuse("dataset.conversation_column", "conversations, messages", "rename the column in the rows");
    }
  }

  void choose_parts() {
    const RecipePart train = part_of(values_, "dataset.split");
    if (train.split != "train") add("dataset.split", "sft_dataset_split", train.split);
    const bool validates = values_.is_given("run_val_every_n_steps") && values_.is_given("dataset_val._component_");
    if (validates && (values_.is_given("dataset_val.source") || values_.is_given("dataset_val.data_files"))) {
      choose_paths("dataset_val", "sft_valid_data_path");
      if (train.begin == 0 && train.end == 100) return;
      values_.refuse("dataset.split", "a whole split beside other rows for validation");
    }
    if (train.begin > 0) values_.refuse("dataset.split", "a part that begins with the first row, such as train[:95%]");
    if (train.end == 100 && validates) {
      values_.refuse("dataset.split", "a part of the rows where others are for validation, such as train[:95%]");
    }
    // What is left is for validation, where there is any.
    add("dataset.split", "split", fmt::format("{},{},0", train.end, 100 - train.end));
  }

  const RecipeValues& values_;
  std::vector<std::string>& notes_;
  const RecipeDataSet* set_ = nullptr;
  std::vector<RecipeSetting> settings_;
};

}  // namespace

std::vector<RecipeSetting> recipe_data_settings(const RecipeValues& values, std::vector<std::string>& notes) {
  return RecipeData(values, notes).settings();
}

}  // namespace megalith
