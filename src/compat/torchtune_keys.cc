// See torchtune_keys.h.
#include "compat/torchtune_keys.h"

#include <algorithm>

namespace megalith {
namespace {

using Recipe = RecipeKeyKind;

constexpr RecipeKey kRecipeKeys[] = {
    {"output_dir", Recipe::kRule},
    {"model._component_", Recipe::kRule},
    {"model.lora_attn_modules", Recipe::kRule},
    {"model.apply_lora_to_mlp", Recipe::kRule},
    {"model.apply_lora_to_output", Recipe::kRefused, "an adapter of the output layer", "false"},
    {"model.lora_rank", Recipe::kRule},
    {"model.lora_alpha", Recipe::kRule},
    {"model.lora_dropout", Recipe::kRule},
    {"model.use_dora", Recipe::kRule},
    {"model.quantize_base", Recipe::kRule},

    {"tokenizer._component_", Recipe::kRule},
    {"tokenizer.path", Recipe::kRule},
    {"tokenizer.merges_file", Recipe::kNoEffect},
    {"tokenizer.max_seq_len", Recipe::kRule},
    {"tokenizer.special_tokens_path", Recipe::kNoEffect},
    {"tokenizer.prompt_template", Recipe::kRefused,
     "words around each message, which the model's chat template has here"},
    {"tokenizer.truncation_type", Recipe::kRefused, "samples cut at their beginning", "right"},

    {"checkpointer._component_", Recipe::kRule},
    {"checkpointer.checkpoint_dir", Recipe::kRule},
    {"checkpointer.checkpoint_files", Recipe::kNoEffect},
    {"checkpointer.checkpoint_files.*", Recipe::kNoEffect},
    {"checkpointer.adapter_checkpoint", Recipe::kRule},
    {"checkpointer.recipe_checkpoint", Recipe::kNoEffect},
    {"checkpointer.output_dir", Recipe::kRule},
    {"checkpointer.model_type", Recipe::kNoEffect},
    {"checkpointer.safe_serialization", Recipe::kNoEffect, "", "true"},
    {"checkpointer.enable_dcp", Recipe::kNoEffect},
    {"checkpointer.keep_last_n_checkpoints", Recipe::kOption, "keep_last"},
    {"resume_from_checkpoint", Recipe::kRule},
    {"save_adapter_weights_only", Recipe::kRule},
    {"save_every_n_steps", Recipe::kRule},
    {"enable_async_checkpointing", Recipe::kOption, "async_save"},

    {"dataset._component_", Recipe::kRule},
    {"dataset.source", Recipe::kRule},
    {"dataset.name", Recipe::kRule},
    {"dataset.subset", Recipe::kRule},
    {"dataset.split", Recipe::kRule},
    {"dataset.packed", Recipe::kRule},
    {"dataset.column", Recipe::kRule},
    {"dataset.data_files", Recipe::kRule},
    {"dataset.data_dir", Recipe::kRule},
    {"dataset.train_on_input", Recipe::kRule},
    {"dataset.conversation_column", Recipe::kRule},
    {"dataset.conversation_style", Recipe::kRule},
    {"dataset.split_across_pack", Recipe::kRefused, "packs that end with a whole text", "true"},
    {"dataset.add_eos", Recipe::kRefused, "texts without their end", "true"},
    {"dataset.column_map", Recipe::kRefused, "other names of columns: rename them in the rows"},
    {"dataset.new_system_prompt", Recipe::kRefused, "a system message for all rows: write it into them"},
    {"dataset.filter_fn", Recipe::kRefused, "a function of Python's"},
    {"dataset_val._component_", Recipe::kRule},
    {"dataset_val.source", Recipe::kRule},
    {"dataset_val.split", Recipe::kRule},
    {"dataset_val.data_files", Recipe::kRule},
    {"dataset_val.*", Recipe::kNoEffect},
    {"run_val_every_n_steps", Recipe::kRule},
    {"batch_size_val", Recipe::kNoEffect},
    {"collate_fn", Recipe::kNoEffect},
    {"seed", Recipe::kOption, "seed"},
    {"shuffle", Recipe::kRule},

    {"optimizer._component_", Recipe::kRule},
    {"optimizer.lr", Recipe::kRule},
    {"optimizer.weight_decay", Recipe::kRule},
    {"optimizer.betas", Recipe::kRule},
    {"optimizer.eps", Recipe::kRule},
    {"optimizer.momentum", Recipe::kRule},
    {"optimizer.fused", Recipe::kNoEffect},
    {"optimizer.foreach", Recipe::kNoEffect},
    {"optimizer.amsgrad", Recipe::kRefused, "AMSGrad", "false"},
    {"optimizer.nesterov", Recipe::kRefused, "Nesterov's momentum", "false"},
    {"optimizer.dampening", Recipe::kRefused, "damped momentum", "0"},
    {"optimizer_in_bwd", Recipe::kNoEffect, "", "false"},
    {"lr_scheduler._component_", Recipe::kRule},
    {"lr_scheduler.num_warmup_steps", Recipe::kRule},
    {"lr_scheduler.num_cycles", Recipe::kRefused, "a cosine of several cycles", "0.5"},
    {"loss._component_", Recipe::kRule},
    {"loss.num_output_chunks", Recipe::kNoEffect},
    {"loss.ignore_index", Recipe::kNoEffect},
    {"loss.mask_ignored_tokens", Recipe::kNoEffect},

    {"epochs", Recipe::kRule},
    {"max_steps_per_epoch", Recipe::kRule},
    {"batch_size", Recipe::kOption, "micro_batch_size"},
    {"gradient_accumulation_steps", Recipe::kOption, "gradient_accumulation_steps"},
    {"clip_grad_norm", Recipe::kRule},
    {"compile", Recipe::kNoEffect, "", "false"},

    {"metric_logger._component_", Recipe::kRule},
    {"metric_logger.log_dir", Recipe::kRule},
    {"metric_logger.filename", Recipe::kRule},
    {"metric_logger.output_fmt", Recipe::kRefused, "a log of JSON lines, which --metrics_file writes", "txt"},
    {"metric_logger.project", Recipe::kRule},
    {"metric_logger.entity", Recipe::kRule},
    {"metric_logger.experiment_name", Recipe::kRule},
    {"metric_logger.*", Recipe::kNoEffect},
    {"log_every_n_steps", Recipe::kOption, "log_interval"},
    {"log_peak_memory_stats", Recipe::kNoEffect, "", "true"},
    {"log_level", Recipe::kNoEffect, "", "info"},

    {"device", Recipe::kRule},
    {"dtype", Recipe::kRule},
    {"enable_activation_checkpointing", Recipe::kRule},
    {"enable_activation_offloading", Recipe::kRule},
    {"ac_mode", Recipe::kRule},
    {"ac_option", Recipe::kRule},
    {"fsdp_cpu_offload", Recipe::kRule},
    {"fsdp.cpu_offload", Recipe::kRule},
    {"fsdp_reshard_after_forward", Recipe::kRule},
    {"custom_sharded_layers", Recipe::kNoEffect},
    {"tensor_parallel_dim", Recipe::kOption, "tensor_model_parallel_size"},
    {"tensor_parallel_plan.*", Recipe::kNoEffect},
    {"context_parallel_dim", Recipe::kOption, "context_parallel_size"},
    {"data_parallel_shard_dim", Recipe::kRule},
    {"data_parallel_replicate_dim", Recipe::kRule},
    {"cudnn_deterministic_mode", Recipe::kNoEffect},
    {"low_cpu_ram", Recipe::kNoEffect, "", "false"},
    {"enable_fp8_training", Recipe::kRule},
    {"fp8_recipe_name", Recipe::kRule},
    {"resize_token_embeddings", Recipe::kRefused, "rows added to the embedding", "false"},

    {"profiler._component_", Recipe::kRule},
    {"profiler.enabled", Recipe::kRule},
    {"profiler.output_dir", Recipe::kRule},
    {"profiler.wait_steps", Recipe::kRule},
    {"profiler.warmup_steps", Recipe::kRule},
    {"profiler.active_steps", Recipe::kRule},
    {"profiler.*", Recipe::kNoEffect},

    {"quantizer.*", Recipe::kRefused, "quantisation-aware training"},
    {"teacher_model.*", Recipe::kRefused, "distillation from another model"},
    {"teacher_checkpointer.*", Recipe::kRefused, "distillation from another model"},
    {"kd_loss.*", Recipe::kRefused, "distillation from another model"},
    {"kd_ratio", Recipe::kRefused, "distillation from another model"},
};

bool is_below(std::string_view name, std::string_view section) {
  return name.size() > section.size() && name.starts_with(section) && name[section.size()] == '.';
}

}  // namespace

const RecipeKey* find_recipe_key(std::string_view name) {
  for (const RecipeKey& key : kRecipeKeys) {
    if (key.name == name) return &key;
  }
  for (const RecipeKey& key : kRecipeKeys) {
    if (key.name.ends_with(".*") && is_below(name, key.name.substr(0, key.name.size() - 2))) return &key;
  }
  return nullptr;
}

std::vector<std::string> recipe_key_names() {
  std::vector<std::string> names;
  for (const RecipeKey& key : kRecipeKeys) {
    if (!key.name.ends_with(".*")) names.emplace_back(key.name);
  }
  return names;
}

bool is_recipe_section(std::string_view name) {
  return std::any_of(std::begin(kRecipeKeys), std::end(kRecipeKeys),
                     [&](const RecipeKey& key) { return is_below(key.name, name); });
}

}  // namespace megalith
