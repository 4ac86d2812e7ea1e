// Megatron-core's torch_dist to write: the distributed optimizer's fully_reshardable form, which any layout loads, and
// under the same names what its other optimizers ask for.
// Source: megatron-core 0.16, core/optimizer/{distrib_optimizer,optimizer}.py, core/optimizer_param_scheduler.py,
// core/transformer/transformer_layer.py; Megatron-LM, megatron/training/checkpointing.py.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "config/record.h"
#include "core/file.h"
#include "foreign/foreign_target.h"
#include "foreign/megatron_names.h"
#include "foreign/pickle_writer.h"
#include "foreign/torch_archive_writer.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

using namespace pickled;  // NOLINT: opcodes read like words

std::vector<std::string> state_names(std::string_view key, std::string_view parameter) {
  const auto named = [&](std::string_view theirs) { return fmt::format("optimizer.state.{}.{}", theirs, parameter); };
  // The distributed optimizer's word, and the other's for half precision.
  if (key == kMasterKey) return {named("param"), named("fp32_param")};
  return {named(key)};
}

std::vector<ExportedTensor> megatron_exports(const CanonicalModel& model) {
  std::vector<ExportedTensor> tensors;
  for (MegatronTensor& tensor : megatron_tensors(model)) {
    tensors.push_back({.names = std::move(tensor.names), .layout = std::move(tensor.layout)});
  }
  return tensors;
}

// Modules with a state of FP8, which loading asks for by layer and expert: empty.
std::vector<std::string> extra_states(const std::vector<ExportedTensor>& tensors) {
  std::set<std::string> names;
  const auto add = [&](const std::string& module, const std::vector<int64_t>& counts) {
    int64_t total = 1;
    for (const int64_t count : counts) total *= count;
    for (int64_t i = 0; i < total; ++i) {
      std::vector<int64_t> at(counts.size());
      for (size_t d = counts.size(), rest = static_cast<size_t>(i); d-- > 0;) {
        at[d] = static_cast<int64_t>(rest) % counts[d];
        rest /= static_cast<size_t>(counts[d]);
      }
      names.insert(fmt::format("{}._extra_state/shard_{}_{}", module, fmt::join(at, "."), fmt::join(counts, ".")));
    }
  };
  for (const ExportedTensor& tensor : tensors) {
    const std::vector<int64_t>& shape = tensor.layout.shape;
    const size_t num_leading = tensor.layout.num_leading_dims();
    std::vector<int64_t> counts(shape.begin(), shape.begin() + static_cast<ptrdiff_t>(num_leading));
    if (counts.empty()) counts = {1};
    for (const std::string& name : tensor.names) {
      const std::string module = name.substr(0, name.rfind('.'));
      add(module, counts);
      constexpr std::string_view kProjection = ".linear_proj";
      if (module.ends_with(kProjection)) {
        add(module.substr(0, module.size() - kProjection.size()) + ".core_attention", counts);
      }
    }
  }
  return {names.begin(), names.end()};
}

// An option's value as Megatron-LM's parser has it; "" for lists and the unset.
std::string argument(std::string_view text_of_option) {
  const std::string value = plain_text(text_of_option);
  if (value == "true" || value == "false") return boolean(value == "true");
  if (value.empty() || value == "null" || value.starts_with('[')) return "";
  const char *begin = value.data(), *end = begin + value.size();
  int64_t count = 0;
  if (std::from_chars(begin, end, count).ptr == end) return whole(count);
  double number = 0;
  if (std::from_chars(begin, end, number).ptr == end) return real(number);
  return text(value);
}

// The model's options, and what loading compares or asks for.
std::string arguments(const ForeignContents& contents) {
  constexpr const char* kPositions = "max_position_embeddings";
  const StoredModel& model = contents.model;
  Entries fields;
  for (const auto& [name, value] : model.state.architecture) {
    if (name == kPositions) continue;  // 0 where weights do not depend on it
    if (std::string written = argument(value); !written.empty()) fields.emplace_back(name, std::move(written));
  }
  const std::pair<const char*, std::string> more[] = {
      {kPositions, whole(model.config.max_position_embeddings)},
      {"padded_vocab_size", whole(*model.config.vocab_size)},
      {"tokenizer_type", none()},
      {"seq_length", whole(contents.settings.seq_length)},
      {"iteration", whole(model.state.train.iteration)},
      {"consumed_train_samples", whole(model.state.train.consumed_train_samples)},
      {"consumed_valid_samples", whole(0)},
      {"skipped_train_samples", whole(0)},
      {"global_batch_size", whole(contents.settings.batch)},
      {"seed", whole(model.state.train.seed)},
      {"tensor_model_parallel_size", whole(1)},
      {"pipeline_model_parallel_size", whole(1)},
      {"world_size", whole(1)},
      {"data_parallel_random_init", boolean(false)},
      {"use_distributed_optimizer", boolean(true)},
      {"ckpt_format", text("torch_dist")},
      {"no_save_rng", boolean(true)},
      {"no_save_optim", boolean(!contents.with_optimizer)},
  };
  fields.insert(fields.end(), std::begin(more), std::end(more));
  return object("argparse", "Namespace", dict(fields));
}

