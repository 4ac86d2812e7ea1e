#include "layouts/layout.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <tuple>

#include "comm/thread_world.h"
#include "kinds/tasks.h"
#include "kinds/text/causal_lm.h"
#include "kinds/text/dpo.h"
#include "layouts/bert_objective.h"
#include "models/layer_pattern.h"
#include "models/tiny_models.h"
#include "optim/update_rules.h"
#include "parallel/fsdp.h"
#include "parallel/grad_buffer.h"
#include "parallel/sharded_buffer.h"
#include "support/sft_files.h"
#include "support/temporary_folder.h"
#include "verify/check_batch.h"
#include "verify/document_check.h"

namespace megalith::test {
namespace {

constexpr int64_t kBucketElements = 700;  // several buckets, of uneven sizes

// All experts of a layer in one canonical tensor, biases everywhere, sinks, and a window in every other layer.
void make_gpt_oss(ModelConfig& config) {
  config.moe_ffn_hidden_size = config.ffn_hidden_size;
  config.swiglu = false;
  config.quick_geglu = config.add_bias_linear = true;
  config.glu_linear_offset = 1;
  config.activation_func_clamp_value = 7;
  config.softmax_type = SoftmaxType::kLearnable;
  config.window_size = {2, 0};
  config.window_attn_skip_freq = "2";
}

// Neighbouring channels rotate, but for the last layer's; chunks; one expert a token, whose input is weighed, beside a
// shared one.
void make_llama4(const TinyRun& task, ModelConfig& config) {
  config.rotary_interleaved = config.qk_l2_norm = config.moe_apply_probs_on_input = true;
  config.no_rope_freq = std::to_string(task.num_layers);
  config.attention_chunk_size = 4;
  config.attn_temperature_scale = 0.2;
  config.attn_temperature_floor = 2;
  config.moe_layer_freq = moe_layer_freq_text(1, task.num_layers);
  config.moe_shared_expert_intermediate_size = config.moe_ffn_hidden_size;
  config.moe_router_topk = 1;
  config.moe_router_score_function = RouterScore::kSigmoid;
}

// Eight experts; the weights of few tokens decide, so that a wrong sum shows.
void add_experts(const TinyRun& task, ModelConfig& config) {
  config.num_experts = 8;
  config.moe_ffn_hidden_size = 16;
  config.moe_router_topk = 2;
  config.moe_aux_loss_coeff = 0.02;
  config.moe_z_loss_coeff = 0.01;
  if (task.has_capacity) config.moe_expert_capacity_factor = 0.75;
  config.moe_token_drop_policy = task.drop_policy;
  if (task.family == "mixtral" || task.is_bert() || task.is_t5()) return;
  if (task.family == "gpt_oss") return make_gpt_oss(config);
  if (task.family == "llama4") return make_llama4(task, config);
  config.group_query_attention = config.add_qkv_bias = false;
  config.multi_latent_attention = config.qk_layernorm = true;
  config.kv_channels.reset();  // 8 heads, which do not divide the width of 20: latent heads have widths of their own
  config.q_lora_rank = 10;
  config.kv_lora_rank = 12;
  config.qk_head_dim = 4;
  config.qk_pos_emb_head_dim = 2;
  config.v_head_dim = 3;
  config.rotary_scaling_factor = 4;
  config.mscale = config.mscale_all_dim = 1;
  config.original_max_position_embeddings = 16;
  config.moe_layer_freq = moe_layer_freq_text(1, task.num_layers);
  config.num_shared_experts = 1;
  config.moe_router_score_function = RouterScore::kSigmoid;
  config.moe_router_enable_expert_bias = true;
  config.moe_router_num_groups = 4;
  config.moe_router_group_topk = 2;
  config.moe_router_topk_scaling_factor = 2.5;
  config.moe_router_load_balancing_type = RouterBalancing::kSeqAuxLoss;
  config.mtp_num_layers = 1;
}

void make_gpt(ModelConfig& config) {
  config.swiglu = false;
  config.squared_relu = true;
  config.add_bias_linear = true;
  config.normalization = Normalization::kLayerNorm;
  config.position_embedding_type = PositionEmbedding::kLearnedAbsolute;
}

void make_bert(const TinyRun& task, ModelConfig& config) {
  config.model_type = ModelType::kBert;
  config.swiglu = config.group_query_attention = false;
  config.bias_gelu_fusion = task.family != "bert";
  config.add_bias_linear = true;
  config.normalization = Normalization::kLayerNorm;
  config.position_embedding_type = PositionEmbedding::kLearnedAbsolute;
  if (task.family != "bert") return;
  config.norm_placement = NormPlacement::kPostLn;
  config.embedding_norm = true;
}

// Megatron-LM's encoders, with scores that are scaled; one encoder has no layer behind it.
void make_biencoder(const TinyRun& task, ModelConfig& config) {
  make_bert(task, config);
  config.model_type = ModelType::kBiencoder;
  config.causal.reset();
  config.untie_embeddings_and_output_weights = false;
  config.biencoder_shared_query_context_model = task.family == "biencoder_shared";
  config.biencoder_projection_dim = config.biencoder_shared_query_context_model ? 0 : 6;
  config.retriever_score_scaling = true;
  config.retriever_report_topk_accuracies = {1, 2};
}

// With caps near the scores and logits that there are.
void make_gemma(bool is_third, ModelConfig& config) {
  config.swiglu = false;
  config.geglu = config.apply_layernorm_1p = config.scale_embeddings = true;
  config.norm_placement = NormPlacement::kSandwich;
  config.query_pre_attn_scalar = 5;
  config.qk_layernorm = is_third;
  if (is_third) {
    config.rotary_base_local = 20;
    config.rotary_seq_len_interpolation_factor = 4;
  } else {
    config.attn_logit_softcapping = 1;
    config.final_logit_softcapping = 2;
  }
}

// Buckets that distances within the few tokens share; Megatron-LM's has learned positions, biases and GELU by a tanh.
void make_t5(const TinyRun& task, ModelConfig& config) {
  config.model_type = ModelType::kT5;
  config.rotary_base = RotaryOptions().rotary_base;
  if (task.family.starts_with("megatron")) {
    config.swiglu = config.group_query_attention = false;
    config.bias_gelu_fusion = config.add_bias_linear = true;
    config.normalization = Normalization::kLayerNorm;
    config.position_embedding_type = PositionEmbedding::kLearnedAbsolute;
    return;
  }
  config.position_embedding_type = PositionEmbedding::kRelative;
  config.relative_attention_num_buckets = 6;
  config.relative_attention_max_distance = 5;
  config.query_pre_attn_scalar = 1;
  config.swiglu = false;
  (task.is_tied ? config.relu : config.geglu) = true;
  config.scale_decoder_outputs = task.is_tied;
}

// One head more than joint blocks, and axes of unlike widths; num_layers of each kind of block.
ModelConfig flux_config_of(const TinyRun& task) {
  ModelConfig config;
  config.model_type = ModelType::kDiffusion;
  config.num_joint_layers = config.num_single_layers = task.num_layers;
  config.hidden_size = 32;
  config.num_attention_heads = 4;
  config.in_channels = 8;
  config.context_dim = 10;
  config.vec_in_dim = 6;
  config.model_channels = 12;
  config.axes_dim = {2, 2, 4};
  config.guidance_embed = !task.is_tied;
  return config;
}

ModelConfig config_of(const TinyRun& task) {
  if (task.is_flux()) return flux_config_of(task);
  ModelConfig config = tiny_config();
  config.num_layers = task.num_layers;
  config.hidden_size = 20;
  config.ffn_hidden_size = 24;
  config.num_attention_heads = 8;
  config.kv_channels = 4;
  config.num_query_groups = task.num_kv_heads;
  config.causal = !task.is_masked;
  config.vocab_size = 37;  // padded to 40, 48 and 64 rows for 2, 4 and 8 ranks: some have little else
  config.make_vocab_size_divisible_by = 4;
  config.untie_embeddings_and_output_weights = !task.is_tied;
  config.add_qkv_bias = task.has_qkv_bias;
  config.qk_layernorm = task.has_head_norms || task.is_olmo;
  if (task.is_olmo) {
    config.norm_placement = NormPlacement::kPost;
    config.qk_layernorm_scope = HeadNormScope::kProjection;
  }
  if (task.window > 0) config.window_size = {task.window - 1, task.is_masked ? task.window - 1 : 0};
  config.window_attn_skip_freq = task.windowed_layers;
  if (!task.windowed_layers.empty()) config.rotary_base_local = 20;
  if (task.has_sinks) config.softmax_type = SoftmaxType::kLearnable;
  config.attention_dropout = config.hidden_dropout = task.has_dropout ? 0.2 : 0;
  if (task.has_experts()) add_experts(task, config);
  if (task.family == "gpt") make_gpt(config);
  if (task.is_t5()) make_t5(task, config);
  if (task.is_bert()) make_bert(task, config);
  if (task.is_biencoder()) make_biencoder(task, config);
  if (task.family.starts_with("gemma")) make_gemma(task.family == "gemma3", config);
  if (task.silent) uncouple_tokens(config);
  if (task.is_packed) {
    config.hidden_size = 72;  // a block and a part of one
    config.ffn_hidden_size = 256;
    config.kv_channels = 32;
    if (task.has_experts()) config.moe_ffn_hidden_size = 128;
  }
  return config;
}

// Standard deviation 0.2 (uniform), norms around 1.
TensorMap weights_of(const Module& model, at::ScalarType dtype) {
  TensorMap weights = golden_weights(model, at::kDouble);
  for (auto& [name, tensor] : weights) {
    const bool is_norm = tensor.dim() == 1 && name.ends_with(".weight");
    tensor = (is_norm ? tensor : tensor * std::sqrt(3.0)).to(dtype);
  }
  return weights;
}

// The check's rows for an encoder and decoder: the encoder reads each row backwards and two of its labels. Both
// sequences end with padding.
class PairTask : public CausalLm {
 public:
  ModelInput make_input(const Batch& part, at::Device device, std::span<const Unit> units) const override {
    ModelInput input = CausalLm::make_input(part, device, units);
    const at::Tensor tokens = part.at(field::kTokens), rows = part.at(field::kSampleIndex);
    const at::Tensor read = at::cat({tokens.flip(1), part.at(field::kLabels).narrow(1, 0, 2)}, 1);
    const int64_t s = tokens.size(1), encoder_s = read.size(1);
    input.tokens = tokens.to(device);
    input.context.mask.key_lengths = (s - rows % 2).to(device);
    input.context.mask.runs = nullptr;
    input.context.encoder_s = encoder_s;
    input.more.set("encoder_tokens", read.to(device));
    input.more.set("encoder_key_lengths", (encoder_s - rows % 3).to(device));
    constexpr int64_t kBehindTheDecoders = int64_t{1} << 32;
    input.more.set("encoder_row_ids",
                   (kBehindTheDecoders + rows.unsqueeze(1) * encoder_s + at::arange(encoder_s)).to(device));
    return input;
  }
};

std::unique_ptr<Task> objective_of(const TinyRun& task, const ModelConfig& config) {
  if (task.is_t5()) return std::make_unique<PairTask>();
  if (task.packs == "pairs") return std::make_unique<Dpo>(0.3);
  if (task.packs == "ratings") return std::make_unique<Kto>(0.3, KtoWeights{1.5, 0.5});
  TaskOptions options{.mask_prob = 0.4};  // of few tokens
  if (task.is_flux()) {
    options.task = TaskKind::kFlowMatching;
    options.cfg_dropout_prob = {0.3, 0.4};
    options.guidance_scale = 2;
    const FluxSampleShape shape{.latent_channels = config.in_channels / 4,
                                .context_dim = config.context_dim,
                                .vec_in_dim = config.vec_in_dim,
                                .image_size = task.image_size,
                                .text_length = task.text_length};
    return make_task(options, {.seed = 5, .flux_shape = shape, .has_guidance = config.guidance_embed});
  }
  if (task.is_masked) options.task = TaskKind::kMaskedLm;
  options.mask_token_id = *config.vocab_size - 1;
  const TaskSetup setup{.seed = 5, .vocab_size = *config.vocab_size, .special_ids = {.eod = 3}};
  if (task.is_bert()) return std::make_unique<BertObjective>(options, setup);
  if (task.is_biencoder()) options.task = TaskKind::kIct;
  return make_task(options, setup);
}

constexpr int kPackedSamples = 11;

// For tasks with packs, which all have the same samples.
std::unique_ptr<BatchSource> source_of_packs(const TinyRun& task) {
  static const TemporaryFolder folder;
  const bool has_pairs = task.packs == "pairs", has_ratings = task.packs == "ratings";
  static std::mutex mutex;  // ranks are threads
  const std::lock_guard lock(mutex);
  const std::string prefix = folder.path() / task.packs;
  if (!std::filesystem::exists(prefix + ".json")) {
    auto sequences =
        random_sft_sequences((has_pairs ? 2 : 1) * kPackedSamples, has_pairs || has_ratings ? 6 : 10, 37, 4);
    for (size_t i = 0; has_ratings && i < sequences.size(); i += 3) {
      std::ranges::replace(sequences[i].weights, uint8_t{1}, uint8_t{2});  // a bad answer
    }
    write_sft_set(prefix, sequences, has_pairs ? SftForm::kPairs : has_ratings ? SftForm::kRated : SftForm::kChat);
  }
  const auto set = std::make_shared<const SftSet>(prefix);
  const SftOptions options{.enable_packed_sequences = !task.has_one_sample_a_row,
                           .loss = has_pairs     ? SftLoss::kDpo
                                   : has_ratings ? SftLoss::kKto
                                                 : SftLoss::kNextToken};
  const auto rows = make_whole_sft_rows(set, {.sft = options}, {.sequence_length = task.sequence});
  if (options.has_pairs()) rows->set_reference(random_sft_reference(*set));
  auto source = std::make_unique<BatchSource>(rows, Order(RowOrder::kRepeated, rows->num_rows(), rows->name()));
  if (has_ratings) {
    source->then([](Batch& batch) {
      batch.set(BatchField::of_rows(kKlEstimate, at::full({batch.num_rows()}, 0.4, at::kFloat)));
    });
  }
  return source;
}

std::vector<Batch> microbatches(const Layout& layout, const Groups& groups, const ModelConfig& config, int step,
                                const Task& objective, const CheckHooks& hooks) {
  const TinyRun& task = layout.task;
  const int rank = hooks.data_rank ? hooks.data_rank(groups) : groups.dp->rank();
  std::vector<Batch> batches;
  if (!task.packs.empty()) {
    const auto source = source_of_packs(task);
    for (int64_t m = 0; m < layout.num_microbatches(); ++m) {
      batches.push_back(source->read({.consumed_samples = step * task.global_batch + m * layout.micro_batch * layout.dp,
                                      .micro_batch_size = layout.micro_batch,
                                      .dp_rank = rank,
                                      .dp_size = layout.dp}));
    }
    if (hooks.change_batches) hooks.change_batches(batches, groups);
    return batches;
  }
  Batch whole = make_check_batch({.num_samples = task.global_batch,
                                  .sequence = task.sequence,
                                  .vocab_size = config.vocab_size.value_or(1),
                                  .has_documents = task.has_documents,
                                  .restarts_positions = task.has_documents,
                                  .silent = task.silent},
                                 step);
  objective.draw(whole);
  if (task.silent) silence(whole, *task.silent);
  for (int64_t m = 0; m < layout.num_microbatches(); ++m) {
    batches.push_back(whole.rows((m * layout.dp + rank) * layout.micro_batch, layout.micro_batch));
  }
  if (hooks.change_batches) hooks.change_batches(batches, groups);
  return batches;
}

RankOutcome run_rank(Groups& groups, const Layout& layout, const Precision& precision, int num_steps,
                     const Mistake* mistake) {
  const CheckHooks hooks = mistake != nullptr ? mistake->hooks : CheckHooks{};
  if (hooks.change_groups) hooks.change_groups(groups);
  ModelConfig config = config_of(layout.task);
  if (layout.task.has_experts()) config.moe_token_dispatcher_type = layout.dispatcher;
  config.moe_shared_expert_overlap = layout.overlaps_shared_expert;
  const at::Device device = precision.devices == nullptr ? at::kCPU : precision.devices->device_of(groups.rank);
  LayerContext context = tiny_context(groups, precision.dtype, precision.kernels);
  context.device = device;
  if (!layout.task.fp8_format.empty()) {
    const Fp8Options fp8{.fp8_format = layout.task.fp8_format,
                         .fp8_recipe = layout.task.fp8_recipe,
                         .fp8_amax_history_len = 3,
                         .fp8_amax_compute_algo = "max"};
    context.recipe = make_recipe(fp8, precision.kernels, /*keeps_weights=*/layout.data_parallel.name != "fsdp");
  }
  if (!layout.task.adapters.empty()) {
    // B begins at random too: from zero the first step would give A no gradient.
    context.lora = std::make_shared<const LoraOptions>(LoraOptions{
        .enabled = true,
        .dim = 3,
        .alpha = 6,
        .use_dora = layout.task.has_lengths,
        .dropout = layout.task.adapter_dropout,
        .dropout_position = layout.task.drops_what_adapters_add ? AdapterDropout::kPost : AdapterDropout::kPre,
        .a_init = AdapterInit::kKaiming,
        .b_init = AdapterInit::kNormal,
        .target_modules = layout.task.adapters,
        .quantization = layout.task.is_packed ? BaseQuantization::kNf4 : BaseQuantization::kNone});
  }
  context.is_sequence_parallel = layout.is_sequence_parallel;
  context.recompute = layout.recompute.selective();
  context.context_parallel_kinds = context_parallel_kinds({.cp_comm_type = layout.cp_comm_type});
  PipelinePlan plan = make_pipeline_plan(layout.pipeline, layout.pp, model_units(config));
  if (mistake != nullptr && mistake->change_pipeline) plan = mistake->change_pipeline(std::move(plan), groups);
  const BuiltModel built = build_chunks(config, context, plan, layout.recompute);
  const Groups alone = Groups::single();
  LayerContext whole = tiny_context(alone);
  whole.lora = context.lora;
  const TensorMap weights = weights_of(*test::build_model(config, whole), precision.dtype);
  for (const auto& chunk : built.chunks) {
    if (hooks.change_model) hooks.change_model(*chunk, groups);
    for (Parameter* parameter : chunk->parameters()) {
      if (!parameter->is_packed()) parameter->data().zero_();  // padding rows
    }
  }
  for (const auto& chunk : built.chunks) test::load(*chunk, weights);

  std::unique_ptr<DataParallel> data;
  if (layout.data_parallel.make) {
    data = layout.data_parallel.make(built, groups);
  } else {
    const GradBufferOptions options{.bucket_elements = kBucketElements};
    data = std::make_unique<GradBuffer>(built.parameters(), groups, options);
  }
  if (hooks.change_data_parallel) data = hooks.change_data_parallel(std::move(data), built, groups);
  const std::unique_ptr<Task> objective = objective_of(layout.task, config);
  return run_steps(
      built, *data, groups, device,
      {.num_steps = num_steps,
       .task = objective.get(),
       .microbatches = [&](int step) { return microbatches(layout, groups, config, step, *objective, hooks); },
       .optimizer = optimizer_of(layout.task),
       .kernels = precision.kernels,
       .graph_warmup_steps = precision.graph_warmup_steps});
}

DataParallelKind zero1_with(std::string name, const BucketCutFunction& cut) {
  return {std::move(name), [cut](const BuiltModel& model, const Groups& groups) -> std::unique_ptr<DataParallel> {
            const ShardedBufferOptions options{
                .gradients = {.bucket_elements = kBucketElements}, .overlap_gather = true, .cut = cut};
            return std::make_unique<ShardedGradBuffer>(model.parameters(), groups, options);
          }};
}

}  // namespace

int64_t rows_of_packs(const TinyRun& task) { return source_of_packs(task)->num_samples(); }

DataParallelKind zero1() { return zero1_with("zero1", nullptr); }
DataParallelKind zero1_between_matrices() {
  return zero1_with("zero1 between matrices", bucket_cut({.optimizer = OptimizerKind::kMuon}));
}

DataParallelKind fsdp() {
  return {"fsdp", [](const BuiltModel& model, const Groups& groups) -> std::unique_ptr<DataParallel> {
            return std::make_unique<Fsdp>(model.parameters(), model.chunks.at(0)->blocks(), groups, FsdpOptions{});
          }};
}

DataParallelKind fsdp_on_host() {
  return {"fsdp on the host", [](const BuiltModel& model, const Groups& groups) -> std::unique_ptr<DataParallel> {
            return std::make_unique<Fsdp>(model.parameters(), model.chunks.at(0)->blocks(), groups,
                                          FsdpOptions{.cpu_offload = true});
          }};
}

OptimizerOptions optimizer_of(const TinyRun& task) {
  OptimizerOptions options{.clip_grad = kClipGrad};
  if (task.optimizer == "adam on the host") {
    options.optimizer_cpu_offload = options.overlap_cpu_optimizer_d2h_h2d = true;
    options.optimizer_offload_fraction = 0.5;
  }
  if (task.optimizer == "sgd") options.optimizer = OptimizerKind::kSgd;
  if (task.optimizer == "lion") options.optimizer = OptimizerKind::kLion;
  if (task.optimizer == "adafactor") {
    options.optimizer = OptimizerKind::kAdafactor;
    options.adafactor.adafactor_eps1 = 1e-16;          // gradients that are nothing but rounding stay small
    options.adafactor.adafactor_clip_threshold = 0.5;  // always acts
  }
  if (task.optimizer == "adam8bit") {
    options.optimizer = OptimizerKind::kAdam8bit;
    options.adam8bit.min_8bit_size = 64;
  }
  if (!task.optimizer.starts_with("muon")) return options;
  options.optimizer = OptimizerKind::kMuon;
  options.muon = {.muon_nesterov = true,
                  .muon_split_qkv = task.optimizer == "muon",
                  .muon_scale_mode = MuonScaleMode::kUnitRmsNorm,
                  .muon_extra_scale_factor = 0.7};
  return options;
}

std::optional<OptimizerKind> exchanging(OptimizerKind rule) {
  const bool exchanges =
      rule == OptimizerKind::kMuon || rule == OptimizerKind::kAdafactor || rule == OptimizerKind::kAdam8bit;
  return exchanges ? std::optional(rule) : std::nullopt;
}

std::string TinyRun::text() const {
  std::string text = fmt::format("batch {}×{}", global_batch, sequence);
  if (is_tied) text += ", tied";
  if (has_dropout) text += ", dropout";
  if (has_documents) text += ", documents";
  if (has_qkv_bias) text += ", qkv bias";
  if (has_head_norms) text += ", norms of heads";
  if (is_olmo) text += ", norms behind the blocks and of projections";
  if (window > 0) text += fmt::format(", window {}", window);
  if (!windowed_layers.empty()) text += " in layers " + windowed_layers;
  if (has_sinks) text += ", sinks";
  if (num_kv_heads != 4) text += fmt::format(", {} kv heads", num_kv_heads);
  if (family != "llama") text += ", " + family;
  if (has_capacity)
    text += drop_policy == DropPolicy::kPosition ? ", with a capacity by position" : ", with a capacity";
  if (is_masked) text += ", masked";
  if (optimizer != "adam") text += ", " + optimizer;
  if (!fp8_format.empty()) text += ", fp8 " + fp8_format + " " + fp8_recipe;
  if (!adapters.empty()) text += fmt::format(", adapters of {}", fmt::join(adapters, " "));
  if (has_lengths) text += " with lengths";
  if (is_packed) text += " beside NF4";
  if (adapter_dropout > 0) text += fmt::format(" with {} dropout", drops_what_adapters_add ? "post" : "pre");
  if (!packs.empty()) text += fmt::format(", {} {}", packs, has_one_sample_a_row ? "in rows of their own" : "packed");
  if (image_size != 48) text += fmt::format(", {} pixels a side, {} tokens of text", image_size, text_length);
  if (num_layers != 2) text += fmt::format(", {} layers", num_layers);
  return text;
}

int64_t Layout::num_microbatches() const { return div_exact(task.global_batch, micro_batch * dp); }

std::string Layout::text() const {
  std::string text = fmt::format("tp {}, dp {}", tp, dp);
  if (cp > 1) text += fmt::format(", cp {} {}", cp, fmt::join(cp_comm_type, " "));
  if (cp_ulysses > 1) text += fmt::format(" ({} x {})", cp_ulysses, cp / cp_ulysses);
  if (is_sequence_parallel) text += ", sequence parallel";
  if (pp > 1) {
    const PipelinePlan plan = make_pipeline_plan(pipeline, pp, model_units(config_of(task)));
    text += fmt::format(", pp {} × {} ({})", pp, plan.num_chunks, plan.schedule(narrow<int>(num_microbatches())).name);
  }
  if (task.has_experts()) text += fmt::format(", ep {} etp {} {}", ep, etp == 0 ? tp : etp, dispatcher);
  if (overlaps_shared_expert) text += ", overlapped";
  if (dp_replicate > 1) text += fmt::format(" ({} copies)", dp_replicate);
  if (data_parallel.make) text += ", " + data_parallel.name;
  if (recompute.is_full()) {
    text += fmt::format(", recompute {} {}", *recompute.recompute_method, *recompute.recompute_num_layers);
    if (recompute.cpu_offloading_num_layers > 0) text += ", offloaded";
  } else if (recompute.is_selective()) {
    text += fmt::format(", recompute {}", fmt::join(recompute.recompute_modules, " "));
  }
  return fmt::format("{}, {} microbatch{} of {} ({})", text, num_microbatches(), num_microbatches() == 1 ? "" : "es",
                     micro_batch, task.text());
}

std::vector<RankOutcome> run_layout(const Layout& layout, const Precision& precision, int num_steps,
                                    const Mistake* mistake) {
  std::vector<RankOutcome> ranks(static_cast<size_t>(layout.world_size()));
  ThreadWorld(layout.world_size(), {.devices = precision.devices})
      .run(Mesh({.tp = layout.tp,
                 .cp = layout.cp,
                 .dp = layout.dp,
                 .pp = layout.pp,
                 .etp = layout.etp == 0 ? layout.tp : layout.etp,
                 .ep = layout.ep,
                 .dp_replicate = layout.dp_replicate,
                 .cp_ulysses = layout.cp_ulysses}),
           [&](Groups& groups) {
             ranks[static_cast<size_t>(groups.rank)] = run_rank(groups, layout, precision, num_steps, mistake);
           });
  return ranks;
}

const RankOutcome& single_rank_outcome(const Layout& layout, const Precision& precision, int num_steps) {
  static std::map<std::tuple<TinyRun, int64_t, at::ScalarType, Kernels, int>, RankOutcome> known;
  const TinyRun& task = layout.task;
  const bool is_of_microbatches = task.has_experts() || !task.fp8_format.empty() || task.is_biencoder();
  // Delayed scales are those of all data-parallel ranks together, whose samples are one microbatch to a single rank. So
  // is the loss that compares samples.
  const bool is_of_all_ranks = (!task.fp8_format.empty() && task.fp8_recipe == "delayed") || task.is_biencoder();
  const int64_t of_rank = is_of_all_ranks ? layout.micro_batch * layout.dp : layout.micro_batch;
  const int64_t micro_batch = is_of_microbatches ? of_rank : task.global_batch;
  const auto key = std::make_tuple(task, micro_batch, precision.dtype, precision.kernels, num_steps);
  const auto found = known.find(key);
  if (found != known.end()) return found->second;
  const Layout alone{.micro_batch = micro_batch, .task = task};
  return known[key] = run_layout(alone, {precision.dtype, precision.kernels}, num_steps)[0];
}

Comparison compare(const Layout& layout, const std::vector<RankOutcome>& ranks, const RankOutcome& expected,
                   double tolerance) {
  // One vector on all keys changes no softmax, so the gradient of their biases is rounding: of about 53 and of
  // 24 bits of the others' (verify/parallel_check.cc).
  const bool has_key_biases =
      layout.task.is_bert() || layout.task.is_biencoder() || layout.task.family.starts_with("megatron_t5");
  const double floor = !has_key_biases ? 0 : tolerance < 1e-6 ? 1e-4 : 1e-2;
  Comparison found = compare_with_one_rank(ranks, 0, expected, {.relative = tolerance, .floor = floor});
  if (!found.is_ok()) found.first_failure = fmt::format("{}: {}", layout.text(), found.first_failure);
  return found;
}

void expect_as_one_rank_in_float64(const std::vector<Layout>& layouts) {
  for (const Layout& layout : layouts) {
    // Scales that are delayed by three steps change with the fourth.
    const int num_steps = layout.task.fp8_format.empty() ? 3 : 5;
    const RankOutcome& expected = single_rank_outcome(layout, {}, num_steps);
    EXPECT_GT(*std::min_element(expected.grad_norms.begin(), expected.grad_norms.end()), kClipGrad);
    const Comparison found = compare(layout, run_layout(layout, {}, num_steps), expected, 1e-9);
    EXPECT_EQ(found.first_failure, "");
    ::testing::Test::RecordProperty(layout.text(), fmt::format("{:.2g}", found.worst));
  }
}

void expect_as_one_rank_in_float32(const std::vector<Layout>& layouts) {
  const Precision fused{at::kFloat, Kernels::kFused};
  for (const Layout& layout : layouts) {
    // Parameters after one step follow the gradient's sign, whatever its size: they are for float64.
    RankOutcome gradients_only = single_rank_outcome(layout, fused, 1);
    gradients_only.parameters.clear();
    const Comparison found = compare(layout, run_layout(layout, fused, 1), gradients_only, 1e-5);
    EXPECT_EQ(found.first_failure, "");
    ::testing::Test::RecordProperty(layout.text(), fmt::format("{:.2g}", found.worst));
  }
}

}  // namespace megalith::test
