// launch_rules.h: what the variables of Stanford's scripts mean together.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "compat/launch_rules.h"
#include "core/strings.h"

namespace megalith {
namespace {

constexpr std::string_view kToySteps = "10";
// 2^32, which scales are lowered from step by step, would take all of a toy's steps.
constexpr std::string_view kToyLossScale = "65536";

// Ids of the published vocabularies, for runs that open no tokenizer: google-bert/bert-base-uncased's; with [BOS],
// [EOS] and 100 sentinels for T5; GPT-2's.
constexpr std::string_view kBertIds = "30522", kT5Ids = "30624", kGptIds = "50257";
constexpr std::string_view kSentinels = "100";

class StanfordRules {
 public:
  StanfordRules(const ScriptValues& values, const LaunchInputs& inputs, LaunchPlan& plan)
      : values_(values), inputs_(inputs), plan_(plan) {}

  void apply() {
    for (const auto& [name, value] : row_of(plan_.front_end).fixed) {
      plan_.set({.name = std::string(name), .value = std::string(value)});
    }
    choose_data();
    choose_tokenizer();
    choose_checkpoints();
    if (const ScriptValue* bert = values_.given("PRETRAINED_BERT_PATH")) set(*bert, "bert_load", bert->value);
    count_in_steps();
    if (plan_.is_tiny) shorten();
    if (has(kIctScripts, plan_.front_end)) leave_out_wide_accuracies();
  }

 private:
  bool is_dry() const { return plan_.dry_run != DryRunKind::kNone; }

  void set(const ScriptValue& from, std::string name, std::string value) {
    plan_.set({std::move(name), std::move(value), from.spelling, from.value});
  }

  void fail(std::string message, std::string remedy) {
    plan_.errors.emplace_back(std::move(message), std::move(remedy));
  }

  std::string_view data_variable() const { return has(kIctScripts, plan_.front_end) ? "TEXT_DATA_PATH" : "DATA_PATH"; }

  void choose_data() {
    const ScriptValue* mock = values_.given("MOCK_DATA");
    const ScriptValue* paths = values_.given(data_variable());
    if (mock != nullptr && mock->value == "1") {
      set(*mock, "mock_data", "true");
    } else if (paths != nullptr) {
      check_paths(*paths);
      set(*paths, "data_path", paths->value);
      if (const ScriptValue* titles = values_.given("TITLE_DATA_PATH")) {
        check_paths(*titles);
        set(*titles, "titles_data_path", titles->value);
      }
      return;
    } else if (plan_.is_typed("data_path") || plan_.is_typed("mock_data")) {
      return;
    } else if (mock == nullptr && (is_dry() || plan_.is_tiny)) {
      plan_.set({.name = "mock_data", .value = "true"});
      plan_.notes.push_back(fmt::format("{} is not set: {} takes made-up data in its place", data_variable(),
                                        is_dry() ? "the dry run" : "the toy"));
    } else {
      fail(fmt::format("{} is not set", data_variable()),
           fmt::format("set {} to the prefix of a .bin and .idx file, as 'megalith prepare{}' writes them, or "
                       "MOCK_DATA=1 for made-up data",
                       data_variable(), has(kGptScripts, plan_.front_end) ? "" : " --split_sentences"));
    }
    is_mock_ = true;
    plan_.drop("split");
  }

  void check_paths(const ScriptValue& paths) {
    for (const std::string& path : split_words(paths.value)) {
      const bool is_weight = path.find_first_not_of("0123456789.") == std::string::npos;
      if (is_weight || inputs_.exists(path + ".idx") || inputs_.exists(path)) continue;
      fail(fmt::format("{}: there is no {}.idx", paths.text(), path),
           "it is the prefix of a .bin and .idx file, which 'megalith prepare' writes");
    }
  }

  // The files of the vocabulary are opened where there is data to read, or where the user names them.
  void choose_tokenizer() {
    if (plan_.is_typed("tokenizer_type") || plan_.is_typed("tokenizer_model")) return;
    std::vector<const ScriptValue*> files, missing;
    bool is_named = false;
    for (const char* name : {"VOCAB_FILE", "MERGE_FILE"}) {
      const ScriptValue* file = values_.find(name);
      if (file == nullptr) continue;
      files.push_back(file);
      is_named = is_named || !file->is_default;
      if (!inputs_.exists(file->value)) missing.push_back(file);
    }
    if (!is_named && (is_mock_ || (is_dry() && !missing.empty()))) {
      const std::string_view ids = has(kGptScripts, plan_.front_end)  ? kGptIds
                                   : has(kT5Scripts, plan_.front_end) ? kT5Ids
                                                                      : kBertIds;
      plan_.set({.name = "vocab_size", .value = std::string(ids)});
      plan_.notes.push_back(
          fmt::format("no tokenizer is opened: the vocabulary is of {} ids, as the published one", ids));
      return;
    }
    for (const ScriptValue* file : missing) {
      fail(fmt::format("{}: there is no such file", file->text()),
           fmt::format("set {} to the file that the data was prepared with", file->spelling));
    }
    const ScriptValue& type = *values_.find("TOKENIZER_TYPE");
    set(type, "tokenizer_type", type.value);
    for (const ScriptValue* file : files) set(*file, lower_case(file->variable->name()), file->value);
    if (has(kT5Scripts, plan_.front_end)) plan_.set({.name = "vocab_extra_ids", .value = std::string(kSentinels)});
  }

  void choose_checkpoints() {
    if (const ScriptValue* folder = values_.given("CHECKPOINT_PATH")) {
      set(*folder, "save", folder->value);
      set(*folder, "load", folder->value);
      return;
    }
    if (plan_.is_typed("save")) return;
    plan_.drop("save_interval");
    plan_.notes.emplace_back("CHECKPOINT_PATH is not set: the run saves nothing");
  }

  // GPT-3's run is counted in samples, unless the user counts it in steps.
  void count_in_steps() {
    if (plan_.find("train_samples") == nullptr || !(plan_.is_tiny || plan_.is_typed("train_iters"))) return;
    for (const char* name : {"train_samples", "rampup_batch_size", "lr_decay_samples", "lr_warmup_samples"}) {
      plan_.drop(name);
    }
    plan_.notes.emplace_back(
        "the run is counted in steps: batches do not grow, and the learning rate's curve is theirs");
  }

  // Upstream's script asks for top 100 of 32 texts, which is always 100 %; here that is an error.
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

  void shorten() {
    plan_.drop("lr_decay_iters");
    plan_.set({.name = "train_iters", .value = std::string(kToySteps)});
    plan_.set({.name = "log_interval", .value = "1"});
    plan_.set({.name = "eval_iters", .value = "1"});
    plan_.set({.name = "initial_loss_scale", .value = std::string(kToyLossScale)});
    plan_.notes.push_back(fmt::format("TINY=1: {} steps; --train_iters asks for more", kToySteps));
  }

  const ScriptValues& values_;
  const LaunchInputs& inputs_;
  LaunchPlan& plan_;
  bool is_mock_ = false;
};

}  // namespace

void plan_stanford_options(const ScriptValues& values, const LaunchInputs& inputs, LaunchPlan& plan) {
  StanfordRules(values, inputs, plan).apply();
}

}  // namespace megalith