// Loading looks a group up by its four first entries.
std::string parameter_group(const ForeignContents& contents, bool decays) {
  const RunSettings& run = contents.settings;
  return dict({
      {"wd_mult", real(decays ? 1 : 0)},
      {"lr_mult", real(1)},
      {"is_expert_parallel", boolean(false)},
      {"is_decoupled_lr", boolean(false)},
      {"default_config", boolean(true)},
      {"max_lr", real(run.learning_rate.lr)},
      {"min_lr", real(run.learning_rate.min_lr)},
      {"lr", real(run.next_lr)},
      {"weight_decay", real(decays ? run.next_weight_decay : 0)},
      {"betas", tuple({real(run.optimizer.adam_beta1), real(run.optimizer.adam_beta2)})},
      {"eps", real(run.optimizer.adam_eps)},
      {"bias_correction", boolean(true)},
      {"amsgrad", boolean(false)},
      {"maximize", boolean(false)},
      {"foreach", none()},
      {"fused", none()},
      {"capturable", boolean(false)},
      {"differentiable", boolean(false)},
      {"decoupled_weight_decay", boolean(true)},
      {"step", whole(contents.model.state.train.optimizer_step)},
  });
}

// Tensors of common.pt: updates and loss scale.
std::string storage_of(const TrainState& train) {
  const auto scale = train.numbers.find("loss_scale");
  const float numbers[] = {static_cast<float>(train.optimizer_step),
                           scale == train.numbers.end() ? 0 : static_cast<float>(scale->second)};
  return {reinterpret_cast<const char*>(numbers), sizeof(numbers)};
}
std::string number_in_storage(int64_t index) { return tensor("FloatStorage", "0", 2, index, {}, {}); }

std::string optimizer(const ForeignContents& contents) {
  const std::string state = dict({{"common_step", number_in_storage(0)}}),
                    groups = list({parameter_group(contents, true), parameter_group(contents, false)});
  // As the distributed optimizer and mixed precision have it; the last two, as fp32.
  Entries fields = {{"optimizer", dict({{"param_groups", groups}, {"state", state}})},
                    {"param_state_sharding_type", text("fully_reshardable")},
                    {"param_groups", groups},
                    {"state", state}};
  const std::map<std::string, double>& numbers = contents.model.state.train.numbers;
  if (const auto scale = numbers.find("loss_scale"); scale != numbers.end()) {
    const auto count = [&](const char* name) {
      const auto found = numbers.find(name);
      return whole(found == numbers.end() ? 0 : static_cast<int64_t>(found->second));
    };
    fields.emplace_back("grad_scaler", dict({{"scale", number_in_storage(1)},
                                             {"growth_tracker", count("loss_scale_good_steps")},
                                             {"hysteresis_tracker", count("loss_scale_hysteresis")}}));
  }
  return dict(fields);
}

std::string scheduler(const RunSettings& run) {
  const LearningRateOptions& rate = run.learning_rate;
  const LearningRateCurve curve(rate, run.train_samples, run.batch);
  constexpr std::string_view kStyles[] = {"constant", "linear", "cosine", "inverse-square-root", "WSD"};
  constexpr std::string_view kDecayStyles[] = {"constant", "linear", "cosine"};
  return dict({
      {"max_lr", real(rate.lr)},
      {"min_lr", real(rate.min_lr)},
      {"lr_warmup_steps", whole(curve.warmup_samples())},
      {"num_steps", whole(run.schedule_samples)},
      {"lr_decay_style", text(kStyles[static_cast<size_t>(rate.lr_decay_style)])},
      {"lr_decay_steps", whole(curve.decay_samples())},
      {"start_wd", real(rate.start_weight_decay.value_or(rate.weight_decay))},
      {"end_wd", real(rate.end_weight_decay.value_or(rate.weight_decay))},
      {"wd_incr_style", text(kDecayStyles[static_cast<size_t>(rate.weight_decay_incr_style)])},
      {"wd_incr_steps", whole(run.train_samples)},
  });
}

void add_rest(const ForeignContents& contents, const fs::path& folder, DcpWriter& writer) {
  writer.add_object(extra_states(contents.tensors), list({none()}));
  Entries common = {
      {"args", arguments(contents)},
      {"checkpoint_version", real(3)},
      {"iteration", whole(contents.model.state.train.iteration)},
      {"num_floating_point_operations_so_far", real(0)},
      {"content_metadata", dict({{"distrib_optim_sharding_type", text("fully_reshardable")},
                                 {"singleton_local_shards", boolean(false)},
                                 {"chained_optim_avoid_prefix", boolean(true)}})},
  };
  if (contents.with_optimizer) {
    common.emplace_back("optimizer", optimizer(contents));
    common.emplace_back("opt_param_scheduler", scheduler(contents.settings));
  }
  AtomicFile file(folder / "common.pt");
  append_archive(file, dict(common), storage_of(contents.model.state.train));
  file.commit();
  write_file_atomic(folder / "metadata.json",
                    std::string_view("{\"sharded_backend\": \"torch_dist\", \"sharded_backend_version\": 1, "
                                     "\"common_backend\": \"torch\", \"common_backend_version\": 1}"));
}

// Megatron-LM's name of a model that no run has trained yet.
constexpr std::string_view kRelease = "release";

std::string folder_name(int64_t iteration) {
  return iteration == 0 ? std::string(kRelease) : fmt::format("iter_{:07}", iteration);
}

void finish(const ForeignContents& contents, const fs::path& root) {
  const int64_t iteration = contents.model.state.train.iteration;
  const std::string tracked = iteration == 0 ? std::string(kRelease) : fmt::format("{}", iteration);
  write_file_atomic(root / "latest_checkpointed_iteration.txt", std::string_view(tracked));
}

}  // namespace

const ForeignTarget kToTorchDist = {.word = "torch_dist",
                                    .name = "Megatron-core's torch_dist",
                                    .folder_name = folder_name,
                                    .keeps_masters = true,
                                    .state_names = state_names,
                                    .tensors = megatron_exports,
                                    .add_rest = add_rest,
                                    .finish = finish};

}  // namespace megalith
