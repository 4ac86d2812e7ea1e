#include "compat/benchmark_rules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "compat/benchmark_wikitext.h"
#include "compat/script_words.h"
#include "core/strings.h"

namespace megalith {
namespace {

constexpr std::string_view kFp8Sentence = "Only Llama 3.1 8B supports FP8 precision.";
constexpr const char* kChats = "HuggingFaceH4/ultrachat_200k";
constexpr std::string_view kPageSource = "the page of AMD's PyTorch image";

bool is_benchmark_flag(const std::string& word) {
  const ScriptVariable* row = word.starts_with("-") ? find_script_variable(word) : nullptr;
  return row != nullptr && row->acts_in(FrontEnd::kBenchmark);
}

// AMD's harness starts a script with --model_repo and takes the results from the folder it started it in; the
// documented commands are typed in a folder below.
void name_files(BenchmarkRun& run, bool is_of_harness) {
  run.log = fmt::format("{}-{}.csv", run.model, run.mode);
  run.results = fmt::format("{}perf_{}.csv", is_of_harness ? "" : "../", run.model);
}

// The block that AMD's script prints first.
std::vector<std::string> echoed_block(const BenchmarkRun& run,
                                      const std::vector<std::pair<std::string, std::string>>& more) {
  std::vector<std::string> lines = {
      fmt::format("training_mode: {}", run.mode),
      fmt::format("model_repo: {}", run.model),
      fmt::format("datatype: {}", run.precision),
  };
  for (const auto& [name, value] : more) lines.push_back(fmt::format("{}: {}", name, value));
  lines.push_back(fmt::format("training log: {}", run.log));
  lines.push_back(fmt::format("results: {}", run.results));
  return lines;
}

// Rules of one benchmark. Each takes and gives options, so their order matters.
class BenchmarkRules {
 public:
  BenchmarkRules(const ScriptValues& values, const LaunchInputs& inputs, LaunchPlan& plan)
      : values_(values), inputs_(inputs), plan_(plan), words_(values, plan, /*names_defaults=*/false) {}

  void apply() {
    if (!choose_model()) return;
    BenchmarkRun& run = plan_.benchmark.emplace();
    run.model = model_->name;
    run.mode = values_.text("-t");
    run.precision = values_.text("-p");
    is_finetuning_ = run.mode.find("finetune") != std::string::npos;
    run.backend = model_->has_pictures() ? BenchmarkBackend::kFlux
                  : is_finetuning_     ? BenchmarkBackend::kTorchtune
                                       : BenchmarkBackend::kTorchtitan;
    name_files(run, values_.given("-m")->spelling == "--model_repo");
    check_mode();
    check_precision();
    plan_.config = model_->preset;
    plan_.set_fixed();
    set_facts(run);
    if (model_->has_pictures()) {
      choose_flux();
    } else {
      choose_options();
      is_finetuning_ ? finetune() : choose_data();
    }
    say_block(run);
  }

 private:
  void fail(std::string message, std::string remedy) {
    plan_.errors.emplace_back(std::move(message), std::move(remedy));
  }

  bool choose_model() {
    const ScriptValue* given = values_.given("-m");
    if (given == nullptr) {
      fail("-m is not set: no model is named", fmt::format("write -m MODEL, one of {}", benchmark_model_names()));
      return false;
    }
    const BenchmarkTag* tag = find_benchmark_tag(given->value);
    model_ = find_benchmark_model(tag != nullptr ? tag->model : given->value);
    if (model_ == nullptr) {
      fail(fmt::format("{} is no model of these benchmarks{}", given->text(), nearest_benchmark(given->value)),
           fmt::format("write one of {}, or a tag of models.json", benchmark_model_names()));
    }
    return model_ != nullptr;
  }

  void check_mode() {
    BenchmarkRun& run = *plan_.benchmark;
    const bool is_there = is_finetuning_ ? model_->finetune_batch > 0 : model_->pretrain_batch > 0;
    if (!is_there) {
      fail(fmt::format("-t {} -m {}: there is no such benchmark", run.mode, model_->name),
           is_finetuning_ ? "FLUX is benchmarked with -t pretrain" : "this model is benchmarked with -t finetune_fw");
    }
  }

  void check_precision() {
    const BenchmarkRun& run = *plan_.benchmark;
    if (run.precision != "FP8") return;
    if (is_finetuning_ || run.backend == BenchmarkBackend::kFlux) {
      return fail(fmt::format("-p FP8: -t {} -m {} is benchmarked in BF16", run.mode, run.model), "write -p BF16");
    }
    if (run.model == "Llama-3.1-8B") return;
    plan_.notes.push_back(
        fmt::format("-p FP8: {} says \"{}\", and its own second example asks for it with Llama-3.1-70B; this run is "
                    "in FP8",
                    kPageSource, kFp8Sentence));
  }

  int count(std::string_view variable, int fallback) const {
    return values_.given(variable) != nullptr ? values_.count(variable) : fallback;
  }
  bool is_on(std::string_view variable, bool fallback) const {
    return values_.given(variable) != nullptr ? values_.is_on(variable) : fallback;
  }

