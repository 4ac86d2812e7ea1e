// See torchtune_recipe.h.
#include "compat/torchtune_recipe.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <ctime>
#include <optional>
#include <utility>

#include "compat/torchtune_data.h"
#include "compat/torchtune_values.h"
#include "config/presets.h"
#include "core/error.h"
#include "core/file.h"
#include "core/strings.h"

namespace megalith {
namespace {

namespace fs = std::filesystem;

// Builders of models, without lora_ and qlora_, and the presets of the same sizes.
constexpr std::pair<std::string_view, std::string_view> kBuilders[] = {
    {"llama2_7b", "llama2_7B"},       {"llama2_13b", "llama2_13B"},       {"llama2_70b", "llama2_70B"},
    {"llama3_8b", "llama3_8B"},       {"llama3_70b", "llama3_70B"},       {"llama3_1_8b", "llama3.1_8B"},
    {"llama3_1_70b", "llama3.1_70B"}, {"llama3_1_405b", "llama3.1_405B"}, {"llama3_2_1b", "llama3.2_1B"},
    {"llama3_2_3b", "llama3.2_3B"},   {"llama3_3_70b", "llama3.3_70B"},   {"qwen2_5_0_5b", "qwen2.5_0.5B"},
    {"qwen2_5_1_5b", "qwen2.5_1.5B"}, {"qwen2_5_3b", "qwen2.5_3B"},       {"qwen2_5_7b", "qwen2.5_7B"},
    {"qwen2_5_14b", "qwen2.5_14B"},   {"qwen2_5_32b", "qwen2.5_32B"},     {"qwen2_5_72b", "qwen2.5_72B"},
};

constexpr std::pair<std::string_view, std::string_view> kAttentionLayers[] = {
    {"q_proj", "q_proj"}, {"k_proj", "k_proj"}, {"v_proj", "v_proj"}, {"output_proj", "o_proj"}};

enum class Method { kFull, kLora, kQlora };

std::string last_name(const std::string& component) { return component.substr(component.rfind('.') + 1); }

// One file for a process, whenever it is asked for.
std::string log_name() {
  static const std::string name = fmt::format("log_{}.txt", std::time(nullptr));
  return name;
}

class RecipeReader {
 public:
  RecipeReader(const fs::path& file, const std::vector<std::string>& words, const fs::path& root,
               const EnvironmentMap& environment)
      : file_(file.string()),
        root_(root),
        environment_(environment),
        values_(file, words, environment, result_.errors) {}

  ConfigFile read() {
    if (!result_.errors.empty()) return std::move(result_);
    for (auto rule :
         {&RecipeReader::choose_model, &RecipeReader::choose_adapters, &RecipeReader::choose_weights,
          &RecipeReader::choose_tokenizer, &RecipeReader::choose_data, &RecipeReader::choose_evaluation,
          &RecipeReader::choose_duration, &RecipeReader::choose_optimizer, &RecipeReader::choose_learning_rate,
          &RecipeReader::choose_precision, &RecipeReader::choose_sharding, &RecipeReader::choose_recomputation,
          &RecipeReader::choose_outputs, &RecipeReader::choose_traces, &RecipeReader::take_options}) {
      try {
        (this->*rule)();
      } catch (const UserError& error) {
        result_.errors.push_back(error);
      }
    }
    name_useless_keys();
    return std::move(result_);
  }

 private:
  // An option, said by a key.
  void set(std::string_view key, std::string option, WrittenValue value) {
    const RecipeValue* said = values_.find(key);
    result_.settings.push_back({std::move(option),
                                std::move(value),
                                {said != nullptr ? OptionLayer::kFile : OptionLayer::kPreset,
                                 said != nullptr ? said->where : fmt::format("torchtune's {}", key)}});
  }
  void set(std::string_view key, std::string option, std::string value) {
    set(key, std::move(option), WrittenValue::of(std::move(value)));
  }
  void set_list(std::string_view key, std::string option, std::vector<std::string> items) {
    set(key, std::move(option), WrittenValue{WrittenValue::Form::kList, std::move(items)});
  }
  void note(std::string text) { result_.notes.push_back(std::move(text)); }

