// launch_rules.h for Stanford's scripts.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "compat/launch_rules.h"
#include "compat/script_words.h"
#include "core/strings.h"

namespace megalith {
namespace {

class StanfordRules {
 public:
  StanfordRules(const ScriptValues& values, const LaunchInputs& inputs, LaunchPlan& plan)
      : values_(values), inputs_(inputs), plan_(plan), words_(values, plan, /*names_defaults=*/true) {}

  void apply() {
    plan_.set_fixed();
    const bool is_gpt = has(kGptScripts, plan_.front_end);
    words_.set_fact("@kind", is_gpt ? "gpt" : has(kT5Scripts, plan_.front_end) ? "t5" : "bert");
    choose_data();
    choose_tokenizer();
    const bool is_in_samples = plan_.find("train_samples") != nullptr;
    words_.set_switch("@counts_steps", is_in_samples && (plan_.is_tiny || plan_.is_typed("train_iters")));
    words_.set_switch("@types_save", plan_.is_typed("save"));
    words_.set_switch("@is_tiny", plan_.is_tiny);
    words_.apply("run");
    if (has(kIctScripts, plan_.front_end)) leave_out_wide_accuracies();
  }

 private:
  bool is_dry() const { return plan_.dry_run != DryRunKind::kNone; }

  std::string_view data_variable() const { return has(kIctScripts, plan_.front_end) ? "TEXT_DATA_PATH" : "DATA_PATH"; }

  void choose_data() {
    const ScriptValue* mock = values_.given("MOCK_DATA");
    const ScriptValue* paths = values_.given(data_variable());
    if (mock != nullptr && mock->value == "1") {
      words_.set("MOCK_DATA", "mock_data", "true");
    } else if (paths != nullptr) {
      take_paths(*paths, "data_path");
      if (const ScriptValue* titles = values_.given("TITLE_DATA_PATH")) take_paths(*titles, "titles_data_path");
      return;
    } else if (plan_.is_typed("data_path") || plan_.is_typed("mock_data")) {
      return;
    } else if (mock == nullptr && (is_dry() || plan_.is_tiny)) {
      plan_.set({.name = "mock_data", .value = "true"});
      plan_.notes.push_back(fmt::format("{} is not set: {} takes made-up data in its place", data_variable(),
                                        is_dry() ? "the dry run" : "the toy"));
    } else {
      words_.fail(fmt::format("{} is not set", data_variable()),
           fmt::format("set {} to the prefix of a .bin and .idx file, as 'megalith prepare{}' writes them, or "
                       "MOCK_DATA=1 for made-up data",
                       data_variable(), has(kGptScripts, plan_.front_end) ? "" : " --split_sentences"));
    }
    is_mock_ = true;
    plan_.drop("split");
  }

  void take_paths(const ScriptValue& paths, const char* option) {
    words_.check_paths(paths.text(), paths.value, inputs_,
                       "it is the prefix of a .bin and .idx file, which 'megalith prepare' writes");
    words_.set(paths.variable->name(), option, paths.value);
  }

  // Vocabulary files are opened only if there is data to read or the user names them.
  void choose_tokenizer() {
    if (plan_.is_typed("tokenizer_type") || plan_.is_typed("tokenizer_model")) return;
    std::vector<const ScriptValue*> missing;
    bool is_named = false;
    for (const char* name : {"VOCAB_FILE", "MERGE_FILE"}) {
      const ScriptValue* file = values_.find(name);
      if (file == nullptr) continue;
      is_named = is_named || !file->is_default;
      if (!inputs_.exists(file->value)) missing.push_back(file);
    }
    if (!is_named && (is_mock_ || (is_dry() && !missing.empty()))) return words_.apply("vocabulary");
    for (const ScriptValue* file : missing) {
      words_.fail(fmt::format("{}: there is no such file", file->text()),
                  fmt::format("set {} to the file that the data was prepared with", file->spelling));
    }
    words_.apply("tokenizer");
  }

  // Upstream's script asks for top 100 of 32 texts, always 100 %; here that is an error.
  void leave_out_wide_accuracies() {
    const PlannedOption* places = plan_.find("retriever_report_topk_accuracies");
    const PlannedOption* rows = plan_.find("micro_batch_size");
    if (places == nullptr || rows == nullptr || plan_.is_typed(places->name) || plan_.is_typed(rows->name)) return;
    // A toy's microbatch is small.
    const int64_t set = plan_.is_tiny ? 2 : std::stoll(rows->value) * plan_.world_size();
    std::vector<std::string> kept, left_out;
    std::string words = places->value;
    std::ranges::replace(words, ',', ' ');
    for (const std::string& place : split_words(words)) {
      (std::stoll(place) <= set ? kept : left_out).push_back(place);
    }
    if (left_out.empty()) return;
    plan_.set({.name = places->name, .value = fmt::format("{}", fmt::join(kept, ","))});
    plan_.notes.push_back(fmt::format("no top {} accuracy: a set of texts, micro_batch_size times ranks, is smaller",
                                      fmt::join(left_out, ", ")));
  }

  const ScriptValues& values_;
  const LaunchInputs& inputs_;
  LaunchPlan& plan_;
  ScriptWords words_;
  bool is_mock_ = false;
};

}  // namespace

void plan_stanford_options(const ScriptValues& values, const LaunchInputs& inputs, LaunchPlan& plan) {
  StanfordRules(values, inputs, plan).apply();
}

}  // namespace megalith
