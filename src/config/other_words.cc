// The words of other trainers; see other_words.h.
#include "config/other_words.h"

#include <map>

#include "core/error.h"
#include "core/strings.h"

namespace megalith {
namespace {

constexpr const char* kTrainer = "Hugging Face's Trainer";
constexpr const char* kConfigJson = "Hugging Face's config.json";
constexpr const char* kTorchtune = "torchtune";
constexpr const char* kTorchtitan = "torchtitan";
constexpr const char* kDeepSpeed = "DeepSpeed";
constexpr const char* kNanoGpt = "nanoGPT";
constexpr const char* kPeft = "PEFT";
constexpr const char* kTrl = "TRL";
constexpr const char* kFactory = "LLaMA-Factory and axolotl";
constexpr const char* kMegatron = "Megatron-LM and Primus";

constexpr OtherWordsRow kOtherWords[] = {
    {kMegatron, "seq_length", "encoder_seq_length"},
    {kMegatron, "num_distributed_optimizer_instances", "data_parallel_replicate_degree"},
    {kMegatron, "tokenizer_type", "patch_tokenizer_type"},
    {kMegatron, "recompute_method", "activations_checkpoint_method"},
    {kMegatron, "recompute_num_layers", "activations_checkpoint_num_layers"},

    {kTrainer, "lr", "learning_rate"},
    {kTrainer, "train_iters", "max_steps=-1"},
    {kTrainer, "micro_batch_size", "per_device_train_batch_size per_gpu_train_batch_size"},
    {kTrainer, "lr_warmup_iters", "warmup_steps=0"},
    {kTrainer, "lr_warmup_fraction", "warmup_ratio=0"},
    {kTrainer, "lr_decay_style", "lr_scheduler_type"},
    {kTrainer, "clip_grad", "max_grad_norm"},
    {kTrainer, "adam_eps", "adam_epsilon"},
    {kTrainer, "log_interval", "logging_steps"},
    {kTrainer, "tensorboard_dir", "logging_dir"},
    {kTrainer, "save_interval", "save_steps"},
    {kTrainer, "eval_interval", "eval_steps"},
    {kTrainer, "keep_last", "save_total_limit"},
    {kTrainer, "num_workers", "dataloader_num_workers"},
    {kTrainer, "load_hf", "model_name_or_path"},
    {kTrainer, "tokenizer_model", "tokenizer_name tokenizer_name_or_path"},
    {kTrainer, "seq_length", "max_seq_length cutoff_len"},
    {kTrainer, "deterministic_mode", "full_determinism"},
    {kTrainer, "no_save_optim", "save_only_model"},

    {kPeft, "lora.use_rslora", "use_rslora peft_use_rslora"},
    {kPeft, "lora.use_dora", "peft_use_dora"},
    {kTrl, "dpo_beta", "beta pref_beta"},
    {kTrl, "enable_packed_sequences", "packing dataset_packed"},

    {kFactory, "enable_packed_sequences", "sample_packing neat_packing"},
    {kFactory, "seq_length", "sequence_len"},
    {kFactory, "load_hf", "base_model"},
    {kFactory, "tokenizer_model", "tokenizer_config"},
    {kFactory, "lr_decay_style", "lr_scheduler"},
    {kFactory, "train_on_input", "train_on_inputs train_on_prompt"},
    {kFactory, "auto_continue_train", "auto_resume_from_checkpoints"},
    {kFactory, "wandb_exp_name", "wandb_name wandb_run_name"},

    {kConfigJson, "num_layers", "num_hidden_layers"},
    {kConfigJson, "ffn_hidden_size", "intermediate_size"},
    {kConfigJson, "kv_channels", "head_dim"},
    {kConfigJson, "norm_epsilon", "rms_norm_eps layer_norm_epsilon layer_norm_eps"},
    {kConfigJson, "rotary_base", "rope_theta"},
    {kConfigJson, "init_method_std", "initializer_range"},
    {kConfigJson, "num_experts", "num_local_experts n_routed_experts"},
    {kConfigJson, "moe_router_topk", "num_experts_per_tok"},
    {kConfigJson, "moe_ffn_hidden_size", "moe_intermediate_size"},

    {kTorchtune, "lr_warmup_iters", "num_warmup_steps"},
    {kTorchtune, "clip_grad", "clip_grad_norm=null"},
    {kTorchtune, "log_interval", "log_every_n_steps"},
    {kTorchtune, "seq_length", "max_seq_len"},
    {kTorchtune, "tokenizer_model", "tokenizer_path"},
    {kTorchtune, "load_hf", "checkpointer_checkpoint_dir"},
    {kTorchtune, "tensor_model_parallel_size", "tensor_parallel_dim"},

    {kTorchtitan, "fsdp_cpu_offload", "training_enable_cpu_offload enable_cpu_offload"},
    {kTorchtitan, "train_iters", "training_steps"},
    {kTorchtitan, "micro_batch_size", "training_local_batch_size local_batch_size"},
    {kTorchtitan, "seq_length", "training_seq_len seq_len"},
    {kTorchtitan, "clip_grad", "training_max_norm max_norm"},
    {kTorchtitan, "adam_beta1", "optimizer_beta1 beta1"},
    {kTorchtitan, "adam_beta2", "optimizer_beta2 beta2"},
    {kTorchtitan, "adam_eps", "optimizer_eps"},
    {kTorchtitan, "tensor_model_parallel_size", "tensor_parallel_degree tensor_parallel_size tp_size"},
    {kTorchtitan, "pipeline_model_parallel_size", "pipeline_parallel_degree pipeline_parallel_size pp_size"},
    {kTorchtitan, "context_parallel_size", "context_parallel_degree cp_size"},
    {kTorchtitan, "expert_model_parallel_size", "expert_parallel_degree expert_parallel_size ep_size"},
    {kTorchtitan, "expert_tensor_parallel_size", "expert_tensor_parallel_degree"},
    {kTorchtitan, "log_interval", "metrics_log_freq log_freq"},
    {kTorchtitan, "save_interval", "checkpoint_interval"},
    {kTorchtitan, "save", "checkpoint_folder"},

    {kDeepSpeed, "micro_batch_size", "train_micro_batch_size_per_gpu"},
    {kDeepSpeed, "global_batch_size", "train_batch_size"},
    {kDeepSpeed, "clip_grad", "gradient_clipping"},

    {kNanoGpt, "train_iters", "max_iters"},
    {kNanoGpt, "lr_warmup_iters", "warmup_iters"},
    {kNanoGpt, "clip_grad", "grad_clip"},
    {kNanoGpt, "seq_length", "block_size"},
    {kNanoGpt, "num_layers", "n_layer n_layers"},
    {kNanoGpt, "num_attention_heads", "n_head n_heads"},
    {kNanoGpt, "hidden_size", "n_embd d_model"},
};

using Words = std::map<std::string, OtherWord, std::less<>>;

Words build_words() {
  Words words;
  for (const OtherWordsRow& row : kOtherWords) {
    for (const std::string& entry : split_words(row.names)) {
      auto [name, neutral] = split_entry(entry);
      const bool is_new = words.emplace(name, OtherWord{row.program, row.option, std::move(neutral)}).second;
      MEGALITH_CHECK(is_new, "the word '{}' stands twice in the table", entry);
    }
  }
  return words;
}

}  // namespace

std::span<const OtherWordsRow> other_words_rows() { return kOtherWords; }

const OtherWord* find_other_word(std::string_view name) {
  static const Words words = build_words();
  const auto found = words.find(fold_name(name));
  return found == words.end() ? nullptr : &found->second;
}

std::pair<std::string, std::vector<std::string>> split_entry(const std::string& entry) {
  const size_t equals = entry.find('=');
  std::vector<std::string> neutral;
  for (size_t begin = equals; begin != std::string::npos && begin < entry.size();) {
    const size_t bar = entry.find('|', begin + 1);
    neutral.push_back(entry.substr(begin + 1, bar == std::string::npos ? bar : bar - begin - 1));
    begin = bar;
  }
  return {entry.substr(0, equals), std::move(neutral)};
}

}  // namespace megalith
