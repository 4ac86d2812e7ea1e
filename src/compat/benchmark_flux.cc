// See benchmark_flux.h. Source: ROCm/MAD scripts/pytorch_train (FluxBenchmark); torchtitan v0.2.2 models/flux (learning
// rate, optimizer).
#include "compat/benchmark_flux.h"

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

namespace megalith {
namespace {

constexpr std::pair<std::string_view, std::string_view> kFluxRun[] = {
    {"image_size", "512"},
    {"text_length", "512"},
    {"train_iters", "100"},
    {"lr", "1e-4"},
    {"lr_decay_style", "constant"},
    {"log_style", "pictures"},
    {"use_torch_fsdp2", "true"},
    {"recompute_granularity", "full"},
    {"recompute_method", "uniform"},
    {"recompute_num_layers", "1"},
};

class FluxRules {
 public:
  FluxRules(const BenchmarkModel& model, const ScriptValues& values, LaunchPlan& plan)
      : model_(model), values_(values), plan_(plan) {}

  void apply() {
    plan_.config = model_.preset;
    for (const auto& [name, value] : row_of(plan_.front_end).fixed) {
      plan_.set({.name = std::string(name), .value = std::string(value)});
    }
    for (const auto& [name, value] : kFluxRun) plan_.set({.name = std::string(name), .value = std::string(value)});
    refuse_what_is_of_texts();
    const ScriptValue* batch = values_.given("-b");
    plan_.set({"micro_batch_size", batch ? values_.text("-b") : std::to_string(model_.pretrain_batch),
               batch ? batch->spelling : "", batch ? batch->value : ""});
    choose_inputs();
  }

 private:
  void refuse_what_is_of_texts() {
    for (const char* flag : {"-s", "-f"}) {
      const ScriptValue* given = values_.given(flag);
      if (given == nullptr) continue;
      plan_.errors.emplace_back(fmt::format("{}: FLUX has no such choice", given->text()), "leave it out");
    }
    for (const ScriptVariable* row : finetuning_variables()) {
      const ScriptValue* given = values_.given(row->name());
      if (given == nullptr || row->kind == VariableKind::kNoEffect || row->name() == "MODEL_DIR") continue;
      plan_.errors.emplace_back(fmt::format("{} is for fine-tuning, and -m is {}", given->text(), model_.name),
                                fmt::format("leave {} out", given->spelling));
    }
  }

  void input(std::string_view variable, std::string name, std::string otherwise) {
    const ScriptValue* given = values_.given(variable);
    plan_.inputs.push_back({std::move(name), given ? values_.text(variable) : std::move(otherwise),
                            given ? given->spelling : "", given ? given->value : ""});
  }

  // Weights and pictures, unless those are made up.
  void choose_inputs() {
    const ScriptValue *mock = values_.given("MOCK_DATA"), *paths = values_.given("DATA_PATH");
    if (mock != nullptr ? values_.is_on("MOCK_DATA") : plan_.is_tiny && paths == nullptr) {
      plan_.set({"mock_data", "true", mock ? mock->spelling : "", mock ? mock->value : ""});
      plan_.notes.emplace_back("pictures are made up, and weights drawn: no model and no picture is read");
      return;
    }
    if (!plan_.is_tiny || values_.given("MODEL_DIR") != nullptr) input("MODEL_DIR", "load_hf", std::string(model_.repo));
    input("DATA_PATH", "data_path", std::string(kPreparedPictures));
    plan_.inputs.push_back({.name = "split", .value = "100,0,0", .variable = "", .given = ""});
  }

  const BenchmarkModel& model_;
  const ScriptValues& values_;
  LaunchPlan& plan_;
};

}  // namespace

void plan_flux(const BenchmarkModel& model, const ScriptValues& values, LaunchPlan& plan) {
  FluxRules(model, values, plan).apply();
}

}  // namespace megalith