  void set_facts(const BenchmarkRun& run) {
    const bool is_packed = run.mode == "finetune_qlora", is_chat = run.mode == "HF_finetune_lora";
    const bool is_405b = model_->name.ends_with("405B");
    words_.set_fact("@mode", run.mode);
    words_.set_fact("@precision", run.precision);
    words_.set_switch("@is_large", is_405b || model_->name.ends_with("70B"));
    words_.set_switch("@divides_all", is_on("-f", true));
    words_.set_switch("@recomputes", is_on("ACTIVATION_CHECKPOINTING", true));
    words_.set_switch("@offloads", is_on("CPU_OFFLOAD", is_405b && !is_packed));
    words_.set_switch("@packs", is_on("PACKED", true));
    words_.set_fact("@gas", std::to_string(count("GAS", 1)));
    words_.set_fact("@seed", std::to_string(count("SEED", 42)));
    words_.set_fact("@steps", std::to_string(count("MAX_STEPS", 20) * count("EPOCHS", 1)),
                    values_.given("MAX_STEPS") ? "MAX_STEPS" : "EPOCHS");
    const std::string rows = model_->has_pictures() ? "DATA_PATH" : "TRAIN_FILE";
    words_.set_switch("@makes_up", is_on("MOCK_DATA", plan_.is_tiny && values_.given(rows) == nullptr));
    words_.set_switch("@loads", !plan_.is_tiny || values_.given("MODEL_DIR") != nullptr);
    const auto given_or = [&](std::string_view variable, const std::string& otherwise) {
      return values_.given(variable) != nullptr ? values_.text(variable) : otherwise;
    };
    words_.set_fact("@weights", given_or("MODEL_DIR", is_chat && !model_->chat_repo.empty() ? model_->chat_repo
                                                                                           : model_->repo));
    words_.set_fact("@rows", given_or("TRAIN_FILE", is_chat ? kChats : kWikitextFile));
    words_.set_fact("@pictures", given_or("DATA_PATH", std::string(kPreparedPictures)));
    words_.set_fact("@batch", given_or("-b", std::to_string(model_->pretrain_batch)));
  }

  void choose_options() {
    const int batch = is_finetuning_ ? model_->finetune_batch : model_->pretrain_batch;
    set_size("-b", "MBS", "micro_batch_size", batch);
    set_size("-s", "SEQ_LENGTH", "seq_length", model_->seq_length);
    words_.apply("benchmark");
    if (!is_finetuning_) refuse_finetuning(fmt::format("-t is {}", plan_.benchmark->mode), "");
  }

  void refuse_finetuning(const std::string& reason, std::string_view but) {
    for (const ScriptVariable* row : finetuning_variables()) {
      const ScriptValue* given = values_.given(row->name());
      if (given == nullptr || row->kind == VariableKind::kNoEffect || row->name() == but) continue;
      fail(fmt::format("{} is for fine-tuning, and {}", given->text(), reason),
           fmt::format("leave {} out", given->spelling));
    }
  }

  void finetune() {
    for (const char* part : {"finetune", "memory", "curve", "adapters", "inputs"}) words_.apply(part);
    const bool is_made = !words_.is_on("@makes_up") && words_.text("@rows") == kWikitextFile;
    if (is_made && values_.given("TRAIN_FILE") == nullptr) plan_.benchmark->made_rows = kWikitextFile;
  }

  void choose_flux() {
    for (const char* flag : {"-s", "-f"}) {
      if (const ScriptValue* given = values_.given(flag)) {
        fail(fmt::format("{}: FLUX has no such choice", given->text()), "leave it out");
      }
    }
    refuse_finetuning(fmt::format("-m is {}", model_->name), "MODEL_DIR");
    words_.apply("flux");
    words_.apply("pictures");
  }

  // Sets a size from a flag or a variable.
  void set_size(std::string_view flag, std::string_view variable, const char* option, int fallback) {
    const ScriptValue *by_flag = values_.given(flag), *by_variable = values_.given(variable);
    if (by_flag != nullptr && by_variable != nullptr && by_flag->value != by_variable->value) {
      fail(fmt::format("{} and {} disagree: both are {}", by_flag->text(), by_variable->text(), option),
           "keep one of them");
    }
    const std::string_view said = by_flag != nullptr || by_variable == nullptr ? flag : variable;
    words_.set(said, option, values_.given(said) ? values_.text(said) : std::to_string(fallback));
  }

  void choose_data() {
    if (values_.is_on("MOCK_DATA")) return words_.set("MOCK_DATA", "mock_data", "true");
    const ScriptValue* paths = values_.given("DATA_PATH");
    if (paths == nullptr) {
      return fail("MOCK_DATA=0 needs DATA_PATH", "set DATA_PATH to the prefix of a .bin and .idx file");
    }
    words_.check_paths(paths->text(), paths->value, inputs_, "DATA_PATH is the prefix of a .bin and .idx file");
    words_.set("DATA_PATH", "data_path", paths->value);
  }