  // A component by its last name; the modules that it lies in have moved between versions.
  std::string component(std::string_view section) const {
    return last_name(values_.text(fmt::format("{}._component_", section)));
  }
  [[noreturn]] void refuse_component(std::string_view section, std::string_view known) const {
    values_.refuse(fmt::format("{}._component_", section), known,
                   "no other component has a counterpart here; name one of these, in the file or with a word");
  }

  void choose_model() {
    std::string name = component("model");
    if (name.empty()) values_.refuse("model._component_", "a model's builder");
    if (name.starts_with("qlora_")) method_ = Method::kQlora;
    if (name.starts_with("lora_")) method_ = Method::kLora;
    if (method_ == Method::kLora && values_.is_on("model.quantize_base", false)) method_ = Method::kQlora;
    if (method_ != Method::kFull) name.erase(0, name.find('_') + 1);
    for (const std::string_view ending : {"_base", "_instruct"}) {
      if (name.ends_with(ending)) name.erase(name.size() - ending.size());
    }
    const auto found =
        std::find_if(std::begin(kBuilders), std::end(kBuilders), [&](const auto& one) { return one.first == name; });
    if (found == std::end(kBuilders)) {
      std::vector<std::string_view> names;
      for (const auto& [builder, preset] : kBuilders) names.push_back(builder);
      refuse_component("model", fmt::format("{}, also with lora_ or qlora_", fmt::join(names, ", ")));
    }
    const ConfigFile preset = read_config_file(find_config(std::string(found->second), root_), root_, environment_);
    for (const Setting& setting : preset.settings) {
      if (setting.name == "num_layers") num_layers_ = setting.value.text();
    }
    // The folder's own config.json says what lies in it.
    if (fs::exists(fs::path(values_.text("checkpointer.checkpoint_dir")) / "config.json")) return;
    for (Setting setting : preset.settings) {
      setting.source.layer = OptionLayer::kPreset;
      result_.settings.push_back(std::move(setting));
    }
  }

  void choose_adapters() {
    if (method_ == Method::kFull) {
      for (const auto& [name, value] : values_.all()) {
        if (!name.starts_with("model.") || name == "model._component_") continue;
        throw UserError(
            fmt::format("{}, and {} has no adapters", values_.said(name), values_.text("model._component_")),
            fmt::format("name the builder that begins with lora_, or add the word ~{}", name));
      }
      return;
    }
    std::vector<std::string> targets;
    for (const std::string& layer : values_.items("model.lora_attn_modules")) {
      const auto found = std::find_if(std::begin(kAttentionLayers), std::end(kAttentionLayers),
                                      [&](const auto& one) { return one.first == layer; });
      if (found == std::end(kAttentionLayers)) {
        values_.refuse("model.lora_attn_modules", "q_proj, k_proj, v_proj, output_proj");
      }
      targets.emplace_back(found->second);
    }
    if (values_.is_on("model.apply_lora_to_mlp", false)) {
      targets.insert(targets.end(), {"gate_proj", "up_proj", "down_proj"});
    }
    set("model._component_", "lora.enabled", "true");
    set_list("model.lora_attn_modules", "lora.target_modules", targets);
    set("model.lora_rank", "lora.dim", values_.text("model.lora_rank", "8"));
    set("model.lora_alpha", "lora.alpha", values_.text("model.lora_alpha", "16"));
    set("model.lora_dropout", "lora.dropout", values_.text("model.lora_dropout", "0"));
    set("model._component_", "lora.lora_A_init_method", "kaiming");
    if (values_.is_on("model.use_dora", false)) set("model.use_dora", "lora.use_dora", "true");
    if (method_ == Method::kQlora) set("model._component_", "lora.quantization", "nf4");
  }

