// See benchmark_rules.h.
#include "compat/benchmark_rules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "compat/benchmark_finetune.h"
#include "compat/benchmark_flux.h"
#include "core/strings.h"

namespace megalith {
namespace {

constexpr std::string_view kFp8Sentence = "Only Llama 3.1 8B supports FP8 precision.";
constexpr std::string_view kPageSource = "the page of AMD's PyTorch image";

bool is_benchmark_flag(const std::string& word) {
  const ScriptVariable* row = word.starts_with("-") ? find_script_variable(word) : nullptr;
  return row != nullptr && row->acts_in(FrontEnd::kBenchmark);
}

// Where a benchmark writes. AMD's harness starts a script with --model_repo and takes the results from the folder that
// it started it in; the page's commands are typed in a folder below.
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

// Rules of one benchmark, each in a function; they take and give options in this order.
class BenchmarkRules {
 public:
  BenchmarkRules(const ScriptValues& values, const LaunchInputs& inputs, LaunchPlan& plan)
      : values_(values), inputs_(inputs), plan_(plan) {}

  void apply() {
    if (!choose_model()) return;
    BenchmarkRun& run = plan_.benchmark.emplace();
    run.model = model_->name;
    run.mode = values_.text("-t");
    run.precision = values_.text("-p");
    is_finetuning_ = run.mode.find("finetune") != std::string::npos;
    run.backend = model_->has_pictures ? BenchmarkBackend::kFlux
                  : is_finetuning_     ? BenchmarkBackend::kTorchtune
                                       : BenchmarkBackend::kTorchtitan;
    name_files(run, values_.given("-m")->spelling == "--model_repo");
    check_mode();
    check_precision();
    if (run.backend == BenchmarkBackend::kFlux) {
      plan_flux(*model_, values_, plan_);
    } else {
      choose_options();
      is_finetuning_ ? plan_finetuning(*model_, values_, plan_) : choose_data();
    }
    say_block(run);
  }

 private:
  void fail(std::string message, std::string remedy) {
    plan_.errors.emplace_back(std::move(message), std::move(remedy));
  }

  // An option that a flag says, or the benchmark where nobody gave the flag.
  void set(std::string_view flag, std::string name, std::string value) {
    const ScriptValue* given = values_.given(flag);
    plan_.set({std::move(name), std::move(value), given ? given->spelling : "", given ? given->value : ""});
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

  void choose_options() {
    const BenchmarkRun& run = *plan_.benchmark;
    plan_.config = model_->preset;
    for (const auto& [name, value] : row_of(plan_.front_end).fixed) {
      plan_.set({.name = std::string(name), .value = std::string(value)});
    }
    const int batch = is_finetuning_ ? model_->finetune_batch : model_->pretrain_batch;
    set_size("-b", "MBS", "micro_batch_size", batch);
    set_size("-s", "SEQ_LENGTH", "seq_length", model_->seq_length);
    if (run.precision == "FP8") set("-p", "fp8_format", "hybrid");
    if (values_.find("-f") == nullptr || values_.is_on("-f")) {
      set("-f", "use_torch_fsdp2", "true");
    } else {
      for (const char* name : {"use_distributed_optimizer", "overlap_grad_reduce", "overlap_param_gather"}) {
        set("-f", name, "true");
      }
    }
    plan_.set({.name = "recompute_granularity", .value = "full"});
    plan_.set({.name = "recompute_method", .value = "uniform"});
    plan_.set({.name = "recompute_num_layers", .value = "1"});
    if (is_finetuning_) return;
    for (const ScriptVariable* row : finetuning_variables()) {
      const ScriptValue* given = values_.given(row->name());
      if (given == nullptr || row->kind == VariableKind::kNoEffect) continue;
      fail(fmt::format("{} is for fine-tuning, and -t is {}", given->text(), run.mode),
           fmt::format("leave {} out", given->spelling));
    }
  }

  // A size that a flag or a variable says.
  void set_size(std::string_view flag, std::string_view variable, const char* option, int fallback) {
    const ScriptValue *by_flag = values_.given(flag), *by_variable = values_.given(variable);
    if (by_flag != nullptr && by_variable != nullptr && by_flag->value != by_variable->value) {
      fail(fmt::format("{} and {} disagree: both are {}", by_flag->text(), by_variable->text(), option),
           "keep one of them");
    }
    const std::string_view said = by_flag != nullptr || by_variable == nullptr ? flag : variable;
    set(said, option, values_.given(said) ? values_.text(said) : std::to_string(fallback));
  }

  void choose_data() {
    if (values_.is_on("MOCK_DATA")) {
      const ScriptValue* said = values_.given("MOCK_DATA");
      return plan_.set({"mock_data", "true", said ? said->spelling : "", said ? said->value : ""});
    }
    const ScriptValue* paths = values_.given("DATA_PATH");
    if (paths == nullptr) {
      return fail("MOCK_DATA=0 needs DATA_PATH", "set DATA_PATH to the prefix of a .bin and .idx file");
    }
    for (const std::string& path : split_words(paths->value)) {
      const bool is_weight = path.find_first_not_of("0123456789.") == std::string::npos;
      if (is_weight || inputs_.exists(path + ".idx") || inputs_.exists(path)) continue;
      fail(fmt::format("{}: there is no {}.idx", paths->text(), path),
           "DATA_PATH is the prefix of a .bin and .idx file");
    }
    plan_.set({"data_path", paths->value, paths->spelling, paths->value});
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
  const BenchmarkModel* model_ = nullptr;
  bool is_finetuning_ = false;
};

// What a flag is in the words of another front end: a variable of ROCm's scripts, or options behind Primus's.
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
  // The flags by themselves, and the words that are the other script's.
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
  // The table's words are the lowest, so that the user's win.
  std::string assignments = fmt::format("TRAIN_LOG='{}'\n", run.log);
  std::vector<std::string> words(tag.options.begin(), tag.options.end());
  for (const std::string_view variable : tag.variables) {
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
