// See torchtitan_keys.h.
#include "compat/torchtitan_keys.h"

#include <span>

namespace megalith {
namespace {

std::span<const JobKey> job_keys() {
  using enum JobKeyKind;
  static constexpr JobKey kKeys[] = {
      {"job.config_file", kNoCounterpart, "", ""},
      {"job.dump_folder", kRule, "./outputs", ""},
      {"job.description", kNoCounterpart, "", ""},
      {"job.print_config", kNoCounterpart, "false", ""},
      {"job.use_for_integration_test", kNoCounterpart, "false", ""},
      {"job.custom_config_module", kRefused, "", "a Python module with more keys"},
      {"experimental.*", kRefused, "", "Python modules that are imported"},

      {"profiling.enable_profiling", kRule, "false", ""},
      {"profiling.save_traces_folder", kRule, "profile_traces", ""},
      {"profiling.profile_freq", kRule, "10", ""},
      {"profiling.profiler_active", kRule, "1", ""},
      {"profiling.profiler_warmup", kNoCounterpart, "3", ""},
      {"profiling.enable_memory_snapshot", kNoCounterpart, "false", ""},
      {"profiling.save_memory_snapshot_folder", kNoCounterpart, "memory_snapshot", ""},

      {"metrics.log_freq", kOption, "10", "log_interval"},
      {"metrics.enable_tensorboard", kRule, "false", ""},
      {"metrics.save_tb_folder", kRule, "tb", ""},
      {"metrics.enable_wandb", kRule, "false", ""},
      {"metrics.disable_color_printing", kNoCounterpart, "false", ""},
      {"metrics.save_for_all_ranks", kNoCounterpart, "false", ""},

      {"model.name", kRule, "llama3", ""},
      {"model.flavor", kRule, "debugmodel", ""},
      {"model.hf_assets_path", kRule, "", ""},
      {"model.tokenizer_path", kRule, "", ""},
      {"model.converters", kRule, "", ""},
      {"model.print_after_conversion", kNoCounterpart, "false", ""},

      {"optimizer.name", kRule, "AdamW", ""},
      {"optimizer.lr", kOption, "8e-4", "lr"},
      {"optimizer.beta1", kOption, "0.9", "adam_beta1"},
      {"optimizer.beta2", kOption, "0.95", "adam_beta2"},
      {"optimizer.eps", kOption, "1e-8", "adam_eps"},
      {"optimizer.weight_decay", kOption, "0.1", "weight_decay"},
      {"optimizer.implementation", kNoCounterpart, "fused", ""},
      {"optimizer.early_step_in_backward", kNoCounterpart, "false", ""},

      {"lr_scheduler.warmup_steps", kRule, "200", ""},
      {"lr_scheduler.total_steps", kRule, "", ""},
      {"lr_scheduler.decay_ratio", kRule, "", ""},
      {"lr_scheduler.decay_type", kRule, "linear", ""},
      {"lr_scheduler.min_lr_factor", kRule, "0", ""},

      {"training.dataset", kNoCounterpart, "c4_test", ""},
      {"training.dataset_path", kRule, "", ""},
      {"training.local_batch_size", kRule, "8", ""},
      {"training.batch_size", kRule, "", ""},
      {"training.global_batch_size", kRule, "-1", ""},
      {"training.seq_len", kOption, "2048", "seq_length"},
      {"training.max_norm", kOption, "1.0", "clip_grad"},
      {"training.steps", kOption, "10000", "train_iters"},
      {"training.dtype", kRefused, "float32", "weights and moments that are not fp32; see --main_params_dtype"},
      {"training.mixed_precision_param", kRule, "bfloat16", ""},
      {"training.mixed_precision_reduce", kRule, "float32", ""},
      {"training.enable_cpu_offload", kRule, "false", ""},
      {"training.compile", kNoCounterpart, "false", ""},
      {"training.gc_freq", kNoCounterpart, "50", ""},
      {"training.gc_debug", kNoCounterpart, "false", ""},
      {"training.seed", kRule, "", ""},
      {"training.deterministic", kRule, "", ""},

      {"parallelism.data_parallel_replicate_degree", kRule, "1", ""},
      {"parallelism.data_parallel_shard_degree", kRule, "-1", ""},
      {"parallelism.fsdp_reshard_after_forward", kRule, "default", ""},
      {"parallelism.tensor_parallel_degree", kRule, "1", ""},
      {"parallelism.disable_loss_parallel", kNoCounterpart, "false", ""},
      {"parallelism.enable_async_tensor_parallel", kNoCounterpart, "false", ""},
      {"parallelism.enable_compiled_autograd", kNoCounterpart, "false", ""},
      {"parallelism.pipeline_parallel_degree", kRule, "1", ""},
      {"parallelism.pipeline_parallel_schedule", kRule, "1F1B", ""},
      {"parallelism.pipeline_parallel_schedule_csv", kRefused, "", "a schedule written as a table; see --pp_algorithm"},
      {"parallelism.pipeline_parallel_microbatch_size", kRule, "1", ""},
      {"parallelism.pipeline_parallel_split_points", kRefused, "", "chosen cuts; see --pipeline_model_parallel_layout"},
      {"parallelism.module_fqns_per_model_part", kRefused, "", "chosen cuts; see --pipeline_model_parallel_layout"},
      {"parallelism.pipeline_parallel_layers_per_stage", kRefused, "",
       "virtual stages; see --num_layers_per_virtual_pipeline_stage"},
      {"parallelism.pipeline_parallel_first_stage_less_layers", kNoCounterpart, "1", ""},
      {"parallelism.pipeline_parallel_last_stage_less_layers", kNoCounterpart, "1", ""},
      {"parallelism.context_parallel_degree", kOption, "1", "context_parallel_size"},
      {"parallelism.context_parallel_load_balancer", kNoCounterpart, "headtail", ""},
      {"parallelism.context_parallel_rotate_method", kRule, "allgather", ""},
      {"parallelism.expert_parallel_degree", kRefused, "1", "experts, which Llama 3 does not have"},
      {"parallelism.expert_tensor_parallel_degree", kRefused, "1", "experts, which Llama 3 does not have"},
      {"parallelism.expert_parallel_comm_backend", kNoCounterpart, "standard", ""},

      {"checkpoint.enable", kRule, "false", ""},
      {"checkpoint.enable_checkpoint", kRule, "", ""},
      {"checkpoint.folder", kRule, "checkpoint", ""},
      {"checkpoint.interval", kRule, "500", ""},
      {"checkpoint.keep_latest_k", kRule, "10", ""},
      {"checkpoint.async_mode", kRule, "disabled", ""},
      {"checkpoint.initial_load_path", kRule, "", ""},
      {"checkpoint.initial_load_in_hf", kRule, "false", ""},
      {"checkpoint.initial_load_model_only", kNoCounterpart, "true", ""},
      {"checkpoint.last_save_in_hf", kRule, "false", ""},
      {"checkpoint.last_save_model_only", kNoCounterpart, "true", ""},
      {"checkpoint.model_weights_only", kNoCounterpart, "false", ""},
      {"checkpoint.export_dtype", kNoCounterpart, "float32", ""},
      {"checkpoint.load_step", kRefused, "-1", "resuming from a chosen step; see --load"},
      {"checkpoint.exclude_from_loading", kRefused, "", "loading only a part of a checkpoint"},
      {"checkpoint.enable_first_step_checkpoint", kNoCounterpart, "false", ""},
      {"checkpoint.create_seed_checkpoint", kNoCounterpart, "false", ""},
      {"checkpoint.load_only", kRefused, "false", "resuming without saving; see --load"},

      {"activation_checkpoint.mode", kRule, "selective", ""},
      {"activation_checkpoint.selective_ac_option", kRule, "2", ""},
      {"activation_checkpoint.*", kNoCounterpart, "", ""},
      {"compile.*", kNoCounterpart, "", ""},

      {"quantize.linear.float8.recipe_name", kRule, "tensorwise", ""},
      {"float8.recipe_name", kRule, "", ""},
      {"quantize.linear.float8.*", kNoCounterpart, "", ""},
      {"float8.*", kNoCounterpart, "", ""},
      {"quantize.*", kNoCounterpart, "", ""},  // model.converters says what of it acts

      {"comm.train_timeout_seconds", kRule, "", ""},
      {"comm.mode", kRefused, "default", "a run without communication"},
      {"comm.*", kNoCounterpart, "", ""},
      {"memory_estimation.enabled", kRefused, "false", "only an estimate; --dry_run prints one"},
      {"memory_estimation.*", kNoCounterpart, "", ""},
      {"fault_tolerance.enable", kRefused, "false", "TorchFT's replicas"},
      {"fault_tolerance.*", kNoCounterpart, "", ""},

      {"validation.enable", kRule, "false", ""},
      {"validation.freq", kRule, "10", ""},
      {"validation.steps", kRule, "-1", ""},
      {"validation.dataset_path", kRule, "", ""},
      {"validation.*", kNoCounterpart, "", ""},

      {"debug.seed", kRule, "", ""},
      {"debug.deterministic", kRule, "false", ""},
      {"debug.deterministic_warn_only", kNoCounterpart, "false", ""},
      {"debug.moe_force_load_balance", kNoCounterpart, "false", ""},
  };
  return kKeys;
}

bool is_named(const JobKey& key, std::string_view name) {
  if (!key.name.ends_with(".*")) return key.name == name;
  return name.starts_with(key.name.substr(0, key.name.size() - 1));
}

}  // namespace

const JobKey* find_job_key(std::string_view name) {
  for (const JobKey& key : job_keys()) {
    if (is_named(key, name)) return &key;
  }
  return nullptr;
}

std::vector<std::string> job_key_names() {
  std::vector<std::string> names;
  for (const JobKey& key : job_keys()) names.emplace_back(key.name);
  return names;
}

}  // namespace megalith
