// One file of axolotl, LLaMA-Factory or TRL while it is read (finetuner_file.h), and the figures that rows cannot make.
#pragma once

#include <algorithm>
#include <array>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "compat/file_words.h"
#include "compat/finetuner_file.h"
#include "config/yaml_document.h"

namespace megalith {

struct Finetuner {
  std::string_view name;       // of an entry, "trl_dpo"
  std::string_view of, stage;  // the facts @of and @stage
  const FileKeys& (*keys)();
  FileTrainer trainer;
  std::vector<std::string_view> marks;  // a file with model_name_or_path, or its alias, and one of these is theirs
};

class FinetunerReader : public FileWords {
 public:
  FinetunerReader(const Finetuner& tuner, const std::filesystem::path& file, const std::filesystem::path& config_root,
                  const EnvironmentMap& environment)
      : FileWords(tuner.keys(), tuner.trainer, config_root, environment), tuner_(tuner), file_(file) {}

  ConfigFile read(const FinetunerWords& words);

  // Each once: data sets have the same to say.
  void note(std::string text) override {
    if (std::find(result.notes.begin(), result.notes.end(), text) == result.notes.end()) {
      FileWords::note(std::move(text));
    }
  }

 private:
  // Puts the keys of one data set among the words, as "dataset.path" and so on.
  using RowSet = std::function<void()>;
  struct RowForm {
    std::string of;                  // a data set's path
    std::array<std::string, 4> facts;  // of its rows
  };

  void take_file();
  void apply(std::string_view part);
  void choose_adapters();
  void choose_trained_weights();  // finetuner_freeze.cc
  void choose_learning_rate();
  void choose_sharding();
  void choose_outputs();

  // finetuner_data.cc
  void choose_data();
  std::vector<RowSet> training_sets();
  std::vector<RowSet> validation_sets();
  std::vector<RowSet> sets_of(std::string_view key);
  std::vector<std::string> names_in(std::string_view key) const;
  RowSet registered_set(const std::string& name);
  RowSet hub_set(const std::string& split_key);
  // Their paths with the part of each that is read (kinds/text/sft_paths.h). UserError unless all have one @form and
  // @column, which are facts afterwards.
  std::vector<std::string> read_sets(const std::vector<RowSet>& sets);
  std::vector<std::string> mixed(std::vector<std::string> paths);
  std::vector<std::string> paths_of_set();
  std::string part_of_set();

  const Finetuner& tuner_;
  const std::filesystem::path file_;
  std::vector<std::pair<std::string, YamlNode>> lists_;  // keys that list data sets
  std::optional<RowForm> rows_;                          // of the first data set
};

}  // namespace megalith
