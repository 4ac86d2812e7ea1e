// See benchmark_finetune.h. Source: ROCm/MAD scripts/pytorch_train/pytorch_benchmark_report.sh, Torchtune_Tester.sh;
// the recipes of torchtune that they start.
#include "compat/benchmark_finetune.h"

#include <fmt/format.h>

#include <algorithm>

#include "compat/benchmark_wikitext.h"

namespace megalith {
namespace {

constexpr int kWarmupSteps = 100;
constexpr const char* kChats = "HuggingFaceH4/ultrachat_200k";

class FinetuningRules {
 public:
  FinetuningRules(const BenchmarkModel& model, const ScriptValues& values, LaunchPlan& plan)
      : model_(model), values_(values), plan_(plan), mode_(plan.benchmark->mode) {}

  void apply() {
    choose_sizes();
    choose_memory();
    choose_optimizer();
    if (mode_ != "finetune_fw") choose_adapters();
    choose_inputs();
  }

 private:
  // An option that a variable says, or the benchmark where nobody gave the variable.
  void set(std::string_view variable, std::string name, std::string value) {
    const ScriptValue* given = values_.given(variable);
    plan_.set({std::move(name), std::move(value), given ? given->spelling : "", given ? given->value : ""});
  }
  void fix(std::string name, std::string value) { plan_.set({.name = std::move(name), .value = std::move(value)}); }
  void input(std::string_view variable, std::string name, std::string value) {
    const ScriptValue* given = values_.given(variable);
    plan_.inputs.push_back(
        {std::move(name), std::move(value), given ? given->spelling : "", given ? given->value : ""});
  }
  int count(std::string_view variable, int fallback) const {
    return values_.given(variable) != nullptr ? values_.count(variable) : fallback;
  }
  bool is_on(std::string_view variable, bool fallback) const {
    return values_.given(variable) != nullptr ? values_.is_on(variable) : fallback;
  }
  bool is_large() const { return model_.name.ends_with("70B") || model_.name.ends_with("405B"); }

  void choose_sizes() {
    const int steps = count("MAX_STEPS", 20) * count("EPOCHS", 1);
    set("GAS", "gradient_accumulation_steps", std::to_string(count("GAS", 1)));
    set(values_.given("MAX_STEPS") ? "MAX_STEPS" : "EPOCHS", "train_iters", std::to_string(steps));
    set("SEED", "seed", std::to_string(count("SEED", 42)));
    num_steps_ = steps;
  }

  void choose_memory() {
    if (!is_on("ACTIVATION_CHECKPOINTING", true)) {
      for (const char* name : {"recompute_granularity", "recompute_method", "recompute_num_layers"}) plan_.drop(name);
    }
    const bool is_packed = mode_ == "finetune_qlora";
    const bool offloads = is_on("CPU_OFFLOAD", model_.name.ends_with("405B") && !is_packed);
    if (offloads && is_packed) {
      plan_.errors.emplace_back("-t finetune_qlora: CPU_OFFLOAD keeps what FSDP divides in the host's memory, and "
                                "weights in four bits are not divided",
                                "set CPU_OFFLOAD=0, or leave it out");
      return;
    }
    if (offloads) set("CPU_OFFLOAD", "fsdp_cpu_offload", "true");
    if (offloads && plan_.find("use_torch_fsdp2") == nullptr) {
      plan_.errors.emplace_back("-f 0: CPU_OFFLOAD keeps what FSDP divides in the host's memory",
                                "leave -f 0 out, or set CPU_OFFLOAD=0");
    }
    if (mode_ != "finetune_fw") return;
    // Weights, moments and the bits that weights lack, two bytes each.
    fix("use_precision_aware_optimizer", "true");
    fix("exp_avg_dtype", "bf16");
    fix("exp_avg_sq_dtype", "bf16");
    fix("master_weights", "remainder");
  }

  void choose_optimizer() {
    const bool is_full = mode_ == "finetune_fw";
    fix("lr", is_full ? "2e-5" : "3e-4");
    fix("weight_decay", "0.01");
    fix("adam_beta2", "0.999");
    fix("clip_grad", "0");
    fix("lr_decay_style", is_full ? "constant" : "cosine");
    fix("lr_warmup_iters", is_full ? "0" : std::to_string(kWarmupSteps));
    // A run that ends while it warms up never comes to the decay.
    if (!is_full && num_steps_ <= kWarmupSteps) fix("lr_decay_iters", std::to_string(kWarmupSteps + 1));
    fix("log_style", "torchtune");
  }

  void choose_adapters() {
    fix("lora.enabled", "true");
    fix("lora.dim", is_large() ? "16" : "8");
    fix("lora.alpha", is_large() ? "32" : "16");
    fix("lora.lora_A_init_method", "kaiming");
    fix("lora.target_modules", "[q_proj, v_proj, o_proj, gate_proj, up_proj, down_proj]");
    if (mode_ != "finetune_qlora") return;
    fix("lora.quantization", "nf4");
    if (plan_.find("use_torch_fsdp2") == nullptr) return;
    plan_.drop("use_torch_fsdp2");
    fix("use_distributed_optimizer", "true");
    plan_.notes.push_back("-t finetune_qlora: every rank has the weights in four bits, so use_distributed_optimizer "
                          "divides the optimizer's state, and not FSDP all of it");
  }

  // Weights and rows, unless tokens are made up.
  void choose_inputs() {
    const bool makes_up = values_.given("MOCK_DATA") != nullptr
                              ? values_.is_on("MOCK_DATA")
                              : plan_.is_tiny && values_.given("TRAIN_FILE") == nullptr;
    if (makes_up) {
      set("MOCK_DATA", "mock_data", "true");
      plan_.notes.push_back("tokens are made up, and weights drawn: no model and no text is read");
      return;
    }
    const bool is_chat = mode_ == "HF_finetune_lora";
    const std::string weights(is_chat && !model_.chat_repo.empty() ? model_.chat_repo : model_.repo);
    if (!plan_.is_tiny || values_.given("MODEL_DIR") != nullptr) {
      input("MODEL_DIR", "load_hf", values_.given("MODEL_DIR") ? values_.text("MODEL_DIR") : weights);
    }
    if (values_.given("TRAIN_FILE") != nullptr) {
      input("TRAIN_FILE", "sft_data_path", values_.text("TRAIN_FILE"));
    } else {
      input("TRAIN_FILE", "sft_data_path", is_chat ? kChats : kWikitextFile);
      if (!is_chat) plan_.benchmark->made_rows = kWikitextFile;
    }
    if (is_chat) {
      input("", "sft_dataset_split", "train_sft");
      input("", "sft_conversation_format", "chat_template");
    } else {
      input("", "sft_column", kWikitextColumn);
    }
    input("", "split", "100,0,0");
    input("", "truncate", "true");
    if (is_on("PACKED", true)) input("PACKED", "enable_packed_sequences", "true");
  }

  const BenchmarkModel& model_;
  const ScriptValues& values_;
  LaunchPlan& plan_;
  const std::string& mode_;
  int num_steps_ = 0;
};

}  // namespace

void plan_finetuning(const BenchmarkModel& model, const ScriptValues& values, LaunchPlan& plan) {
  FinetuningRules(model, values, plan).apply();
}

}  // namespace megalith
