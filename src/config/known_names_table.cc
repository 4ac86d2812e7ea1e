// Known names that are no options here, in groups that share a reason; see known_names.h.
//
// Upstream's presets list every argument with its default, so a name belongs here even when hardly anybody sets it.
// An option that only refines a refused feature has the kind kNoEffect: one error for the feature says more than
// twenty for its details. A name that changes results, what decides whether a run fits into memory, or whether it runs,
// is never without effect: it is an option, or it is refused.
#include "config/known_names_table.h"

namespace megalith {
namespace {

using Kind = KnownName::Kind;
constexpr bool kSwitch = true, kValue = false;

constexpr KnownNamesRow kRows[] = {
    // ---- The Python stack's performance switches ----
    {Kind::kNoEffect, kSwitch, "operators are always fused",
     "use_flash_attn masked_softmax_fusion bias_swiglu_fusion bias_dropout_fusion rope_fusion "
     "apply_rope_fusion persist_layer_norm no_persist_layer_norm cross_entropy_loss_fusion fused_single_qkv_rope "
     "fused_padded_mla_attention use_te_activation_func use_transformer_engine_op_fuser flash_decode "
     "gradient_accumulation_fusion enable_fused_linear_ce compile use_liger_kernel use_fused_weighted_squared_relu"},
    {Kind::kNoEffect, kValue, "operators are always fused", "cross_entropy_fusion_impl attn_implementation"},
    {Kind::kNoEffect, kSwitch, "softmax is always computed in fp32", "attention_softmax_in_fp32"},
    {Kind::kNoEffect, kSwitch, "there is one implementation, with neither Transformer Engine nor Apex",
     "use_mcore_models deprecated_use_mcore_models use_legacy_models te_rng_tracker inference_rng_tracker "
     "disable_compile_dependencies enable_experimental disable_primus_topk_router use_deprecated_20241209_moe_layer "
     "lazy_mpu_init test_mode patch_moe_overlap parallel_output"},
    {Kind::kNoEffect, kValue, "there is one implementation, with neither Transformer Engine nor Apex",
     "transformer_impl onnx_safe DDP_impl data_impl"},
    {Kind::kNoEffect, kSwitch, "no Python runs here", "manual_gc manual_gc_eval"},
    {Kind::kNoEffect, kValue, "no Python runs here",
     "manual_gc_interval multiprocessing_context dataloader_mp_context torch_compile.* TOKENIZERS_PARALLELISM"},
    {Kind::kNoEffect, kValue, "the indices are built by as many threads as there are processors",
     "num_dataset_builder_threads"},
    {Kind::kNoEffect, kSwitch, "masks are described, never stored", "create_attention_mask_in_dataloader"},
    {Kind::kNoEffect, kSwitch, "data files are always memory-mapped", "mmap_bin_files mmap_warmup"},
    {Kind::kNoEffect, kValue, "memory is planned, not collected", "empty_unused_memory_level"},
    {Kind::kNoEffect, kSwitch, "the first iteration is made like every other, and its time stands for itself",
     "attn_warmup"},
    {Kind::kNoEffect, kSwitch, "Primus-Turbo's kernels are not used; operators are our own", "enable_primus_turbo"},
    {Kind::kNoEffect, kValue, "Primus-Turbo's kernels are not used; operators are our own",
     "turbo_* use_turbo_* enable_turbo_* sink_window_even_layers_only"},
    {Kind::kUnsupported, kSwitch, "attention in eight bits", "enable_turbo_attention_float8=false"},
    {Kind::kNoEffect, kSwitch, "the loss is always normalised by the tokens of the whole global batch",
     "calculate_per_token_loss"},
    {Kind::kNoEffect, kSwitch, "gradients are always accumulated in fp32", "accumulate_allreduce_grads_in_fp32"},
    {Kind::kNoEffect, kSwitch, "weights are drawn by name and position, alike on every device",
     "use_cpu_initialization"},
    {Kind::kNoEffect, kSwitch, "position_embedding_type decides", "add_position_embedding position_embedding"},

    // ---- Communication and sharding ----
    {Kind::kNoEffect, kValue, "the device decides: Gloo on the CPU, NCCL or RCCL on a GPU",
     "distributed_backend pipeline_model_parallel_comm_backend tp_comm_bootstrap_backend nccl_communicator_config_path "
     "high_priority_stream_groups sharp_enabled_group suggested_communication_unit_size symmetric_ar_type"},
    {Kind::kNoEffect, kSwitch, "the device decides: Gloo on the CPU, NCCL or RCCL on a GPU",
     "enable_gloo_process_groups disable_gloo_process_groups use_sharp use_ring_exchange_p2p use_nccl_ub"},
    {Kind::kNoEffect, kValue, "the launcher's environment says it", "local_rank"},
    {Kind::kNoEffect, kSwitch,
     "gradients are summed: the loss is divided by the tokens of the whole global batch first",
     "ddp_average_in_collective gradient_reduce_div_fusion"},
    {Kind::kNoEffect, kSwitch, "it changes how transfers overlap, not results or what a rank holds",
     "overlap_param_gather_with_optimizer_step overlap_p2p_comm overlap_p2p_communication "
     "align_grad_reduce align_param_gather scatter_gather_tensors_in_pipeline clone_scatter_output_in_embedding "
     "async_tensor_model_parallel_allreduce defer_embedding_wgrad_compute delay_wgrad_compute "
     "tp_comm_overlap barrier_with_L1_time barrier_with_level_1_timing combined_1f1b "
     "overlap_moe_expert_parallel_comm overlap_p2p_communication_warmup_flush "
     "disable_tp_comm_bulk_dgrad disable_tp_comm_bulk_wgrad disable_tp_comm_overlap_ag disable_tp_comm_overlap_rs "
     "disable_tp_comm_split_ag disable_tp_comm_split_rs"},
    {Kind::kNoEffect, kValue, "it changes how transfers overlap, not results or what a rank holds",
     "wgrad_deferral_limit tp_comm_overlap_cfg tp_comm_overlap_ag tp_comm_overlap_rs tp_comm_overlap_rs_dgrad "
     "tp_comm_split_ag tp_comm_split_rs tp_comm_bulk_wgrad tp_comm_bulk_dgrad "
     "train_sync_interval combined_1f1b_recipe enable_odc enable_odc_* odc_*"},
    {Kind::kNoEffect, kSwitch, "weights are drawn by name and position, alike on every rank",
     "data_parallel_random_init init_model_with_meta_device"},
    {Kind::kNoEffect, kValue, "read only with replication", "replication_jump replication_factor"},
    {Kind::kNoEffect, kSwitch, "a parameter and a gradient belong to one buffer each, which nobody registers or copies",
     "fsdp_double_buffer use_contiguous_parameters_in_local_ddp contiguous_buffers_in_local_ddp"},
    {Kind::kUnsupported, kSwitch,
     "sharding over the replicas as well (use_torch_fsdp2 without replicas shards over all data-parallel ranks)",
     "enable_full_sharding_in_hsdp=false"},
    {Kind::kUnsupported, kSwitch,
     "an embedding on a stage of its own (pipeline_model_parallel_layout says it: E|t*4|…)",
     "standalone_embedding_stage=false"},
    {Kind::kUnsupported, kValue, "lists of layers by stage (pipeline_model_parallel_layout says it)",
     "decoder_pipeline_manual_split_list=null"},
    {Kind::kNoEffect, kValue, "pp_algorithm decides, and plans the order of work without being timed",
     "communication_method zero_bubble_pipeline_timers_* pp_cost_* interleave_group_size"},
    {Kind::kUnsupported, kValue,
     "a pipeline schedule by that limit of memory (pp_algorithm decides what a rank holds, 'megalith plan' prints it)",
     "zero_bubble_v_schedule_mem_setup=half|zb zero_bubble_max_pending_backward=auto "
     "zero_bubble_adaptive_memory_limit_percentile=85 pp_max_mem=null"},
    {Kind::kNoEffect, kSwitch, "pp_algorithm decides, and plans the order of work without being timed",
     "pp_warmup enable_zb_runtime enable_exactly_numeric_match enable_optimizer_post_validation "
     "debug_scheduler_table pre_communication_optimization auto_offload_time"},
    {Kind::kNoEffect, kSwitch, "true leaves the pipeline's schedule to the options beside it; false takes them back",
     "patch_primus_pipeline patch_zero_bubble"},
    {Kind::kUnsupported, kSwitch, "that schedule by this word (pp_algorithm zbv-formatted has it)",
     "enable_1f1b_v=false"},
    {Kind::kUnsupported, kValue, "sequences that are cut for the pipeline (context_parallel_size cuts them over ranks)",
     "num_seq_splits=1|0"},
    {Kind::kUnsupported, kSwitch,
     "offloading of a pipeline's activations (recompute_granularity, and cpu_offloading_num_layers beside it, save "
     "memory)",
     "offload=false cpu_offload=false"},
    {Kind::kNoEffect, kValue, "read only with offload", "offload_*"},
    {Kind::kUnsupported, kSwitch, "replicated local checkpoints", "replication=false"},

    // ---- Memory for time: the same results, and yet a run may need it to fit ----
    {Kind::kUnsupported, kSwitch,
     "kept activations that are spread over tensor-parallel ranks (sequence_parallel does)",
     "distribute_saved_activations=false"},
    {Kind::kRemoved, kSwitch, "write recompute_granularity selective and recompute_modules moe",
     "moe_layer_recompute=false"},
    {Kind::kNoEffect, kSwitch,
     "optimizer_cpu_offload updates with our own kernels; what travels is pinned, and nothing else is",
     "use_torch_optimizer_for_cpu_offload pin_cpu_grads pin_cpu_params"},
    {Kind::kUnsupported, kSwitch, "products that round partial sums otherwise (deterministic_mode fixes their order)",
     "disable_bf16_reduced_precision_matmul=false"},

    // ---- Precision ----
    {Kind::kUnsupported, kValue, "FP8 by that word (fp8_format has it)", "fp8_e4m3=false fp8_hybrid=false"},
    {Kind::kUnsupported, kSwitch, "FP8 scales of each rank apart", "fp8_reduce_amax=true"},
    {Kind::kUnsupported, kValue, "FP4 training", "fp4=null fp4_format=null"},
    {Kind::kUnsupported, kValue, "a file of precisions", "te_precision_config_file=null"},
    {Kind::kNoEffect, kValue, "delayed scales are found anew after every microbatch, as Megatron-LM does",
     "fp8_interval"},
    {Kind::kNoEffect, kValue, "read only with fp4", "fp4_recipe mxfp4_scale_rounding_mode"},
    {Kind::kNoEffect, kSwitch, "read only with fp4", "fp4_param fp4_param_gather mxfp4_gradient_stochastic_rounding"},
    {Kind::kNoEffect, kSwitch,
     "weights are held in the model's precision, and their eight-bit copies are those of a step",
     "fp8_param_gather fp8_param keep_fp8_weight_transpose_cache_te "
     "keep_fp8_transpose_cache_when_using_custom_fsdp keep_fp8_transpose_cache moe_router_padding_for_fp8 "
     "moe_router_padding_for_quantization reuse_grad_buf_for_mxfp8_param_ag disable_delayed_scaling_patches"},
    {Kind::kUnsupported, kValue, "precisions from a file or a number of Kitchen's (fp8_format and fp8_recipe say them)",
     "kitchen_config_file=null kitchen_recipe_number=null"},
    {Kind::kUnsupported, kSwitch, "a cross entropy in fp16", "fp16_lm_cross_entropy=false"},
    {Kind::kUnsupported, kValue, "gradient buffers in that dtype (gradients are summed in fp32)",
     "main_grads_dtype=fp32"},
    {Kind::kUnsupported, kValue, "masters in that dtype (master_weights has smaller ones)", "main_params_dtype=fp32"},

    // ---- Architecture ----
    {Kind::kUnsupported, kValue, "ROCm's earlier mixture of experts (num_experts has it)", "use_rocmoe=false"},
    {Kind::kNoEffect, kValue, "experts are always grouped, and tokens travel by the group's own collectives",
     "moe_deepep_num_sms moe_hybridep_num_sms moe_flex_dispatcher_backend"},
    {Kind::kNoEffect, kSwitch, "experts are always grouped, and tokens travel by the group's own collectives",
     "moe_enable_deepep moe_grouped_gemm moe_use_legacy_grouped_gemm moe_permute_fusion moe_enable_mori "
     "moe_use_fused_router_with_aux_score moe_router_fusion moe_lbl_in_fp32 moe_extended_tp"},
    {Kind::kUnsupported, kSwitch,
     "Megatron-LM's first Switch layer (num_experts with moe_router_topk 1 is the later one)",
     "moe_use_megatron_switch=false"},
    {Kind::kNoEffect, kSwitch, "the loads of all layers are always recorded", "moe_per_layer_logging"},
    {Kind::kNoEffect, kSwitch, "num_shared_experts decides", "enable_shared_expert"},
    {Kind::kUnsupported, kSwitch, "upcycling of a dense model", "moe_use_upcycling=false"},
    {Kind::kNoEffect, kValue, "read only with moe_use_upcycling", "moe_upcycling_granularity"},
    {Kind::kUnsupported, kSwitch, "this form of experts", "moe_shared_expert_gate=false moe_token_dropping=false"},
    {Kind::kUnsupported, kValue, "this form of experts", "moe_latent_size=null moe_router_topk_limited_devices=null"},
    {Kind::kUnsupported, kSwitch, "experts over all data-parallel ranks (set expert_model_parallel_size)",
     "moe_expert_model_parallelism=false"},
    {Kind::kUnsupported, kValue, "soft-capping of a router's logits", "router_logit_softcapping=0"},
    {Kind::kUnsupported, kValue, "another kind of attention",
     "experimental_attention_variant=null attention_output_gate=false"},
    {Kind::kNoEffect, kValue, "read only with experimental_attention_variant", "linear_*"},
    {Kind::kNoEffect, kValue, "forced balance sends tokens to experts in turn", "moe_router_force_load_balancing_type"},
    {Kind::kUnsupported, kValue, "an activation by that word (swiglu, squared_relu and openai_gelu choose it)",
     "activation_func=null"},
    {Kind::kUnsupported, kSwitch, "this form of normalisation", "apply_residual_connection_post_layernorm=false"},
    {Kind::kNoEffect, kSwitch, "it divides and multiplies scores by the same number: softmax is always in fp32",
     "apply_query_key_layer_scaling query_key_layer_scaling"},
    {Kind::kUnsupported, kSwitch, "a residual stream in fp32", "fp32_residual_connection=false"},
    {Kind::kUnsupported, kValue, "this attention sink",
     "attention_sink_k=0 use_sink_attention=false sink_sliding_window=0"},
    {Kind::kUnsupported, kValue, "this initialisation",
     "init_method_xavier_uniform=false perform_initialization=true initialization=true"},
    {Kind::kUnsupported, kValue, "layers that differ in kind",
     "spec=null heterogeneous_layers_config_path=null heterogeneous_layers_config_encoded_json=null "
     "hybrid_attention_ratio=0 hybrid_mlp_ratio=0 hybrid_override_pattern=null lfm_layer_types=null"},
    {Kind::kUnsupported, kValue, "this kind of model", "is_hybrid_model=false"},
    {Kind::kNoEffect, kValue, "read only by hybrid models", "conv_L_cache conv_bias mamba_*"},
    {Kind::kNoEffect, kSwitch, "read only by hybrid models", "disable_mamba_mem_eff_path"},
    {Kind::kNoEffect, kValue, "read only by position_embedding_type mrope, which no model here has", "mrope_section"},
    {Kind::kNoEffect, kValue, "read only by BERT, T5 and retrieval models of other kinds",
     "mask_type mask_factor sample_rate evidence_data_path retriever_seq_length output_bert_embeddings "
     "bert_embedder_type"},
    {Kind::kUnsupported, kSwitch, "vision models", "vision_pretraining=false"},
    {Kind::kNoEffect, kValue, "read only by vision models",
     "vision_pretraining_type vision_backbone_type swin_backbone_type num_classes img_h img_w num_channels patch_dim "
     "classes_fraction data_per_class_fraction iter_per_epoch dino_*"},
    {Kind::kUnsupported, kSwitch, "retrieval-enhanced models", "retro_add_retriever=false"},
    {Kind::kNoEffect, kValue, "read only by retrieval-enhanced models", "retro_*"},
    {Kind::kUnsupported, kSwitch, "reinforcement learning", "perform_rl_step=false"},
    {Kind::kNoEffect, kValue, "read only by reinforcement learning", "rl_* grpo_* langrl_*"},

    // ---- Batch, schedule, optimizer ----
    {Kind::kUnsupported, kValue,
     "an update of each rank's slice by itself (with optimizer muon on tensor-parallel ranks): Muon's is the whole "
     "matrix's, the same on every layout",
     "muon_tp_mode=duplicated|distributed"},
    {Kind::kUnsupported, kValue, "another optimizer than AdamW beside Muon", "muon_scalar_optimizer=adam"},
    {Kind::kNoEffect, kSwitch, "LibTorch chooses the kernel of the products", "muon_use_syrk"},
    {Kind::kNoEffect, kValue, "read only by other optimizers", "lion_beta1 lion_beta2 adaptive_muon_* soap_*"},
    {Kind::kUnsupported, kValue, "a learning rate of its own for some weights",
     "head_lr_mult=1 decoupled_lr=null decoupled_min_lr=null"},
    {Kind::kNoEffect, kSwitch, "what the command line and the files say wins over the checkpoint, and is printed",
     "override_opt_param_scheduler"},
    {Kind::kUnsupported, kSwitch,
     "the checkpoint's learning-rate curve over the one that is given (lr, min_lr and lr_decay_style decide)",
     "use_checkpoint_opt_param_scheduler=false"},
    {Kind::kNoEffect, kSwitch, "SIGTERM and SIGINT always end a run at the next step, after a checkpoint",
     "exit_signal_handler"},
    {Kind::kUnsupported, kValue, "skipping iterations", "iterations_to_skip=null"},
    {Kind::kUnsupported, kSwitch, "damping of oscillating weights", "weight_deosc=false"},
    {Kind::kNoEffect, kValue, "read only with weight_deosc", "weight_deosc_*"},
    {Kind::kUnsupported, kSwitch, "Megatron's tokenizers for instructions (sft_data_path names instructions)",
     "sft=false"},
    {Kind::kNoEffect, kValue, "the model's own chat template says how a conversation is written",
     "sft_tokenizer_prompt_format sft_bridge_*"},
    {Kind::kNoEffect, kValue, "read only by tools that filter instructions", "lb_mini_*"},
    {Kind::kUnsupported, kSwitch,
     "updates by a gradient whose NaNs were set to zero (no_check_for_nan_in_loss_and_grad skips such steps)",
     "sft_sanitize_nan_grads=false"},
    {Kind::kUnsupported, kSwitch, "weight decay of the norms of queries and keys (norms have none)",
     "apply_wd_to_qk_layernorm=false"},

    // ---- Data ----
    {Kind::kNoEffect, kValue, "documents keep their order, and all workers share one queue",
     "partitions chunk_size workers_to_check dataset_impl"},
    {Kind::kNoEffect, kSwitch, "documents keep their order, and all workers share one queue",
     "keep_sequential_samples find_optimal_num_workers"},
    {Kind::kUnsupported, kValue, "sentences of another language: the rule is one for all (docs/data.md)",
     "lang=english"},
    {Kind::kUnsupported, kValue, "several or complete validation sets",
     "full_validation=false multiple_validation_sets=false"},
    {Kind::kNoEffect, kSwitch, "tokenizer files hold no code, and there is one reader",
     "trust_remote_code legacy_tokenizer"},
    {Kind::kNoEffect, kValue, "mock_data has one form", "mock_dataset.*"},
    {Kind::kNoEffect, kValue, "samples are never padded", "max_padding_length"},
    {Kind::kNoEffect, kValue, "data is read from files", "object_storage_cache_path s3_cache_path"},
    {Kind::kNoEffect, kSwitch, "data is read from files", "disable_msc"},
    {Kind::kNoEffect, kValue, "a file says by itself what it is: tokens that were prepared, or text", "dataset"},

    // ---- Checkpoints ----
    {Kind::kNoEffect, kValue, "there is one checkpoint format, and it loads under every layout",
     "ckpt_format dist_ckpt_format dist_ckpt_format_deprecated dist_ckpt_strictness dist_ckpt_save_pre_mcore_014 "
     "dist_ckpt_optim_fully_reshardable"},
    {Kind::kNoEffect, kSwitch, "there is one checkpoint format, and it loads under every layout",
     "use_dist_ckpt use_dist_ckpt_deprecated auto_detect_ckpt_format ckpt_fully_parallel_save "
     "ckpt_fully_parallel_save_deprecated ckpt_fully_parallel_load ckpt_assume_constant_structure "
     "ckpt_convert_update_legacy_dist_opt_format use_persistent_ckpt_worker fully_parallel_save "
     "strict_fsdp_dtensor_load"},
    {Kind::kNoEffect, kSwitch,
     "what nobody sets of the model and its tokenizer always comes from the checkpoint in load",
     "use_checkpoint_args use_tokenizer_model_from_checkpoint_args"},
    {Kind::kUnsupported, kSwitch,
     "the checkpoint's parallel sizes over those that are given (a checkpoint loads under every layout)",
     "use_mp_args_from_checkpoint_args=false"},
    {Kind::kNoEffect, kSwitch,
     "random numbers follow from seed, name and position: a checkpoint holds no generator's state",
     "save_rng load_rng"},
    {Kind::kUnsupported, kValue, "changing formats while training (see 'megalith convert')",
     "ckpt_convert_format=null ckpt_convert_save=null"},
    {Kind::kUnsupported, kValue, "this way of saving or loading",
     "non_persistent_save_interval=null load_main_params_from_ckpt=false load_model_opt_format=false"},
    {Kind::kNoEffect, kValue, "read only with non_persistent_save_interval",
     "non_persistent_ckpt_type non_persistent_global_ckpt_dir non_persistent_local_ckpt_dir "
     "non_persistent_local_ckpt_algo"},

    // ---- Logs, profiles, services ----
    {Kind::kNoEffect, kValue, "TensorBoard's events are on disk after each step", "tensorboard_queue_size"},
    {Kind::kNoEffect, kSwitch, "TensorBoard's events always have it",
     "log_batch_size_to_tensorboard log_learning_rate_to_tensorboard"},
    {Kind::kNoEffect, kSwitch, "profile always means PyTorch's profiler", "use_pytorch_profiler"},
    {Kind::kNoEffect, kSwitch, "no such service is contacted",
     "enable_one_logger adlr_autoresume enable_ft_package calc_ft_timeouts "
     "inprocess_restart inprocess_empty_cuda_cache run_workload_inspector_server disable_straggler_on_startup "
     "log_straggler one_logger one_logger_async"},
    {Kind::kNoEffect, kValue, "no such service is contacted",
     "mlflow_upload_* mlflow_tracelens_* one_logger_* straggler_* inprocess_* adlr_autoresume_interval "
     "app_tag_run_name app_tag_run_version"},
    {Kind::kNoEffect, kSwitch, "this build does not record it",
     "log_progress log_energy use_rocm_mem_info record_memory_history "
     "disable_profiler_activity_cpu torch_profiler_with_stack torch_profiler_use_gzip record_shapes nvtx_ranges "
     "use_nsys_profiler"},
    {Kind::kUnsupported, kSwitch, "a loss judged by its largest so far (loss_spike_action says what is done about jumps)",
     "check_for_spiky_loss=false"},
    {Kind::kUnsupported, kSwitch, "gradients judged by their largest so far (grad_norm_skip_threshold leaves steps out)",
     "check_for_large_grads=false"},
    {Kind::kUnsupported, kValue, "errors on purpose", "error_injection_rate=0"},
    {Kind::kNoEffect, kValue, "this build does not record it",
     "timing_log_level timing_log_option use_rocm_mem_info_iters "
     "memory_snapshot_path profile_memory_iter wall_clock_step_timer generate_tracelens_report logging_level "
     "config_logger_dir"},
    {Kind::kNoEffect, kValue, "check_determinism says which steps run again; a result that is refused is not run again",
     "rerun_mode error_injection_type result_rejected_tracker_filename"},
    {Kind::kNoEffect, kValue, "log levels belong to Primus's launcher",
     "sink_level file_sink_level stderr_sink_level master_sink_level trainable"},
    {Kind::kNoEffect, kValue, "read only when serving a model", "inference_* max_tokens_to_oom mlp_chunks_for_prefill"},
    {Kind::kNoEffect, kSwitch, "read only when serving a model", "cache_mla_latents nccl_all_reduce_for_prefill"},
    {Kind::kNoEffect, kSwitch, "cuda_graphs says what is captured; it changes speed, not results",
     "enable_cuda_graph external_cuda_graph cuda_graph_use_single_mempool cuda_graph_retain_backward_graph "
     "cuda_graph_share_io_buffers"},
    {Kind::kNoEffect, kValue, "cuda_graphs says what is captured; it changes speed, not results", "cuda_graph_scope"},

    // ---- Removed upstream, or another fork's word ----
    {Kind::kRemoved, kValue, "write micro_batch_size", "batch_size=null"},
    {Kind::kRemoved, kValue, "write lr_warmup_iters, lr_warmup_samples or lr_warmup_fraction", "warmup=null"},
    {Kind::kRemoved, kValue, "write vocab_size and make_vocab_size_divisible_by: the padded size is the next multiple",
     "padded_vocab_size=null"},
    {Kind::kRemoved, kValue, "write tensor_model_parallel_size", "model_parallel_size=1"},
    {Kind::kRemoved, kSwitch, "write recompute_granularity full, recompute_method and recompute_num_layers",
     "checkpoint_activations=false"},
    {Kind::kRemoved, kValue, "give the file as --config FILE", "yaml_cfg=null"},
    {Kind::kRemoved, kSwitch, "write swiglu", "glu=false"},
    {Kind::kRemoved, kValue, "pre-training is the default; load a checkpoint with load or load_hf to go on from it",
     "train_mode=pretrain"},

    // ---- Words of Hugging Face's Trainer, torchtune, torchtitan and DeepSpeed whose meaning differs from any option
    // ----
    {Kind::kRemoved, kValue, "write train_iters, or train_epochs for passes over instruction data",
     "max_steps_per_epoch=null"},
    {Kind::kRemoved, kSwitch, "write recompute_granularity full, recompute_method uniform and recompute_num_layers 1",
     "gradient_checkpointing=false enable_activation_checkpointing=false activation_checkpointing=false"},
    {Kind::kRemoved, kValue, "write recompute_granularity full or selective", "activation_checkpoint_mode=none"},
    {Kind::kRemoved, kValue, "write optimizer adam, sgd or muon",
     "optim=adamw|adamw_torch|adamw_torch_fused|adamw_hf|adam optimizer_name=AdamW|Adam"},
    {Kind::kRemoved, kValue, "write tensorboard_dir, wandb_project, mlflow_dir or metrics_file", "report_to=none|all"},
    {Kind::kRemoved, kValue, "write load DIR to resume from checkpoints of this program",
     "resume_from_checkpoint=null|false"},
    {Kind::kRemoved, kValue, "write data_path PREFIX; 'megalith prepare' makes such files of a text",
     "dataset_name=null dataset_path=null train_file=null training_dataset=null dataset_text_field=null"},
    {Kind::kRemoved, kSwitch, "write skip_train, or 'megalith evaluate'", "do_train=true"},
    {Kind::kRemoved, kSwitch, "write eval_iters 0 to leave evaluations out", "do_eval=true"},
    {Kind::kRemoved, kValue, "write save_interval, eval_interval or log_interval",
     "save_strategy=steps eval_strategy=steps evaluation_strategy=steps logging_strategy=steps"},
    {Kind::kRemoved, kValue, "write use_distributed_optimizer (ZeRO-1) or use_torch_fsdp2 (ZeRO-3)",
     "zero_stage=0 zero_optimization_stage=0 deepspeed=null fsdp=null|false data_parallel_shard_degree=1|-1 "
     "data_parallel_shard_dim=1|-1"},
    {Kind::kRemoved, kValue, "write bf16, fp16 or fp32", "torch_dtype=auto"},
    {Kind::kRemoved, kValue, "write group_query_attention and num_query_groups", "num_key_value_heads=null"},
    {Kind::kRemoved, kSwitch, "write untie_embeddings_and_output_weights", "tie_word_embeddings=true"},
    {Kind::kNoEffect, kValue, "an evaluation has micro_batch_size, and its loss does not depend on it",
     "per_device_eval_batch_size per_gpu_eval_batch_size"},
    {Kind::kNoEffect, kSwitch, "samples are always packed from documents", "packing dataset_packed"},
    {Kind::kUnsupported, kValue, "this form of adapters (lora.enabled has low-rank ones)",
     "lora_attn_modules=null use_peft=false quantize_base=false peft_type=none"},
    {Kind::kUnsupported, kSwitch, "weights in four or eight bits (fp8_format has eight-bit products)",
     "load_in_4bit=false load_in_8bit=false"},
    {Kind::kUnsupported, kSwitch, "uploads to the hub", "push_to_hub=false"},
    {Kind::kUnsupported, kSwitch, "samples sorted by length", "group_by_length=false"},

    // ---- Environment variables, met as keys ----
    {Kind::kNoEffect, kValue, "read by Transformer Engine, which is not used", "NVTE_* TE_* PATCH_TE_FLASH_ATTN"},
    {Kind::kNoEffect, kValue, "read by the GPU's runtime from the environment, not by this program",
     "HSA_* GPU_* HIP_* ROCR_* CUDA_* HIPBLASLT_* ROCBLAS_*"},
    {Kind::kNoEffect, kValue, "read by the communication library from the environment, not by this program",
     "NCCL_* RCCL_* MSCCL_* MSCCLPP_* GLOO_* TORCH_NCCL_* UCCL_*"},
    {Kind::kNoEffect, kValue, "read by Primus's scripts",
     "PRIMUS_* REBUILD_BNXT PATH_TO_BNXT_TAR_PACKAGE USING_AINIC ENABLE_NUMA_BINDING TORCH_COMPILE_DISABLE"},
};

}  // namespace

std::span<const KnownNamesRow> known_names_rows() { return kRows; }

}  // namespace megalith