  void choose_weights() {
    if (const std::string kind = component("checkpointer"); !kind.empty() && kind != "FullModelHFCheckpointer") {
      refuse_component("checkpointer", "torchtune.training.FullModelHFCheckpointer");
    }
    if (values_.is_given("checkpointer.checkpoint_dir")) {
      set("checkpointer.checkpoint_dir", "load_hf", values_.text("checkpointer.checkpoint_dir"));
    }
    const bool resumes = values_.is_on("resume_from_checkpoint", false);
    if (values_.is_given("checkpointer.adapter_checkpoint") && method_ != Method::kFull) {
      const fs::path adapter =
          fs::path(values_.text("checkpointer.checkpoint_dir")) / values_.text("checkpointer.adapter_checkpoint");
      set("checkpointer.adapter_checkpoint", "adapter", adapter.parent_path().string());
    }
    if (resumes) set("resume_from_checkpoint", "auto_continue_train", "true");
    if (resumes || values_.is_given("save_every_n_steps")) {
      const char* key = values_.is_given("save_every_n_steps") ? "save_every_n_steps" : "resume_from_checkpoint";
      set(key, "save", (fs::path(output_folder()) / "recipe_state").string());
    }
    if (values_.is_given("save_every_n_steps")) {
      set("save_every_n_steps", "save_interval", values_.text("save_every_n_steps"));
    }
  }

  void choose_tokenizer() {
    const std::string path = values_.text("tokenizer.path");
    const std::string weights = values_.text("checkpointer.checkpoint_dir");
    if (values_.is_given("tokenizer.max_seq_len")) {
      set("tokenizer.max_seq_len", "seq_length", values_.text("tokenizer.max_seq_len"));
      set("tokenizer.max_seq_len", "truncate", "true");
    } else if (!values_.is_on("dataset.packed", false)) {
      note(
          fmt::format("{}: a sample is padded to seq_length here, not to the longest of its batch; "
                      "dataset.packed=True tokenizer.max_seq_len=4096 is faster",
                      values_.said("tokenizer.max_seq_len", "null")));
    }
    // Beside the weights lies the same vocabulary in Hugging Face's form.
    const std::string inner = fs::path(path).lexically_normal().lexically_relative(weights).string();
    if (path.empty() || (!weights.empty() && !inner.empty() && !inner.starts_with(".."))) return;
    const fs::path named(path);
    set("tokenizer.path", "tokenizer_model",
        named.filename() == "vocab.json" ? named.parent_path().string() : named.string());
  }

  void choose_data() {
    for (RecipeSetting& setting : recipe_data_settings(values_, result_.notes)) {
      set(setting.key, std::move(setting.option), std::move(setting.value));
    }
  }

  void choose_evaluation() {
    const std::string_view every = "run_val_every_n_steps";
    if (!values_.is_given(every)) return set(every, "eval_iters", "0");
    set(every, "eval_interval", values_.text(every));
    note(fmt::format("{}: an evaluation takes --eval_iters batches of the validation set, not all of it",
                     values_.said(every)));
  }

  // Whole steps of each pass, and no more of them than max_steps_per_epoch.
  void choose_duration() {
    const std::string_view most = "max_steps_per_epoch";
    if (!values_.find("epochs")) return;
    const int64_t epochs = values_.whole("epochs", 1);
    if (!values_.is_given(most)) return set("epochs", "train_epochs", std::to_string(epochs));
    num_steps_ = epochs * values_.whole(most, 1);
    set(most, "train_iters", std::to_string(*num_steps_));
  }

