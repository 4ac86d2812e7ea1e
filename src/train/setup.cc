#include "train/setup.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <span>

#include "checkpoint/adapter_base.h"
#include "checkpoint/adapter_folder.h"
#include "checkpoint/checkpoint_reader.h"
#include "checkpoint/hf.h"
#include "checkpoint/manifest.h"
#include "checkpoint/resume.h"
#include "comm/groups.h"
#include "comm/single_group.h"
#include "core/error.h"
#include "core/strings.h"
#include "device/memory.h"
#include "models/model_bounds.h"
#include "models/model_head.h"
#include "nn/low_rank_adapter.h"
#include "optim/update_rules.h"
#include "parallel/fsdp.h"
#include "train/adapters.h"
#include "train/attention_choice.h"
#include "train/build_units.h"
#include "train/foreign_load.h"
#include "train/frozen_weights.h"
#include "train/text_tokenizer.h"

namespace megalith {

ModelChunks BuiltModel::view() const {
  std::vector<Model*> models;
  for (const auto& chunk : chunks) models.push_back(chunk.get());
  return {std::move(models), pipeline, deferred.get()};
}

std::vector<Parameter*> BuiltModel::parameters() const {
  std::vector<Parameter*> all;
  for (const auto& chunk : chunks) {
    const std::vector<Parameter*> some = chunk->parameters();
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

std::vector<CheckpointTensor> BuiltModel::recipe_tensors() const {
  std::vector<CheckpointTensor> tensors;
  for (const auto& chunk : chunks) {
    if (chunk->recipe_memory() == nullptr) continue;
    for (const RecipeMemory::State& state : chunk->recipe_memory()->states()) {
      tensors.push_back({.key = state.key,
                         .placement = &state.placement,
                         .local = state.tensor,
                         .range = std::nullopt,
                         .replica_axes = state.placement.replica_axes,
                         .is_optional = true});
    }
  }
  return tensors;
}

int64_t BuiltModel::num_parameters() const {
  int64_t count = 0;
  for (const auto& chunk : chunks) count += chunk->num_parameters();
  return count;
}

namespace {

// Refuses, before allocation, weights too large by themselves for this machine's ranks; counts without storage, only
// when in doubt.
void check_weights_fit(const Resolved& resolved, const ModelConfig& config, LayerContext context, at::Device device) {
  if (device.is_meta() || resolved.config.runtime.allow_oversubscription) return;
  const auto element_bytes = static_cast<double>(c10::elementSize(context.dtype));
  const auto memory = static_cast<double>(memory_stats(device).total_bytes);
  if (memory <= 0 || count_matrix_elements(config) * element_bytes <= memory) return;
  context.device = context.buffer_device.emplace(at::kMeta);
  const BuiltModel built = build_chunks(config, context, resolved.derived.pipeline, resolved.config.recompute);
  const bool is_divided = resolved.derived.data_parallel.use_torch_fsdp2;
  double elements = 0, bytes = 0;
  for (const Parameter* parameter : built.parameters()) {
    const auto ranks = static_cast<double>(is_divided ? num_sharding_ranks(*parameter, *context.groups) : 1);
    elements += static_cast<double>(parameter->placement().num_canonical_elements()) / ranks;
    bytes += static_cast<double>(parameter->num_bytes()) / ranks;
  }
  if (bytes <= memory) return;
  const bool are_packed = resolved.config.lora.packs_weights();
  throw UserError(
      fmt::format("the weights of a rank take {} ({} parameters in {}), and its device has {}",
                  format_bytes(static_cast<int64_t>(bytes)), format_count(elements),
                  are_packed ? "nf4" : c10::toString(context.dtype), format_bytes(static_cast<int64_t>(memory))),
      "spread the model over more ranks (tensor_model_parallel_size, pipeline_model_parallel_size, "
      "use_torch_fsdp2), or choose a smaller one");
}

std::map<std::string, std::vector<int>> copied_parameters(const std::map<std::string, std::set<int>>& holders,
                                                          const Groups& groups) {
  std::map<std::string, std::vector<int>> copied;
  std::set<std::vector<int>> own;
  for (const auto& [parameter, ranks] : holders) {
    if (ranks.size() == 1) continue;
    copied[parameter] = {ranks.begin(), ranks.end()};
    if (ranks.contains(groups.pp->rank())) own.insert(copied[parameter]);
  }
  // All holders connect, set after set in one order, to avoid deadlock.
  for (const std::vector<int>& places : own) groups.on_stages(places)->connect();
  return copied;
}

// Parameters of this rank's earlier chunks that these units use.
std::map<std::string, Parameter*> find_used_parameters(std::span<const Unit> units, const BuiltModel& built) {
  std::set<std::string> names;
  for (const Unit& unit : units) {
    for (const UsedParameter& used : unit.uses) names.insert(used.parameter);
  }
  std::map<std::string, Parameter*> found;
  if (names.empty()) return found;
  for (Parameter* parameter : built.parameters()) {
    if (names.contains(parameter->name())) found.emplace(parameter->name(), parameter);
  }
  return found;
}

ModelConfig config_of_model(const Resolved& resolved) {
  ModelConfig config = resolved.config.model;
  config.vocab_size = resolved.derived.vocab_size;
  return config;
}

LayerContext context_of_layers(const Resolved& resolved, const Groups& groups, at::Device device,
                               bool allocates_weights) {
  LayerContext context;
  context.groups = &groups;
  context.dtype = resolved.derived.dtype;
  context.device = allocates_weights ? device : at::kMeta;
  context.buffer_device = device;
  context.kernels = resolved.config.runtime.kernels;
  // No copies of what FSDP frees.
  context.recipe = make_recipe(resolved.config.fp8, context.kernels,
                               /*keeps_weights=*/!resolved.derived.data_parallel.use_torch_fsdp2);
  context.is_sequence_parallel = resolved.derived.is_sequence_parallel;
  context.seed = static_cast<uint64_t>(resolved.config.train.seed);
  context.embedding_noise = resolved.config.train.neftune_noise_alpha;
  context.recompute = resolved.config.recompute.selective();
  context.context_parallel_kinds = context_parallel_kinds(resolved.config.parallel);
  context.lora = adapters_of(resolved.config);
  return context;
}

// A stage after the other, those of this rank.
void add_chunks(BuiltModel& built, const ModelConfig& config, LayerContext context,
                const std::vector<UnitRange>& stages, const std::map<std::string, std::vector<int>>& copied,
                const RecomputeOptions& recompute) {
  context.deferred_gradients = built.deferred.get();
  built.family = &family_for(config);
  const PipelinePlan& pipeline = built.pipeline;
  for (const UnitRange& stage : stages) {
    const LayerRange layers = pipeline.layers_of(stage);
    built.recompute.push_back(make_recompute_plan(recompute, layers.first, layers.count));
    ModelPart part{.units = pipeline.units,
                   .range = stage,
                   .layers_per_block = built.recompute.back().layers_per_block,
                   .copied = copied};
    part.found = find_used_parameters(part.own_units(), built);
    if (context.recipe != nullptr) context.recipe = context.recipe->for_chunk();
    built.chunks.push_back(built.family->build(config, context, part));
    if (context.recipe != nullptr) built.chunks.back()->set_recipe_memory(context.recipe->memory());
  }
  if (context.lora != nullptr) freeze_all_but_adapters(built.parameters(), *context.lora);
}

}  // namespace

BuiltModel build_model(const Resolved& resolved, const Groups& groups, at::Device device, bool allocates_weights) {
  const ModelConfig config = config_of_model(resolved);
  LayerContext context = context_of_layers(resolved, groups, device, allocates_weights);
  check_weights_fit(resolved, config, context, device);
  AttentionChoice attention = choose_attention(resolved, device);
  context.attention_libraries = attention.libraries;
  BuiltModel built = build_chunks(config, context, resolved.derived.pipeline, resolved.config.recompute);
  built.attention = std::move(attention.text);
  freeze_weights(resolved.config, built.parameters());
  return built;
}

BuiltModel build_chunks(const ModelConfig& config, LayerContext context, const PipelinePlan& pipeline,
                        const RecomputeOptions& recompute) {
  BuiltModel built;
  built.pipeline = pipeline;
  const PipelineShape shape = pipeline.shape(1);
  if (pipeline.splits_backward()) built.deferred = std::make_unique<DeferredGradients>();
  std::vector<UnitRange> stages;
  for (int chunk = 0; chunk < pipeline.num_chunks; ++chunk) {
    const int stage = shape.stage_of(context.groups->pp->rank(), chunk);
    stages.push_back(pipeline.stages.at(static_cast<size_t>(stage)));
  }
  const auto copied = copied_parameters(pipeline.parameter_holders(), *context.groups);
  add_chunks(built, config, context, stages, copied, recompute);
  return built;
}

BuiltModel build_units(const Resolved& resolved, const Groups& groups, const std::vector<UnitRange>& units,
                       const std::map<std::string, std::set<int>>& holders) {
  BuiltModel built;
  built.pipeline.units = resolved.derived.pipeline.units;
  LayerContext context = context_of_layers(resolved, groups, at::kMeta, true);
  context.recipe = nullptr;
  add_chunks(built, config_of_model(resolved), context, units, copied_parameters(holders, groups), {});
  freeze_weights(resolved.config, built.parameters());
  return built;
}

std::unique_ptr<DataParallel> make_data_parallel(const Resolved& resolved, const BuiltModel& built,
                                                 const Groups& groups, at::Device device) {
  std::vector<Block> blocks;
  for (const auto& chunk : built.chunks) blocks.insert(blocks.end(), chunk->blocks().begin(), chunk->blocks().end());
  std::unique_ptr<DataParallel> data =
      make_data_parallel(built.parameters(), groups, resolved.derived.data_parallel, blocks, device,
                         bucket_cut(resolved.config.optimizer));
  if (auto* fsdp = dynamic_cast<Fsdp*>(data.get())) fsdp->reduce_after(built.deferred.get());
  return data;
}

BlockRunners set_block_runners(const BuiltModel& built, DataParallel& data, at::Device device) {
  BlockRunners runners;
  const auto offloads = [](const RecomputePlan& plan) { return !plan.offloaded.empty(); };
  if (std::any_of(built.recompute.begin(), built.recompute.end(), offloads)) {
    runners.offload = std::make_unique<HostOffload>(device);
  }
  for (size_t chunk = 0; chunk < built.chunks.size(); ++chunk) {
    runners.of_chunks.push_back(
        std::make_unique<RecomputeRunner>(built.recompute[chunk], data.runner(), runners.offload.get()));
    built.chunks[chunk]->set_runner(runners.of_chunks.back().get());
  }
  return runners;
}

namespace {

// Tensors of the adapters or of the rest; the whole model's others as skipped.
std::vector<CheckpointTensor> tensors_of(const BuiltModel& built, const BuiltModel* whole, bool are_adapters) {
  const auto tensors = [&](const BuiltModel& model) {
    std::vector<Parameter*> parameters = model.parameters();
    // Saved modules begin as the base's.
    std::erase_if(parameters, [&](const Parameter* p) {
      return are_adapters ? !belongs_to_adapters(*p) : p->options().is_adapter;
    });
    return model_tensors(parameters);
  };
  std::vector<CheckpointTensor> all = tensors(built);
  if (whole == nullptr) return all;
  for (CheckpointTensor& tensor : tensors(*whole)) {
    tensor.is_passed_over = true;
    all.push_back(std::move(tensor));
  }
  return all;
}

}  // namespace

void load_weights(const Resolved& resolved, const BuiltModel& built, const Groups& groups, Logger& log,
                  const BuiltModel* whole) {
  const CheckpointOptions& options = resolved.derived.checkpoint;
  const bool has_adapters = resolved.config.lora.enabled;
  if (has_adapters && (!options.load_hf || (!options.load && !options.adapter))) {
    throw UserError("lora.enabled needs the model and its adapters",
                    "name the model with --load_hf, and the adapters with --adapter or their checkpoint with --load");
  }
  if (options.load_hf && (has_adapters || !options.load)) {
    load_hf(*options.load_hf, tensors_of(built, whole, /*are_adapters=*/false), groups, nullptr,
            options.nonfinite_weights(), find_head(built.config().model_type));
  }
  const auto check_adapters_base = [&](const std::optional<std::string>& stored, const std::string& adapters) {
    if (stored) check_base(stored, checksum_of_base(*options.load_hf, *groups.world), adapters, *options.load_hf);
  };
  if (has_adapters && options.adapter) {
    check_adapters_base(stored_base_of(std::filesystem::path(*options.adapter)), *options.adapter);
    load_adapter(*options.adapter, tensors_of(built, whole, /*are_adapters=*/true), groups,
                 options.nonfinite_weights());
    return;
  }
  if (options.load) {
    const auto foreign = foreign_load(resolved);
    const auto found =
        foreign ? std::nullopt : find_checkpoint(*options.load, options.ckpt_step, *groups.world, log);
    if (!foreign && !found) {
      throw UserError(fmt::format("{} holds no checkpoint", *options.load),
                      "give the folder that --save named, or one checkpoint of it");
    }
    const std::filesystem::path folder = foreign ? foreign->folder : found->folder;
    std::vector<std::string> notes;
    const auto open = [&] {
      return foreign ? open_foreign_load(*foreign, resolved, /*with_optimizer=*/false, notes) : open_checkpoint(folder);
    };
    if (found && has_adapters) {
      check_adapters_base(stored_base_of(load_manifest(folder).configuration), folder.string());
    }
    CheckpointState state;
    state.tensors = tensors_of(built, whole, has_adapters);
    for (CheckpointTensor& tensor : built.recipe_tensors()) state.tensors.push_back(std::move(tensor));
    state.architecture = architecture_of(built.config());
    std::set<std::string> begun_afresh;
    load_checkpoint(open, state, groups,
                    {.with_optimizer = false, .begun_afresh = &begun_afresh, .nonfinite = options.nonfinite_weights()});
    for (const std::string& note : notes) log.note("{}", note);
    note_begun_afresh(folder, begun_afresh, log);
    return;
  }
  if (options.load_hf) return;
  throw UserError("no weights given", "name them with --load DIR or --load_hf DIR");
}

std::unique_ptr<Tokenizer> find_tokenizer(const Resolved& resolved) {
  if (const auto folder = text_tokenizer(resolved); folder && std::filesystem::exists(*folder)) {
    TokenizerOptions tokenizer;
    tokenizer.tokenizer_type = "HuggingFaceTokenizer";
    tokenizer.tokenizer_model = *folder;
    return make_tokenizer(tokenizer);
  }
  auto bytes = make_byte_tokenizer();
  if (bytes->vocab_size() == resolved.derived.vocab_size) return bytes;
  return nullptr;
}

std::vector<int64_t> find_stop_ids(const Resolved& resolved, const Tokenizer* tokenizer) {
  std::vector<int64_t> ids = resolved.config.model.eos_token_ids;
  if (tokenizer != nullptr && tokenizer->eod()) ids.push_back(*tokenizer->eod());
  return ids;
}

std::unique_ptr<Task> make_task(const Resolved& resolved) {
  return resolved.kind().make_task(resolved);
}

DataSetup make_data_setup(const Resolved& resolved) {
  const Derived& d = resolved.derived;
  const TrainOptions& train = resolved.config.train;
  DataSetup setup;
  setup.sequence_length = d.seq_length;
  setup.seed = static_cast<uint32_t>(train.seed);
  setup.vocab_size = d.vocab_size;
  setup.eod = d.eod_id;
  if (resolved.tokenizer != nullptr) {
    // A padding token that also ends documents must keep its loss.
    if (resolved.tokenizer->pad() && *resolved.tokenizer->pad() != d.eod_id) setup.pad_id = *resolved.tokenizer->pad();
  }
  const int64_t eval_samples = std::max<int64_t>(train.eval_iters, 0) * d.global_batch_size;
  setup.num_samples = {train.skip_train ? 0 : d.train_samples, (d.train_iters / train.eval_interval + 1) * eval_samples,
                       eval_samples};
  return setup;
}

}  // namespace megalith