  void say_block(const BenchmarkRun& run) {
    const auto value = [&](std::string_view option) {
      const PlannedOption* found = plan_.find(option);
      return found == nullptr ? std::string("-") : found->value;
    };
    const bool has_pictures = run.backend == BenchmarkBackend::kFlux;
    const std::vector<std::string> lines = echoed_block(run, {{has_pictures ? "image_size" : "sequence_length",
                                                               value(has_pictures ? "image_size" : "seq_length")},
                                                              {"num_gpus", std::to_string(plan_.world_size())},
                                                              {"fsdp", plan_.find("use_torch_fsdp2") ? "1" : "0"},
                                                              {"batch_size", value("micro_batch_size")}});
    plan_.notes.insert(plan_.notes.begin(), lines.begin(), lines.end());
  }

  const ScriptValues& values_;
  const LaunchInputs& inputs_;
  LaunchPlan& plan_;
  ScriptWords words_;
  const BenchmarkModel* model_ = nullptr;
  bool is_finetuning_ = false;
};

// A flag in another front end's words: a variable of ROCm's scripts, or options after Primus's.
std::vector<std::string> as_words(const ScriptValue& flag, bool is_primus) {
  const std::string_view name = flag.variable->name();
  if (name == "-n") return {"GPUS_PER_NODE=" + flag.value};
  if (name == "-s" && is_primus) return {"--seq_length", flag.value};
  if (name == "-s") return {"SEQ_LENGTH=" + flag.value};
  if (name == "-b" && is_primus) return {"--micro_batch_size", flag.value};
  if (name == "-b") return {"MBS=" + flag.value};
  if (name == "-f" && is_primus) return {"--use_torch_fsdp2", flag.value == "1" ? "true" : "false"};
  if (name == "-f") return {"FSDP=" + flag.value};
  if (name != "-p") return {};
  if (is_primus && flag.value == "FP8") return {"--fp8_format", "hybrid"};
  if (is_primus) return {"--fp8_format", "null"};
  return {flag.value == "FP8" ? "TE_FP8=1" : "TE_FP8=0"};
}

}  // namespace

const BenchmarkTag* tag_of_other_script(const std::vector<std::string>& words) {
  for (size_t i = 0; i + 1 < words.size(); ++i) {
    if (words[i] != "-m" && words[i] != "--model_repo") continue;
    const BenchmarkTag* tag = find_benchmark_tag(words[i + 1]);
    if (tag != nullptr && tag->front_end != FrontEnd::kBenchmark) return tag;
  }
  return nullptr;
}

LaunchPlan plan_tagged_benchmark(const BenchmarkTag& tag, const LaunchInputs& inputs) {
  const bool is_primus = tag.front_end == FrontEnd::kPrimus;
  // The flags, and the words for the other script.
  LaunchInputs flags, script = inputs;
  flags.front_end = FrontEnd::kBenchmark;
  script.front_end = tag.front_end;
  script.words.clear();
  for (size_t i = 0; i < inputs.words.size(); ++i) {
    const bool is_flag = is_benchmark_flag(inputs.words[i]);
    std::vector<std::string>& into = is_flag ? flags.words : script.words;
    into.push_back(inputs.words[i]);
    if (is_flag && i + 1 < inputs.words.size()) into.push_back(inputs.words[++i]);
  }
  std::vector<UserError> errors;
  const ScriptValues values(flags, errors);
  BenchmarkRun run;
  run.backend = tag.backend;
  run.model = tag.model;
  run.mode = values.text("-t");
  run.precision = values.text("-p");
  const ScriptValue* named = values.given("-m");
  name_files(run, named != nullptr && named->spelling == "--model_repo");
  if (run.mode != "pretrain") {
    errors.emplace_back(fmt::format("-t {}: {} is a benchmark of pretraining", run.mode, tag.tag), "write -t pretrain");
  }
  // The table's words have the lowest priority, so the user's win.
  std::string assignments = fmt::format("TRAIN_LOG='{}'\n", run.log);
  std::vector<std::string> words(tag.options.begin(), tag.options.end());
  for (const std::string& variable : tag.variables) {
    assignments += is_primus
                       ? fmt::format("EXP='{}examples/megatron/configs/{}-pretrain.yaml'\n", inputs.tree, variable)
                       : fmt::format("{}\n", variable);
  }
  for (const ScriptValue& flag : values.all()) {
    if (flag.is_default) continue;
    for (std::string& word : as_words(flag, is_primus)) words.push_back(std::move(word));
  }
  script.env_file = assignments + inputs.env_file.value_or("");
  script.words.insert(script.words.begin(), words.begin(), words.end());
  LaunchPlan plan = plan_launch(script);
  plan.errors.insert(plan.errors.begin(), errors.begin(), errors.end());
  const std::vector<std::string> lines =
      echoed_block(run, {{"script", fmt::format("{}, with {} {}", row_of(tag.front_end).scripts.front(),
                                                fmt::join(tag.variables, " "), fmt::join(words, " "))}});
  plan.notes.insert(plan.notes.begin(), lines.begin(), lines.end());
  plan.benchmark = std::move(run);
  return plan;
}

void plan_benchmark_options(const ScriptValues& values, const LaunchInputs& inputs, LaunchPlan& plan) {
  BenchmarkRules(values, inputs, plan).apply();
}

}  // namespace megalith