  void choose_optimizer() {
    const std::string name = component("optimizer");
    const bool is_adamw = name.starts_with("AdamW") || name.starts_with("PagedAdamW");
    if (!is_adamw && name != "Adam" && name != "SGD") {
      refuse_component("optimizer", "torch.optim.AdamW, Adam or SGD, and the AdamW of bitsandbytes.optim and torchao");
    }
    if (name == "Adam" && values_.number("optimizer.weight_decay", 0) != 0) {
      values_.refuse("optimizer._component_", "torch.optim.AdamW where weights decay");
    }
    set("optimizer._component_", "optimizer", name == "SGD" ? "sgd" : "adam");
    set("optimizer.lr", "lr", values_.text("optimizer.lr", "1e-3"));
    set("optimizer.weight_decay", "weight_decay", values_.text("optimizer.weight_decay", is_adamw ? "0.01" : "0"));
    if (name == "SGD") return set("optimizer.momentum", "sgd_momentum", values_.text("optimizer.momentum", "0"));
    std::vector<std::string> betas = values_.items("optimizer.betas");
    if (betas.empty()) betas = {"0.9", "0.999"};
    if (betas.size() != 2) values_.refuse("optimizer.betas", "two numbers");
    set("optimizer.betas", "adam_beta1", betas[0]);
    set("optimizer.betas", "adam_beta2", betas[1]);
    set("optimizer.eps", "adam_eps", values_.text("optimizer.eps", "1e-8"));
    const bool is_narrow = name != "AdamW" && name != "PagedAdamW" && name != "Adam";
    if (is_narrow) {
      note(fmt::format("{}: moments are kept in bf16 here", values_.said("optimizer._component_")));
    }
    narrows_moments_ = is_narrow;
  }

  void choose_learning_rate() {
    const std::string name = component("lr_scheduler");
    set("lr_scheduler", "min_lr", "0");
    if (name.empty()) return set("lr_scheduler", "lr_decay_style", "constant");
    if (name != "get_cosine_schedule_with_warmup") {
      refuse_component("lr_scheduler", "torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup");
    }
    const std::string_view key = "lr_scheduler.num_warmup_steps";
    const int64_t warmup = values_.whole(key, 0);
    set("lr_scheduler._component_", "lr_decay_style", "cosine");
    set(key, "lr_warmup_iters", std::to_string(warmup));
    // A run that ends while it warms up never comes to the decay.
    if (num_steps_ && *num_steps_ <= warmup) set(key, "lr_decay_iters", std::to_string(warmup + 1));
  }

  void choose_precision() {
    const std::string dtype = values_.text("dtype", "bf16");
    if (dtype != "bf16" && dtype != "fp32") values_.refuse("dtype", "bf16, fp32");
    set("dtype", dtype, "true");
    // Full fine-tuning of torchtune has nothing but bf16: the remainder keeps the same bits of fp32 that a master has.
    if (dtype == "bf16" && component("optimizer") != "SGD" && (method_ == Method::kFull || narrows_moments_)) {
      set("dtype", "use_precision_aware_optimizer", "true");
      set("dtype", "exp_avg_dtype", "bf16");
      set("dtype", "exp_avg_sq_dtype", "bf16");
      set("dtype", "master_weights", "remainder");
    }
    if (values_.is_on("enable_fp8_training", false)) {
      const std::string recipe = values_.text("fp8_recipe_name", "tensorwise");
      if (recipe != "tensorwise") values_.refuse("fp8_recipe_name", "tensorwise", "see --fp8_recipe");
      set("enable_fp8_training", "fp8_format", "hybrid");
      set("enable_fp8_training", "fp8_recipe", "tensorwise");
    }
    set("clip_grad_norm", "clip_grad", values_.text("clip_grad_norm", "0"));
    const std::string device = values_.text("device", "cuda");
    if (device == "cpu") return set("device", "device", "cpu");
    if (!device.starts_with("cuda") && device != "xpu" && device != "npu") values_.refuse("device", "cuda, cpu");
  }

  void choose_sharding() {
    const int64_t copies = values_.whole("data_parallel_replicate_dim", 1);
    if (values_.whole("data_parallel_shard_dim", -1) == 1) return;
    if (method_ == Method::kQlora) {
      set("data_parallel_shard_dim", "use_distributed_optimizer", "true");
      note(
          "weights in four bits are not divided over ranks: each has all of them, and a part of the optimizer's state");
    } else {
      set("data_parallel_shard_dim", "use_torch_fsdp2", "true");
    }
    if (copies > 1) {
      set("data_parallel_replicate_dim", "num_distributed_optimizer_instances", std::to_string(copies));
    }
    if (method_ != Method::kQlora && !values_.is_on("fsdp_reshard_after_forward", true)) {
      set("fsdp_reshard_after_forward", "torch_fsdp2_reshard_after_forward", "false");
    }
    for (const char* key : {"fsdp_cpu_offload", "fsdp.cpu_offload"}) {
      if (values_.is_on(key, false)) set(key, "fsdp_cpu_offload", "true");
    }
  }

