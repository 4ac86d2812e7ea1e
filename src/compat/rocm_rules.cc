// launch_rules.h for ROCm's scripts.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "compat/launch_rules.h"
#include "compat/script_words.h"
#include "core/strings.h"

namespace megalith {
namespace {

// Applies the rows of script_rules.table in order, and computes their facts.
class RocmRules {
 public:
  RocmRules(const ScriptValues& values, const LaunchInputs& inputs, LaunchPlan& plan)
      : values_(values), inputs_(inputs), plan_(plan), words_(values, plan, /*names_defaults=*/true) {}

  void apply() {
    choose_model();
    plan_.set_fixed();
    take_single_options();
    cut_layers();
    words_.set_fact("@fp8", "hybrid", values_.is_on("TE_FP8") ? "TE_FP8" : "PR");
    for (const char* part : {"precision", "optimizer", "recomputation"}) words_.apply(part);
    for (const char* name : {"MEGATRON_FSDP", "FSDP"}) {
      if (values_.is_on(name)) words_.set_fact("@fsdp", "1", name);
    }
    if (words_.has("@fsdp")) words_.apply("sharding");
    choose_operators();
    choose_data();
    words_.apply("traces");
  }

 private:
  void choose_model() {
    const FrontEndRow& row = row_of(plan_.front_end);
    size_ = row.sizes.front();
    if (const ScriptValue* given = values_.given("MODEL_SIZE")) {
      std::string size = lower_case(given->value);
      if (size.ends_with('b')) size.pop_back();
      const auto found =
          std::find_if(row.sizes.begin(), row.sizes.end(), [&](const ModelSize& one) { return one.size == size; });
      if (size == "tiny") {
        plan_.is_tiny = true;
      } else if (found != row.sizes.end()) {
        size_ = *found;
      } else {
        std::vector<std::string> sizes;
        for (const ModelSize& one : row.sizes) sizes.push_back(fmt::format("{}B", one.size));
        words_.fail(fmt::format("{} is not a size of {}", given->text(), row.name),
             fmt::format("write one of {}, or tiny", fmt::join(sizes, ", ")));
      }
    }
    plan_.config = size_.preset;
  }

  void take_single_options() {
    for (const ScriptValue& one : values_.all()) {
      const ScriptVariable& row = *one.variable;
      if (row.kind == VariableKind::kOption) {
        std::string value = one.value;
        if (row.type == VariableType::kSwitch) value = one.value == "1" ? "true" : "false";
        plan_.set({std::string(row.option), value, one.spelling, one.value});
      }
    }
    // Llamas have no experts: expert parallelism of 1 means nothing.
    for (const char* name : {"expert_model_parallel_size", "expert_tensor_parallel_size"}) {
      const PlannedOption* option = plan_.find(name);
      if (option != nullptr && option->value == "1" && has(kLlamas, plan_.front_end)) plan_.drop(name);
    }
  }

  // Recomputes the model's expert pattern, which has an entry for every layer.
  void cut_layers() {
    const bool is_cut = values_.given("NUM_LAYERS") != nullptr;
    const int count = is_cut ? values_.count("NUM_LAYERS") : size_.num_layers;
    const int dense = std::min(count, size_.num_dense);
    words_.set_fact("@layers", std::to_string(count));
    if (size_.num_dense > 0) words_.set_fact("@pattern", fmt::format("([0]*{}+[1]*{})", dense, count - dense));
    words_.apply("layers");
  }

  void choose_operators() {
    const auto& typed = plan_.user_options;
    for (size_t i = 0; i < typed.size(); ++i) {
      const std::string word = fold_name(typed[i]);
      const bool is_local = word == "__transformer_impl=local" ||
                            (word == "__transformer_impl" && i + 1 < typed.size() && typed[i + 1] == "local");
      if (is_local) words_.set_fact("@transformer_impl", "local", "--transformer-impl");
    }
    words_.set_fact("@num_gpus", std::to_string(plan_.num_gpus));
    words_.apply("operators");
  }

  void choose_data() {
    if (const ScriptValue* tokenizer = values_.given("TOKENIZER_MODEL")) {
      words_.set_switch("@opens_tokenizer", plan_.dry_run == DryRunKind::kNone || inputs_.exists(tokenizer->value));
    }
    std::string variable = "DATA_PATH", paths = values_.text("DATA_PATH");
    if (paths.empty() && values_.given("DATA_DIR") != nullptr) {
      variable = "DATA_DIR";
      paths = values_.text("DATA_DIR") + "/bookcorpus_text_sentence";
    }
    words_.set_fact("@paths", paths, variable);
    if (!values_.is_on("MOCK_DATA") && !paths.empty()) {
      words_.check_paths(
          fmt::format("{}={}", variable, values_.text(variable)), paths, inputs_,
          "DATA_PATH is the prefix of a .bin and .idx file; examples/llama/prepare_dataset.sh makes them");
    }
    words_.apply("data");
  }

  const ScriptValues& values_;
  const LaunchInputs& inputs_;
  LaunchPlan& plan_;
  ScriptWords words_;
  ModelSize size_;
};

}  // namespace

void plan_rocm_options(const ScriptValues& values, const LaunchInputs& inputs, LaunchPlan& plan) {
  RocmRules(values, inputs, plan).apply();
}

}  // namespace megalith
