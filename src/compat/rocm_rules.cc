// launch_rules.h: what the variables of ROCm's scripts mean together.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "compat/launch_rules.h"
#include "core/strings.h"

namespace megalith {
namespace {

// Rules of one run, each in a function; they take and give options in this order.
class RocmRules {
 public:
  RocmRules(const ScriptValues& values, const LaunchInputs& inputs, LaunchPlan& plan)
      : values_(values), inputs_(inputs), plan_(plan) {}

  void apply() {
    choose_model();
    for (const auto& [name, value] : row_of(plan_.front_end).fixed) {
      plan_.set({.name = std::string(name), .value = std::string(value)});
    }
    take_single_options();
    cut_layers();
    choose_precision();
    choose_optimizer();
    choose_recomputation();
    choose_sharding();
    choose_operators();
    choose_data();
    choose_profile();
  }

 private:
  // Says an option as the value of a variable.
  void set(std::string_view variable, std::string name, std::string value) {
    const ScriptValue* from = values_.find(variable);
    plan_.set({std::move(name), std::move(value), from ? from->spelling : std::string(variable),
               from ? from->value : std::string()});
  }

  void fail(std::string message, std::string remedy) {
    plan_.errors.emplace_back(std::move(message), std::move(remedy));
  }

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
        fail(fmt::format("{} is not a size of {}", given->text(), row.name),
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
    // A layout of experts says nothing of a model that has none.
    for (const char* name : {"expert_model_parallel_size", "expert_tensor_parallel_size"}) {
      const PlannedOption* option = plan_.find(name);
      if (option != nullptr && option->value == "1" && has(kLlamas, plan_.front_end)) plan_.drop(name);
    }
  }

  // The model's pattern of experts has an entry for every layer.
  void cut_layers() {
    const ScriptValue* layers = values_.given("NUM_LAYERS");
    if (const ScriptValue* pattern = values_.given("MOE_LAYER_FREQ")) {
      set("MOE_LAYER_FREQ", "moe_layer_freq", pattern->value);
    } else if (layers != nullptr && size_.num_dense > 0) {
      const int count = values_.count("NUM_LAYERS"), dense = std::min(count, size_.num_dense);
      set("NUM_LAYERS", "moe_layer_freq", fmt::format("([0]*{}+[1]*{})", dense, count - dense));
    }
  }

  void choose_precision() {
    const ScriptValue* pr = values_.given("PR");
    const ScriptValue* fp8 = values_.given("TE_FP8");
    if (pr != nullptr && fp8 != nullptr && (pr->value == "fp8") != (fp8->value == "1")) {
      fail(fmt::format("{} and {} disagree about the precision", pr->text(), fp8->text()), "keep one of them");
    }
    const std::string precision = values_.text("PR");
    set("PR", precision == "fp16" ? "fp16" : "bf16", "true");
    if (precision != "fp8" && !values_.is_on("TE_FP8")) return;
    const std::string_view variable = values_.is_on("TE_FP8") ? "TE_FP8" : "PR";
    const std::string recipe = values_.text("TE_FP8_RECIPE");
    set(variable, "fp8_format", "hybrid");
    set("TE_FP8_RECIPE", "fp8_recipe", recipe);
    if (recipe != "delayed") return;
    set(variable, "fp8_margin", "0");
    set(variable, "fp8_amax_history_len", "1024");
    set(variable, "fp8_amax_compute_algo", "max");
  }

  void choose_optimizer() {
    set("OPTIMIZER", "optimizer", values_.text("OPTIMIZER"));
    if (values_.text("OPTIMIZER") != "adam") {
      for (const char* name : {"adam_beta1", "adam_beta2"}) plan_.drop(name);
      return;
    }
    set("OPTIMIZER", "use_distributed_optimizer", "true");
    set("OPTIMIZER", "overlap_param_gather", "true");
  }

  void choose_recomputation() {
    const ScriptValue* ac = values_.find("AC");
    const std::string all_layers =
        values_.given("NUM_LAYERS") ? values_.text("NUM_LAYERS") : std::to_string(size_.num_layers);
    if (values_.is_on("RECOMPUTE")) {
      if (ac != nullptr && !ac->is_default && ac->value != "full") {
        fail(fmt::format("{} and {} disagree: RECOMPUTE=1 recomputes all layers", values_.find("RECOMPUTE")->text(),
                         ac->text()),
             "keep one of them");
      }
      set("RECOMPUTE", "recompute_granularity", "full");
      set("RECOMPUTE", "recompute_method", "block");
      set("RECOMPUTE", "recompute_num_layers", all_layers);
      return;
    }
    if (ac == nullptr || ac->value == "none") return;
    set("AC", "recompute_granularity", ac->value == "sel" ? "selective" : "full");
    if (ac->value == "sel") return;
    set("RECOMPUTE_METHOD", "recompute_method", values_.text("RECOMPUTE_METHOD"));
    const ScriptValue* count = values_.find("RECOMPUTE_NUM_LAYERS");
    if (count == nullptr) {
      set("AC", "recompute_num_layers", all_layers);
    } else {
      set("RECOMPUTE_NUM_LAYERS", "recompute_num_layers", count->value);
    }
  }