  void choose_recomputation() {
    const std::string_view key = "enable_activation_checkpointing";
    const bool offloads = values_.is_on("enable_activation_offloading", false);
    const bool is_full = values_.is_on(key, false) || values_.text("ac_mode") == "full";
    if (is_full) {
      set(key, "recompute_granularity", "full");
      set(key, "recompute_method", "uniform");
      set(key, "recompute_num_layers", values_.text("ac_option", "1"));
    } else if (values_.text("ac_mode") == "selective") {
      set("ac_mode", "recompute_granularity", "selective");
    } else if (values_.is_given("ac_mode")) {
      values_.refuse("ac_mode", "full, selective");
    }
    if (!offloads) return;
    if (!is_full) {
      throw UserError(
          fmt::format("{} needs enable_activation_checkpointing", values_.said("enable_activation_offloading")),
          "write enable_activation_checkpointing: True beside it");
    }
    set("enable_activation_offloading", "cpu_offloading_num_layers", num_layers_);
  }

  std::string output_folder() const {
    return values_.text("checkpointer.output_dir", values_.text("output_dir", "/tmp/torchtune"));
  }

  void choose_outputs() {
    const int64_t last = std::max<int64_t>(values_.whole("epochs", 1), 1) - 1;
    const std::string folder = (fs::path(output_folder()) / fmt::format("epoch_{}", last)).string();
    const char* key = values_.find("checkpointer.output_dir") != nullptr ? "checkpointer.output_dir" : "output_dir";
    set(key, method_ == Method::kFull ? "save_hf" : "save_adapter", folder);
    if (method_ != Method::kFull && !values_.is_on("save_adapter_weights_only", false)) {
      note(fmt::format("{}: only the adapters are written; megalith convert --merge_adapter makes the merged model",
                       values_.said("save_adapter_weights_only", "False")));
    }
    const std::string logger = component("metric_logger");
    const std::string logs = values_.text("metric_logger.log_dir", (fs::path(output_folder()) / "logs").string());
    set("metric_logger._component_", "log_style", "torchtune");
    if (logger.empty() || logger == "StdoutLogger") return;
    if (logger == "DiskLogger") {
      const std::string name = values_.text("metric_logger.filename", log_name());
      return set("metric_logger.log_dir", "log_file", (fs::path(logs) / name).string());
    }
    if (logger == "TensorBoardLogger") return set("metric_logger.log_dir", "tensorboard_dir", logs);
    if (logger == "WandBLogger") {
      set("metric_logger.project", "wandb_project", values_.text("metric_logger.project", "torchtune"));
      if (values_.is_given("metric_logger.entity")) {
        set("metric_logger.entity", "wandb_entity", values_.text("metric_logger.entity"));
      }
      return;
    }
    refuse_component("metric_logger", "DiskLogger, StdoutLogger, TensorBoardLogger, WandBLogger");
  }

  void choose_traces() {
    const std::string_view key = "profiler.enabled";
    if (!values_.is_on(key, false)) return;
    const int64_t begin = values_.whole("profiler.wait_steps", 5) + values_.whole("profiler.warmup_steps", 5);
    set(key, "profile", "true");
    set("profiler.wait_steps", "profile_step_start", std::to_string(begin));
    set("profiler.active_steps", "profile_step_end", std::to_string(begin + values_.whole("profiler.active_steps", 2)));
    set("profiler.output_dir", "profile_dir",
        values_.text("profiler.output_dir", (fs::path(output_folder()) / "profiling_outputs").string()));
  }

