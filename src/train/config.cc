#include "train/config.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/folder_kind.h"
#include "checkpoint/object_checkpoints.h"
#include "checkpoint/resume.h"
#include "comm/context_parallel.h"
#include "config/option_checks.h"
#include "core/error.h"
#include "core/number_of.h"
#include "hub/hub.h"
#include "models/families.h"
#include "models/model_bounds.h"
#include "storage/object_mirror.h"
#include "train/adapters.h"
#include "train/attention_choice.h"
#include "train/device_fit.h"
#include "train/eras.h"
#include "train/foreign_load.h"
#include "train/frozen_weights.h"
#include "train/hub_paths.h"
#include "train/implied_options.h"
#include "train/inputs.h"
#include "train/outputs.h"
#include "train/run_length.h"
#include "train/stored_architecture.h"
#include "train/text_tokenizer.h"
#include "train/unopened_tokenizer.h"

namespace megalith {
namespace {

constexpr int64_t kLongestRun = int64_t{1} << 60;  // in samples

// As Megatron-LM does: off without tensor parallelism.
void resolve_sequence_parallel(Resolved& resolved, bool reads_batches, std::vector<UserError>& errors) {
  Derived& d = resolved.derived;
  const int64_t tp = resolved.config.parallel.tensor_model_parallel_size;
  if (!resolved.config.sequence_parallel || !reads_batches) return;
  if (tp == 1) {
    resolved.notes.push_back("sequence_parallel is off: tensor_model_parallel_size is 1");
    return;
  }
  d.is_sequence_parallel = true;
  resolved.kind().check_sequence_parallel(resolved, errors);
}

void check_host_memory(const Config& config, const Derived& d, std::vector<std::string>& notes,
                       std::vector<UserError>& errors) {
  const bool has_runs = d.data_parallel.fsdp_cpu_offload, has_states = config.optimizer.optimizer_cpu_offload;
  if (has_runs && has_states) {
    notes.emplace_back(
        "fsdp_cpu_offload keeps the optimizer's state in host memory too: optimizer_cpu_offload adds "
        "nothing");
  }
  if (const std::string_view reason = config.optimizer.needs_device(); has_runs && !reason.empty()) {
    errors.emplace_back(fmt::format("fsdp_cpu_offload with optimizer {}, {}", config.optimizer.word(), reason),
                        "use optimizer adam or sgd, or leave fsdp_cpu_offload out");
  }
  if ((has_runs || has_states) && config.runtime.device.fail_on_host_sync) {
    errors.emplace_back(fmt::format("fail_on_host_sync with {}: the CPU waits for gradients to update with",
                                    has_runs ? "fsdp_cpu_offload" : "optimizer_cpu_offload"),
                        "keep one of them");
  }
}

void check_precision(const Config& config, Derived& d, std::vector<UserError>& errors) {
  const TrainOptions& train = config.train;
  std::vector<std::string> given;
  if (train.bf16) given.emplace_back("bf16");
  if (train.fp16) given.emplace_back("fp16");
  if (train.fp32) given.emplace_back("fp32");
  if (given.size() > 1) {
    errors.emplace_back(fmt::format("{} and {} are both given", given[0], given[1]), "keep one of them");
  }
  d.dtype = train.bf16 ? at::kBFloat16 : train.fp16 ? at::kHalf : at::kFloat;
  if (config.optimizer.master_weights != MasterWeights::kFp32 && !train.bf16) {
    errors.emplace_back(fmt::format("master_weights {} is about bf16 weights, and the model is {}",
                                    config.optimizer.master_weights == MasterWeights::kNone ? "none" : "remainder",
                                    train.fp16 ? "fp16" : "fp32"),
                        "add --bf16, or leave --master_weights out");
  }
  if (config.data_parallel.main_grads_dtype == GradDtype::kBf16 && !train.bf16 && !train.fp16) {
    errors.emplace_back("main_grads_dtype bf16 is about the gradients of 16-bit weights, and the model is fp32",
                        "add --bf16, or leave --main_grads_dtype out");
  }
  if (config.optimizer.sft_sanitize_nan_grads && train.fp16 && !train.loss_scaling.loss_scale) {
    errors.emplace_back("sft_sanitize_nan_grads hides from fp16's loss scale that a gradient overflowed",
                        "train in bf16, give a fixed --loss_scale, or leave --sft_sanitize_nan_grads out");
  }
  if (train.fp16) {
    const std::vector<UserError> scaling = check_loss_scale_options(train.loss_scaling);
    errors.insert(errors.end(), scaling.begin(), scaling.end());
  } else if (train.loss_scaling.loss_scale && *train.loss_scaling.loss_scale != 1) {
    errors.emplace_back(fmt::format("loss_scale {} is given without fp16", *train.loss_scaling.loss_scale),
                        "add --fp16, or leave --loss_scale away: bf16 and fp32 need none");
  }
}

// Vocabulary size, end-of-document id, and the tokenizer if named or needed.
void resolve_vocabulary(Resolved& resolved, std::vector<UserError>& errors) {
  const Config& config = resolved.config;
  Derived& d = resolved.derived;
  if (!config.model.has_vocabulary()) {
    d.vocab_size = 0;
    d.eod_id = 0;
    d.tokenizer = TokenizerOptions();
    return;
  }
  if (const auto unopened = unopened_vocabulary(resolved)) {
    d.vocab_size = unopened->vocab_size;
    d.eod_id = unopened->eod_id;
    d.tokenizer = TokenizerOptions();
    resolved.notes.push_back(fmt::format(
        "no text is read: the tokenizer {} is not opened; vocabulary {} and end of document {} come from {}",
        *config.tokenizer.tokenizer_model, d.vocab_size, d.eod_id, unopened->source));
    return;
  }
  TokenizerOptions named = d.tokenizer;
  named.vocab_size = config.model.vocab_size;
  try {
    if (named.is_named()) {
      resolved.tokenizer = make_tokenizer(named);
    } else if (!config.model.vocab_size) {
      resolved.tokenizer = make_byte_tokenizer();
      resolved.notes.push_back("no vocab_size and no tokenizer given: using bytes, a vocabulary of 257");
    }
  } catch (const UserErrors& several) {
    errors.insert(errors.end(), several.errors().begin(), several.errors().end());
  } catch (const UserError& error) {
    errors.push_back(error);
  }
  if (resolved.tokenizer == nullptr) {
    // A loaded model already has its rows, extra ones included.
    const bool is_loaded = resolved.options->of(config.model.vocab_size).source().layer == OptionLayer::kModel;
    d.vocab_size = config.model.vocab_size.value_or(0) + (is_loaded ? 0 : config.extra_vocab_size);
    d.eod_id = config.model.eos_token_ids.empty() ? config.model.vocab_size.value_or(0) - 1
                                                  : config.model.eos_token_ids.front();
    if (config.data.mock_data) {
      resolved.notes.push_back(
          fmt::format("mock data without a tokenizer: vocabulary {} and end of document {} come "
                      "from the model's configuration",
                      d.vocab_size, d.eod_id));
    }
    return;
  }
  const int64_t ids = resolved.tokenizer->vocab_size() + config.extra_vocab_size;
  const bool is_null = config.tokenizer.tokenizer_type == "NullTokenizer";
  if (is_null && config.extra_vocab_size > 0) {
    errors.emplace_back(fmt::format("extra_vocab_size {} with tokenizer_type NullTokenizer", config.extra_vocab_size),
                        "raise vocab_size instead");
  }
  d.vocab_size = is_null ? ids : std::max(config.model.vocab_size.value_or(0), ids);
  if (!is_null && config.model.vocab_size && *config.model.vocab_size < ids) {
    errors.emplace_back(fmt::format("the tokenizer {} has {} ids, the model's vocab_size is {}",
                                    resolved.tokenizer->name(), ids, *config.model.vocab_size),
                        "use the model's own tokenizer, or set vocab_size to at least the tokenizer's");
  }
  if (auto note = note_of_missing_tokens(*resolved.tokenizer, config, d.vocab_size)) {
    resolved.notes.push_back(std::move(*note));
  }
  d.eod_id = resolved.tokenizer->eod().value_or(static_cast<int32_t>(d.vocab_size - 1));
}

// Both stacks' layers are on the same tensor-parallel ranks.
void check_encoder_ranks(const Config& config, std::vector<std::string>& notes, std::vector<UserError>& errors) {
  const int64_t tp = config.parallel.tensor_model_parallel_size;
  const int64_t asked = config.pipeline.encoder_tensor_model_parallel_size;
  if (asked != 0 && asked != tp) {
    errors.emplace_back(
        fmt::format("encoder_tensor_model_parallel_size {} is not tensor_model_parallel_size {}", asked, tp),
        "leave it out: an encoder's layers are shared by as many ranks as the decoder's");
  }
  const int64_t stages = config.pipeline.encoder_pipeline_model_parallel_size;
  const int64_t pp = config.parallel.pipeline_model_parallel_size;
  if (stages > 0 && stages < pp) {
    notes.push_back(fmt::format(
        "encoder_pipeline_model_parallel_size {}: that many of the {} ranks of pipeline_model_parallel_size, "
        "which Megatron-LM adds to it",
        stages, pp));
  }
}

// All numbers of microbatches in the run must fit the schedule.
void resolve_pipeline(const Config& config, Derived& d, std::vector<std::string>& notes,
                      std::vector<UserError>& errors) {
  const int64_t size = config.parallel.pipeline_model_parallel_size;
  ModelConfig model = config.model;
  model.vocab_size.reset();  // perhaps still unknown, and irrelevant to units
  const std::vector<Unit> units = model_units(model);
  std::vector<UserError> found = check_pipeline(config.pipeline, size, units);
  if (found.empty()) {
    d.pipeline = make_pipeline_plan(config.pipeline, size, units);
    if (d.pipeline.counts_ends) {
      std::vector<int64_t> layers;
      for (const UnitRange& stage : d.pipeline.stages) layers.push_back(d.pipeline.layers_of(stage).count);
      notes.push_back(fmt::format("{} layers are shared by {} pipeline stages by their work, the embedding and the "
                                  "head as a layer each: {} (pipeline_model_parallel_layout says it otherwise)",
                                  count_units(units, UnitLetter::kLayer), layers.size(), fmt::join(layers, ", ")));
    }
    std::set<int64_t> numbers;
    for (int64_t consumed = 0; errors.empty() && consumed < d.train_samples;) {
      numbers.insert(d.batches.num_microbatches(consumed));
      if (d.batches.num_microbatches(consumed) == d.num_microbatches) break;  // a ramp's end
      consumed += d.batches.samples(consumed);
    }
    numbers.insert(d.num_microbatches);
    for (const BatchStep& step : d.batches.steps()) numbers.insert(d.batches.num_microbatches(step.from));
    for (const int64_t number : numbers) {
      found = check_microbatches(d.pipeline, number);
      if (!found.empty()) break;
    }
  }
  errors.insert(errors.end(), found.begin(), found.end());
}

}  // namespace

Resolved::Resolved(Kinds all, const std::function<void(OptionVisitor&)>& extra) : kinds(all) {
  struct Extra {
    const std::function<void(OptionVisitor&)>& declare;
    void visit(OptionVisitor& v) {
      if (declare) declare(v);
    }
  } of_command{extra};
  options = std::make_unique<OptionSet>(of_command, config);
}

const Kind& Resolved::kind() const { return kind_of(kinds, config.model.model_type); }

namespace {

void append(std::vector<UserError>& errors, const std::vector<UserError>& found) {
  errors.insert(errors.end(), found.begin(), found.end());
}

// If two options set a length or a batch, the higher layer's counts: --train_iters overrides a recipe's epochs.
void keep_highest(Resolved& resolved, const std::vector<Option*>& all) {
  std::vector<Option*> set;
  for (Option* option : all) {
    if (option->is_set() && option->text() != "null") set.push_back(option);
  }
  if (set.size() < 2) return;
  const Option* highest = *std::max_element(
      set.begin(), set.end(), [](const Option* a, const Option* b) { return a->source().layer < b->source().layer; });
  for (Option* option : set) {
    if (option->source().layer == highest->source().layer) continue;
    resolved.notes.push_back(fmt::format("{} {} ({}) gives way to {} {}", option->name(), option->text(),
                                         option->source().where, highest->name(), highest->text()));
    option->reset(highest->source());
  }
}

// Requirements of repeating a step and of rolling back.
std::vector<UserError> check_faults(const Config& config) {
  std::vector<UserError> errors;
  const FaultOptions& faults = config.train.faults;
  if (faults.check_determinism > 0) {
    const std::string asked = fmt::format("check_determinism {}", faults.check_determinism);
    if (!config.runtime.device.deterministic_mode) {
      errors.emplace_back(asked +
                              " compares bits, and without deterministic_mode operators may add in another order "
                              "each time",
                          "add --deterministic_mode");
    }
    if (config.runtime.device.fail_on_host_sync) {
      errors.emplace_back(asked + " reads digests in every step, which fail_on_host_sync forbids",
                          "leave one of them out");
    }
    if (config.fp8.fp8_format && config.fp8.fp8_recipe == "delayed") {
      errors.emplace_back(asked + " runs a step again, and fp8_recipe delayed scales by what earlier passes saw",
                          "take --fp8_recipe tensorwise, or leave --check_determinism out");
    }
  }
  if (faults.loss_spike_action == LossSpikeAction::kRollback) {
    if (!config.checkpoint.save) {
      errors.emplace_back("loss_spike_action rollback goes back to a checkpoint, and the run saves none",
                          "name a folder with --save, and --save_interval, or take --loss_spike_action skip");
    }
    if (config.checkpoint.no_save_optim) {
      errors.emplace_back("loss_spike_action rollback loads the optimizer's state, which no_save_optim leaves out",
                          "leave --no_save_optim out, or take --loss_spike_action skip");
    }
  }
  return errors;
}

// Checks without a model.
void check_run(Resolved& resolved, int64_t world_size, std::vector<UserError>& errors) {
  const Config& config = resolved.config;
  Derived& d = resolved.derived;
  d.data = config.data;
  d.data_parallel = config.data_parallel;
  d.world_size = world_of_run(resolved, world_size);
  const std::vector<UserError> parallel_errors = check_parallel_sizes(config.parallel, d.world_size);
  append(errors, parallel_errors);
  const int64_t model_ranks = config.parallel.tensor_model_parallel_size *
                              config.parallel.pipeline_model_parallel_size * config.parallel.context_parallel_size;
  d.data_parallel_size = parallel_errors.empty() ? d.world_size / model_ranks : 1;
  d.micro_batch_size = config.train.micro_batch_size;
  append(errors, check_data_options(config.data));
  append(errors, check_checkpoint_options(config.checkpoint));
  append(errors, check_log_options(config.log));
  append(errors, check_profile_options(config.profile));
  if (const auto& device = config.train.dry_run_device) {
    if (auto error = check_dry_run_device(*device)) errors.push_back(std::move(*error));
  }
  append(errors, check_optimizer_options(config.optimizer));
  append(errors,
         check_best_options(config.train.best, config.checkpoint.save.has_value(), config.train.eval_iters > 0));
  append(errors, check_rate_finder(config.train.rate_finder));
  append(errors, check_freeze(config));
  append(errors, check_faults(config));
  append(errors, resolve_fsdp(d.data_parallel, *resolved.options, resolved.notes));
  append(errors, check_data_parallel_options(d.data_parallel, config.parallel));
  if (parallel_errors.empty()) append(errors, check_fault_tolerance(config, d));
  check_host_memory(config, d, resolved.notes, errors);
  if (config.data_parallel.use_torch_fsdp2 && config.parallel.tensor_model_parallel_size > 1) {
    resolved.notes.push_back(
        fmt::format("use_torch_fsdp2 with tensor_model_parallel_size {} works, but guides to FSDP2 find 1 faster",
                    config.parallel.tensor_model_parallel_size));
  }
  if (config.runtime.device.deterministic_mode &&
      config.runtime.gemm_tuning.gemm_tuning == ops::gpu::GemmTuning::kTune) {
    errors.emplace_back("gemm_tuning tune chooses by time, which varies from run to run: not with deterministic_mode",
                        "tune once without it, then add --gemm_tuning use");
  }
  check_run_length(config, d, errors);
  check_precision(config, d, errors);
  if (config.optimizer.master_weights == MasterWeights::kNone && !config.optimizer.stochastic_rounding) {
    resolved.notes.emplace_back(
        "master_weights none without stochastic_rounding: steps smaller than half a unit of bf16 change nothing");
  }
  try {
    // Passes are not counted yet; until then any curve fits.
    const int64_t samples = config.train.train_epochs ? kLongestRun : d.schedule_samples;
    if (d.train_iters > 0) LearningRateCurve(config.learning_rate, samples, d.global_batch_size);
  } catch (const UserErrors& several) {
    append(errors, several.errors());
  }
}

// All but the vocabulary, which the tokenizer may set.
std::vector<UserError> check_architecture(ModelConfig architecture) {
  if (architecture.has_vocabulary()) architecture.vocab_size.reset();
  return check_model_config(architecture);
}

// The architecture has no errors.
MxSizes mx_sizes(const Config& config) {
  const ModelConfig& model = config.model;
  const int64_t tp = config.parallel.tensor_model_parallel_size;
  return {.has_experts = model.has_experts(),
          .is_of_pictures = !model.has_vocabulary(),
          .widths = {{"hidden_size", model.hidden_size},
                     {"a rank's share of ffn_hidden_size", model.ffn_size() / tp},
                     {"a rank's share of the heads' channels", model.num_attention_heads * model.head_dim() / tp}}};
}

// Checks of the architecture, after check_run().
void check_model(Resolved& resolved, bool reads_batches, std::vector<UserError>& errors) {
  const Config& config = resolved.config;
  Derived& d = resolved.derived;
  const std::vector<UserError> architecture_errors = check_architecture(config.model);
  append(errors, architecture_errors);
  static struct RunOptions : Config {
    void visit(OptionVisitor& v) { visit_run(v); }
  } fresh;
  static const OptionSet untouched(fresh);
  check_readers(*resolved.options, untouched, config.model.model_type, errors);
  const int64_t tp = config.parallel.tensor_model_parallel_size;
  if (architecture_errors.empty()) {
    append(errors, check_model_layout(config.model, {tp, config.parallel.expert_model_parallel_size,
                                                     config.parallel.expert_tensor_parallel_size.value_or(tp)}));
  }
  append(errors,
         check_recompute_options(config.recompute, {.num_layers = config.model.num_all_layers(),
                                                    .has_experts = config.model.has_experts(),
                                                    .has_shared_experts = config.model.shared_expert_size() > 0,
                                                    .has_latent_attention = config.model.multi_latent_attention}));
  append(errors, check_fp8_options(config.fp8, config.model.num_all_layers(),
                                   architecture_errors.empty() ? mx_sizes(config) : MxSizes()));
  for (std::string& note : fp8_notes(config.fp8)) resolved.notes.push_back(std::move(note));
  append(errors, check_adapters_are_meant(*resolved.options, config.lora));
  append(errors, check_lora_options(config.lora));
  append(errors, check_attention_backend(config.runtime, resolved.notes));
  append(errors, check_graph_options(config, resolved.notes));
  if (config.model.has_experts() && config.model.moe_token_dispatcher_type == "flex") {
    resolved.notes.emplace_back("moe_token_dispatcher_type flex is alltoall here");
  }
  for (std::string& note : recompute_notes(config.recompute, config.model.num_all_layers())) {
    resolved.notes.push_back(std::move(note));
  }
  resolved.kind().check_sequence(config, d, errors);
  append(errors, check_context_parallel_model(
                     config.parallel, {.num_layers = config.model.num_all_layers(),
                                       .num_heads = config.model.num_attention_heads,
                                       .num_kv_heads = config.model.num_kv_heads(),
                                       .seq_length = reads_batches ? std::optional(d.seq_length) : std::nullopt}));
  resolved.kind().check_layout(config, errors);
  resolve_sequence_parallel(resolved, reads_batches, errors);
  check_encoder_ranks(config, resolved.notes, errors);
  // FLUX's units need both kinds of blocks.
  if (config.model.has_vocabulary() || architecture_errors.empty()) {
    resolve_pipeline(config, d, resolved.notes, errors);
  }
}

// Checks of the tokenizer, after check_model().
void check_vocabulary(Resolved& resolved, bool reads_batches, std::vector<UserError>& errors) {
  resolve_vocabulary(resolved, errors);
  // A named tokenizer that does not open is one error, not two.
  const bool lacks_tokenizer = resolved.tokenizer == nullptr && resolved.derived.tokenizer.is_named();
  if (reads_batches && !lacks_tokenizer) resolved.kind().check_task(resolved, errors);
  ModelConfig architecture = resolved.config.model;
  if (!check_architecture(architecture).empty()) return;  // reported already
  architecture.vocab_size = resolved.derived.vocab_size;
  const std::vector<UserError> architecture_errors = check_model_config(architecture);
  append(errors, architecture_errors);
  if (architecture_errors.empty()) {
    append(errors, check_adapters(resolved, architecture));
    append(errors, check_packed_weights(resolved, architecture));
  }
  // Fail now, not after the last step, if the model cannot be exported.
  const bool is_known = !architecture.has_vocabulary() || architecture.vocab_size.value_or(0) > 0;
  if (architecture_errors.empty() && resolved.config.checkpoint.save_hf && is_known) {
    try {
      make_hf_config(family_for(architecture), architecture, at::kFloat);
    } catch (const UserError& error) {
      errors.emplace_back("save_hf: " + error.message(), error.remedy());
    }
  }
}

// Fills unset architecture options. False if unknown: unreadable, or to be fetched while there are errors.
bool read_architecture(Resolved& resolved, HubPaths& hub, const CommandNeeds& needs, std::vector<UserError>& errors) {
  const CheckpointOptions& checkpoint = resolved.derived.checkpoint;
  const bool needs_weights = needs.weights == CommandNeeds::Weights::kRequired;
  if (needs_weights && !checkpoint.load && !checkpoint.load_hf) {
    errors.emplace_back("no weights given", "name them with --load DIR or --load_hf DIR");
    return false;
  }
  try {
    const ModelConfig& model = resolved.config.model;
    const bool is_planned = resolved.config.train.dry_run && model.num_layers > 0 && model.hidden_size > 0;
    if (is_planned && hub.is_out_of_reach(resolved, checkpoint.load_hf)) {
      resolved.notes.push_back(fmt::format(
          "load_hf {} is not here, and HF_HUB_OFFLINE is set: the model is the one that the options say",
          *checkpoint.load_hf));
      resolved.derived.checkpoint.load_hf.reset();
    }
    if (needs.weights != CommandNeeds::Weights::kIgnored) check_weight_paths(resolved, needs_weights);
    if (checkpoint.load_hf) {
      if (!hub.find_model(resolved, errors.empty())) return false;
      apply_hf_architecture(resolved);
      if (needs.weights != CommandNeeds::Weights::kIgnored) apply_adapter_form(resolved);
    } else if (checkpoint.load) {
      // A run may start without a checkpoint, but not without a model.
      const bool says_nothing = resolved.config.model.num_layers == 0 && resolved.config.model.hidden_size == 0;
      const auto foreign = foreign_load(resolved);
      if (says_nothing && !foreign && !loads_where_it_saves(checkpoint)) {
        if (auto error = check_checkpoint_path("load", *checkpoint.load, /*may_be_absent=*/false)) throw *error;
      }
      if (foreign) {
        apply_foreign_architecture(resolved, *foreign);
      } else {
        apply_checkpoint_architecture(resolved, *checkpoint.load);
      }
    }
    return true;
  } catch (const UserErrors& several) {
    append(errors, several.errors());
  } catch (const UserError& error) {
    errors.push_back(error);
  }
  return false;
}

// Mirrors checkpoints in object storage, which is not asked while there are errors.
void pull_stored_checkpoints(const Config& config, const CommandNeeds& needs, std::vector<UserError>& errors) {
  const CheckpointOptions& options = config.checkpoint;
  const bool reads = needs.weights != CommandNeeds::Weights::kIgnored;
  const bool writes = needs.writes_run && !config.train.skip_train;
  Logger log;
  for (const auto& [path, is_used] : {std::pair(&options.save, writes), std::pair(&options.load, reads),
                                      std::pair(&options.pretrained_checkpoint, reads)}) {
    if (!is_used || !*path || !is_object_url(**path)) continue;
    throw_if_any(errors);
    if (path == &options.save) check_stored_writable(**path, log);
    if (path == &options.save || *path != options.save) pull_checkpoints(**path, log);
  }
}

// Resolves a run's folder to its checkpoints, and a diffusers pipeline's to its transformer.
CheckpointOptions with_folders_of_checkpoints(CheckpointOptions options) {
  for (std::optional<std::string>* path : {&options.save, &options.load, &options.pretrained_checkpoint}) {
    if (*path) *path = local_path(**path);
  }
  for (std::optional<std::string>* path : {&options.load, &options.pretrained_checkpoint}) {
    if (*path) *path = checkpoints_of(**path).string();
  }
  // diffusers keeps the model in a subfolder.
  if (options.load_hf) options.load_hf = model_folder_of(*options.load_hf).string();
  return options;
}

}  // namespace

void derive_and_check(Resolved& resolved, int64_t world_size, std::vector<UserError>& errors, bool reads_batches) {
  resolved.derived.checkpoint = with_folders_of_checkpoints(resolved.config.checkpoint);
  resolved.derived.tokenizer = resolved.config.tokenizer;
  check_run(resolved, world_size, errors);
  check_model(resolved, reads_batches, errors);
  check_vocabulary(resolved, reads_batches, errors);
}

std::unique_ptr<Resolved> resolve_config(Kinds kinds, const ConfigInputs& inputs, int64_t world_size,
                                         const std::function<void(OptionVisitor&)>& extra, const CommandNeeds& needs) {
  auto resolved = std::make_unique<Resolved>(kinds, extra);
  Resolution resolution = try_resolve(*resolved->options, inputs);
  resolved->notes = resolution.notes;
  resolved->wants_help = resolution.wants_help;
  resolved->header = resolution.header;
  resolved->exports = resolution.exports;
  if (resolution.wants_help) return resolved;
  std::vector<UserError>& errors = resolution.errors;
  append(errors, refuse_urls(*resolved->options, {"load", "save", "pretrained_checkpoint", "data_path",
                                                  "train_data_path", "valid_data_path", "test_data_path"}));
  const OptionSet& options = *resolved->options;
  const TrainOptions& train = resolved->config.train;
  keep_highest(*resolved,
               {&options.of(train.train_iters), &options.of(train.train_samples), &options.of(train.train_epochs)});
  prefer_steps_to_epochs(*resolved);
  name_device_of_file(*resolved, resolution.config_file);
  keep_highest(*resolved, {&options.of(train.global_batch_size), &options.of(train.gradient_accumulation_steps)});
  if (needs.writes_run) place_run_folder(*resolved->options, resolution);
  if (needs.opens_data) set_up_rate_finder(*resolved);
  place_outputs(*resolved->options, resolved->config);
  HubPaths hub(inputs.environment, resolution.exports);
  const Config& config = resolved->config;
  if (needs.adjust) needs.adjust(resolved->config);
  if (needs.hold_folders && errors.empty()) needs.hold_folders(config);
  pull_stored_checkpoints(config, needs, errors);
  resolved->derived.checkpoint = with_folders_of_checkpoints(config.checkpoint);
  continue_automatically(*resolved);
  // Cross-option rules would only add noise to unreadable values.
  const bool is_readable = errors.empty();
  if (is_readable) check_run(*resolved, world_size, errors);
  const bool has_architecture = read_architecture(*resolved, hub, needs, errors);
  for (std::string& note : leave_out_unread(options, config.model.model_type, options.of(train.seq_length))) {
    resolved->notes.push_back(std::move(note));
  }
  name_task_of_model(*resolved);
  leave_out_dropout_of_pairs(*resolved);
  resolved->derived.tokenizer = config.tokenizer;
  resolved->derived.encoders = config.encoders;
  name_tokenizer_of_texts(*resolved);
  resolved->derived.is_hub_out_of_reach =
      config.train.dry_run && hub.is_out_of_reach(*resolved, config.tokenizer.tokenizer_model);
  if (is_readable && has_architecture) {
    check_model(*resolved, needs.reads_batches, errors);
    try {
      if (unopened_vocabulary(*resolved) || hub.find_tokenizer(*resolved, errors.empty()))
        check_vocabulary(*resolved, needs.reads_batches, errors);
    } catch (const UserError& error) {
      errors.push_back(error);
    }
  } else if (is_readable && resolved->derived.tokenizer.is_named() && hub.find_tokenizer(*resolved, false)) {
    // Its file may be missing too.
    resolve_vocabulary(*resolved, errors);
  }
  if (needs.opens_data && is_readable) append(errors, check_data(*resolved));
  if (needs.weights != CommandNeeds::Weights::kIgnored && has_architecture) append(errors, check_weights(*resolved));
  if (errors.empty() && config.samples.is_on()) append(errors, resolved->kind().check_samples(*resolved));
  if (needs.more_checks && is_readable) append(errors, needs.more_checks(*resolved));
  if (!errors.empty() && is_readable) append(errors, hub.not_here(*resolved));
  throw_if_any(errors);
  if (config.train.dry_run) {
    if (needs.opens_data) hub.look_for_data(*resolved);
    if (config.train.train_epochs) {
      resolved->notes.push_back(fmt::format("train_epochs {}: steps are counted once the rows are tokens; {} are shown",
                                            number_text(*config.train.train_epochs), resolved->derived.train_iters));
    }
  } else {
    hub.fetch_large_files(*resolved);
    if (config.train.train_epochs && needs.opens_data) count_epochs(*resolved);
  }
  return resolved;
}

}  // namespace megalith