  // FSDP=1: what it is not made for is off, or an error when the user asked for it.
  void choose_sharding() {
    const std::string_view name = values_.is_on("FSDP") ? "FSDP" : "MEGATRON_FSDP";
    if (!values_.is_on(name)) return;
    const std::string said = values_.find(name)->text();
    for (const char* axis : {"PP", "EP"}) {
      const ScriptValue* size = values_.find(axis);
      if (size == nullptr || size->value == "1") continue;
      if (size->is_default) {
        plan_.set({std::string(size->variable->option), "1", std::string(name), "1"});
        plan_.notes.push_back(fmt::format("{}: {} is 1", said, axis));
      } else {
        fail(fmt::format("{} and {}: FSDP does not work with {} above 1", said, size->text(), size->spelling),
             fmt::format("set {}=1, or leave FSDP out", size->spelling));
      }
    }
    if (values_.text("PR") == "fp16") {
      fail(fmt::format("{} and {}: FSDP does not work with fp16", said, values_.find("PR")->text()), "set PR=bf16");
    }
    const ScriptValue* tp = values_.find("TP");
    std::vector<std::string> changes;
    if (tp->value != "1") changes.push_back(fmt::format("{} is 1 instead of {}", tp->spelling, tp->value));
    set(name, "tensor_model_parallel_size", "1");
    for (const char* option : {"sequence_parallel", "use_distributed_optimizer", "overlap_param_gather"}) {
      plan_.drop(option);
      changes.push_back(fmt::format("{} is off", option));
    }
    plan_.notes.push_back(fmt::format("{}: {}", said, fmt::join(changes, ", ")));
    set(name, "use_torch_fsdp2", "true");
  }

  void choose_operators() {
    if (values_.given("USE_FLASH_ATTN") != nullptr && !values_.is_on("USE_FLASH_ATTN")) {
      set("USE_FLASH_ATTN", "attention_backend", "reference");
      plan_.notes.emplace_back("USE_FLASH_ATTN=0: attention is computed by the reference, which is slow");
    }
    const auto& words = plan_.user_options;
    for (size_t i = 0; i < words.size(); ++i) {
      const std::string word = fold_name(words[i]);
      const bool is_local = word == "__transformer_impl=local" ||
                            (word == "__transformer_impl" && i + 1 < words.size() && words[i + 1] == "local");
      if (!is_local) continue;
      plan_.set({"kernels", "reference", "--transformer-impl", "local"});
      plan_.notes.emplace_back("--transformer-impl local: all operators are the references, which are slow");
    }
    if (!values_.is_on("GEMM_TUNING")) return;
    if (plan_.num_gpus > 0) {
      set("GEMM_TUNING", "gemm_tuning", "tune");
    } else if (values_.given("GEMM_TUNING") != nullptr) {
      plan_.notes.emplace_back("GEMM_TUNING=1: no effect where there is no GPU");
    }
  }

  void choose_data() {
    const bool is_mock = values_.is_on("MOCK_DATA");
    const std::string mock = values_.find("MOCK_DATA")->text();
    const ScriptValue* tokenizer = values_.given("TOKENIZER_MODEL");
    if (is_mock) {
      set("MOCK_DATA", "mock_data", "true");
      plan_.drop("split");
      plan_.drop("data_cache_path");
      if (tokenizer != nullptr) {
        plan_.notes.push_back(fmt::format("{}: not opened, {} needs no tokenizer; the vocabulary is the model's",
                                          tokenizer->text(), mock));
      }
      return;
    }
    if (tokenizer != nullptr) choose_tokenizer(*tokenizer);
    std::string variable = "DATA_PATH", paths = values_.text("DATA_PATH");
    if (paths.empty() && values_.given("DATA_DIR") != nullptr) {
      variable = "DATA_DIR";
      paths = values_.text("DATA_DIR") + "/bookcorpus_text_sentence";
    }
    if (paths.empty()) {
      fail(fmt::format("{} needs DATA_PATH", mock),
           "set DATA_PATH to the prefix of a .bin and .idx file; examples/llama/prepare_dataset.sh makes them");
      return;
    }
    for (const std::string& path : split_words(paths)) {
      const bool is_weight = path.find_first_not_of("0123456789.") == std::string::npos;
      if (is_weight || inputs_.exists(path + ".idx") || inputs_.exists(path)) continue;
      fail(fmt::format("{}={}: there is no {}.idx", variable, values_.text(variable), path),
           "DATA_PATH is the prefix of a .bin and .idx file; examples/llama/prepare_dataset.sh makes them");
    }
    set(variable, "data_path", paths);
  }

  void choose_tokenizer(const ScriptValue& tokenizer) {
    if (plan_.dry_run != DryRunKind::kNone && !inputs_.exists(tokenizer.value)) {
      plan_.notes.push_back(
          fmt::format("{}: not opened in a dry run; the vocabulary is the model's", tokenizer.text()));
      return;
    }
    set("TOKENIZER_TYPE", "tokenizer_type", values_.text("TOKENIZER_TYPE"));
    set("TOKENIZER_MODEL", "tokenizer_model", tokenizer.value);
  }

  void choose_profile() {
    if (!values_.is_on("ENABLE_PROFILING")) return;
    set("ENABLE_PROFILING", "profile", "true");
    set("PROFILE_START", "profile_step_start", values_.text("PROFILE_START"));
    set("PROFILE_END", "profile_step_end", values_.text("PROFILE_END"));
  }

  const ScriptValues& values_;
  const LaunchInputs& inputs_;
  LaunchPlan& plan_;
  ModelSize size_;
};

}  // namespace

void plan_rocm_options(const ScriptValues& values, const LaunchInputs& inputs, LaunchPlan& plan) {
  RocmRules(values, inputs, plan).apply();
}

}  // namespace megalith