  void take_options() {
    const std::string loss = component("loss");
    if (!loss.empty() && loss != "LinearCrossEntropyLoss" && loss != "CEWithChunkedOutputLoss" &&
        loss != "CrossEntropyLoss") {
      refuse_component("loss", "LinearCrossEntropyLoss, CEWithChunkedOutputLoss, torch.nn.CrossEntropyLoss");
    }
    if (!values_.is_on("shuffle", true)) {
      note(
          fmt::format("{}: sequences are learned in an order drawn from --seed all the same", values_.said("shuffle")));
    }
    for (const auto& [name, value] : values_.all()) {
      const FileKey* key = torchtune_keys().find(name);
      if (key->kind == FileKeyKind::kOption && values_.is_given(name)) {
        set(name, std::string(key->text), value.written);
      }
    }
  }

  void name_useless_keys() {
    std::vector<std::string> names;
    for (const auto& [name, value] : values_.all()) {
      const FileKey* key = torchtune_keys().find(name);
      const bool is_inner = name.find('.') != std::string::npos;
      if (key->kind != FileKeyKind::kNoEffect || is_inner || !values_.is_given(name)) continue;
      if (lower_case(value.written.text()) != key->fallback) names.push_back(name);
    }
    if (names.empty()) return;
    note(fmt::format("{}: without a counterpart here, and so without effect: {}", file_, join(names, ", ")));
  }

  const std::string file_;
  const fs::path root_;
  const EnvironmentMap& environment_;
  ConfigFile result_;
  RecipeValues values_;
  Method method_ = Method::kFull;
  std::string num_layers_;
  std::optional<int64_t> num_steps_;
  bool narrows_moments_ = false;
};

// The value of --config among the arguments; the last one counts.
std::optional<std::string> config_among(const std::vector<std::string>& arguments) {
  std::optional<std::string> found;
  for (size_t i = 0; i < arguments.size(); ++i) {
    for (const std::string_view name : {"--config", "--exp"}) {
      const std::string& word = arguments[i];
      if (word == name && i + 1 < arguments.size()) found = arguments[i + 1];
      if (word.starts_with(name) && word.size() > name.size() && word[name.size()] == '=') {
        found = word.substr(name.size() + 1);
      }
    }
  }
  return found;
}

}  // namespace

bool is_torchtune_recipe(const fs::path& file) {
  std::error_code error;
  const std::string ending = file.extension().string();
  if ((ending != ".yaml" && ending != ".yml") || !fs::is_regular_file(file, error)) return false;
  try {
    const std::string text = read_file(file);
    for (size_t at = text.find("_component_:"); at != std::string::npos; at = text.find("_component_:", at + 1)) {
      const size_t line = text.rfind('\n', at) + 1;  // 0 in the first line
      if (text.find_first_not_of(" ", line) == at) return true;
    }
  } catch (const UserError&) {  // whoever reads it says so
  }
  return false;
}

void adopt_torchtune_recipe(ConfigInputs& inputs) {
  const std::optional<std::string> config = config_among(inputs.arguments);
  if (!config) return;
  fs::path file;
  try {
    file = find_config(*config, inputs.config_root);
  } catch (const UserError&) {
    return;
  }
  if (!is_torchtune_recipe(file)) return;
  std::vector<std::string> words;
  std::erase_if(inputs.arguments, [&](const std::string& word) {
    if (!is_recipe_word(word)) return false;
    words.push_back(word);
    return true;
  });
  inputs.readers[file.extension().string()] = [file, words](const fs::path& path, const fs::path& root,
                                                            const EnvironmentMap& environment) {
    return path == file ? read_torchtune_recipe(path, words, root, environment)
                        : read_config_file(path, root, environment);
  };
}

ConfigFile read_torchtune_recipe(const fs::path& file, const std::vector<std::string>& words,
                                 const fs::path& config_root, const EnvironmentMap& environment) {
  return RecipeReader(file, words, config_root, environment).read();
}

}  // namespace megalith
