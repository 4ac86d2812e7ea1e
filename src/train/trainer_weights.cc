// Loading, saving and exporting of the trainer; see trainer.h.
#include <fmt/format.h>

#include <set>
#include <utility>

#include "checkpoint/adapter_base.h"
#include "checkpoint/adapter_folder.h"
#include "checkpoint/hf.h"
#include "core/error.h"
#include "core/json.h"
#include "models/model_head.h"
#include "train/adapter_start.h"
#include "train/adapters.h"
#include "train/exported_tokenizer.h"
#include "train/foreign_load.h"
#include "train/text_tokenizer.h"
#include "train/trainer.h"

namespace megalith {
namespace {

// This file's counters in a checkpoint's numbers.
constexpr const char* kScheduleSamples = "schedule_samples";
constexpr const char* kSkippedSamples = "skipped_samples";
constexpr const char* kRollbacks = "rollbacks";
constexpr int64_t kMostSamples = int64_t{1} << 53;  // larger integers are not exact as doubles

// True if the checkpoint is in the folder that this run saves to.
bool lies_in(const std::filesystem::path& checkpoint, const std::optional<std::string>& save) {
  std::error_code ignored;
  return save && std::filesystem::equivalent(checkpoint.parent_path(), *save, ignored);
}

// True if a difference from the checkpoint is worth a note; values taken from it naturally differ.
bool changes_what_is_computed(const OptionSet& options, const std::string& name) {
  const Option* option = options.find(name);
  return option != nullptr && option->source().layer != OptionLayer::kModel && option->traits().changes_numbers;
}

// A counter among a checkpoint's numbers.
int64_t number_of(const TrainState& state, const char* name, int64_t otherwise) {
  const auto found = state.numbers.find(name);
  if (found == state.numbers.end()) return otherwise;
  return whole_number(found->second, 0, kMostSamples, fmt::format("the checkpoint's {}", name));
}

}  // namespace

std::vector<CheckpointTensor> Trainer::kept_tensors() const {
  std::vector<CheckpointTensor> tensors =
      resolved_.config.lora.enabled ? tensors_by_owner(*data_parallel_).adapters : model_tensors(*data_parallel_);
  for (const OptimizerTensor& entry : optimizer_->state()) {
    tensors.push_back({.key = entry.key,
                       .placement = &entry.placement(),
                       .local = entry.tensor,
                       .range = entry.range(),
                       .replica_axes = entry.replica_axes(),
                       .form = entry.form});
  }
  return tensors;
}

CheckpointState Trainer::checkpoint_state() const {
  data_parallel_->wait_for_parameters();
  CheckpointState state;
  state.tensors = kept_tensors();
  for (CheckpointTensor& tensor : built_.recipe_tensors()) state.tensors.push_back(std::move(tensor));
  fill_counters(state.train);
  state.architecture = architecture_of(built_.config());
  state.configuration = configuration_of(*resolved_.options);
  keep_tokenizer_paths(state.configuration);
  remember_text_tokenizer(resolved_, state.configuration);
  if (!base_checksum_.empty()) remember_base(base_checksum_, state.configuration);
  return state;
}

void Trainer::fill_counters(TrainState& state) const {
  state.iteration = iteration_;
  state.consumed_train_samples = consumed_samples_;
  state.optimizer_step = optimizer_->num_steps();
  state.skipped_iterations = num_skipped_;
  state.seed = resolved_.config.train.seed;
  state.numbers[kScheduleSamples] = static_cast<double>(schedule_samples_);
  state.numbers[kSkippedSamples] = static_cast<double>(skipped_samples_);
  if (num_rollbacks_ > 0) state.numbers[kRollbacks] = static_cast<double>(num_rollbacks_);
  loss_scaler_.save(state.numbers);
  loss_watch_.save(state.numbers);
  best_.save(state.numbers);
}

void Trainer::take_counters(const TrainState& state) {
  iteration_ = state.iteration;
  consumed_samples_ = state.consumed_train_samples;
  num_skipped_ = state.skipped_iterations;
  skipped_samples_ = number_of(state, kSkippedSamples, 0);
  num_rollbacks_ = number_of(state, kRollbacks, 0);
  take_numbers(state);
}

void Trainer::take_numbers(const TrainState& state) {
  schedule_samples_ = number_of(state, kScheduleSamples, state.consumed_train_samples);
  loss_scaler_.load(state.numbers);
  loss_watch_.load(state.numbers);
  best_.load(state.numbers);
}

void Trainer::load() {
  const CheckpointOptions& options = resolved_.derived.checkpoint;
  // Checkpoints hold only adapters: their base is loaded at every start.
  const bool has_adapters = resolved_.config.lora.enabled;
  if (has_adapters && options.load_hf) {
    load_base(tensors_by_owner(*data_parallel_).base);
    base_checksum_ = checksum_of_base(*options.load_hf, *groups_.world);
    if (options.adapter) {
      check_base(stored_base_of(std::filesystem::path(*options.adapter)), base_checksum_, *options.adapter,
                 *options.load_hf);
    }
  }
  CheckpointState state = checkpoint_state();
  if (const auto resumed = resume_run(resolved_, state, groups_, log_)) {
    if (!base_checksum_.empty()) {
      check_base(stored_base_of(resumed->configuration), base_checksum_, resumed->folder.string(), *options.load_hf);
    }
    data_parallel_->publish();
    data_parallel_->wait_for_parameters();
    if (!resumed->has_optimizer) optimizer_->reset_masters();
    if (resumed->is_finetune) return;
    take_counters(state.train);
    if (lies_in(resumed->folder, options.save)) last_saved_iteration_ = iteration_;
    if (resumed->has_optimizer) optimizer_->set_num_steps(state.train.optimizer_step);
    for (const ConfigurationDifference& difference : resumed->differences) {
      if (!changes_what_is_computed(*resolved_.options, difference.name)) continue;
      log_.note("{} was {} in the checkpoint and is {} now", difference.name,
                difference.stored.empty() ? "absent" : difference.stored,
                difference.present.empty() ? "absent" : difference.present);
    }
    return;
  }
  if (options.load_hf && !has_adapters) load_base(model_tensors(*data_parallel_));
  if (resolved_.kind().load_first_weights(resolved_, model_tensors(*data_parallel_), groups_, log_)) {
    data_parallel_->publish();
    optimizer_->reset_masters();
  }
  if (has_adapters && options.adapter) {
    load_adapter(*options.adapter, tensors_by_owner(*data_parallel_).adapters, groups_, options.nonfinite_weights());
    data_parallel_->publish();
    log_.info("loaded the adapters from {}", *options.adapter);
    optimizer_->reset_masters();
  } else if (has_adapters && (resolved_.config.lora.use_dora || resolved_.config.lora.start().decomposes())) {
    const LoraOptions& lora = resolved_.config.lora;
    if (lora.use_dora) begin_lengths(*data_parallel_, groups_);
    if (lora.start().decomposes()) {
      log_.info("decomposing the weights that have adapters ({})", lora.init_lora_weights);
      begin_decomposed(*data_parallel_, built_, lora, static_cast<uint64_t>(resolved_.config.train.seed), groups_);
    }
    data_parallel_->publish();
    optimizer_->reset_masters();
  }
}

void Trainer::load_base(const std::vector<CheckpointTensor>& tensors) {
  const std::string& folder = *resolved_.derived.checkpoint.load_hf;
  std::set<std::string> begun_afresh;
  load_hf(folder, tensors, groups_, &begun_afresh, resolved_.derived.checkpoint.nonfinite_weights(),
          find_head(built_.config().model_type));
  note_begun_afresh(folder, begun_afresh, log_);
  data_parallel_->publish();
  log_.info("loaded the weights from {}", folder);
  optimizer_->reset_masters();
}

void Trainer::save(bool is_last, bool is_passing) {
  if (!saver_) return;
  MEGALITH_CHECK(!issued_, "a checkpoint with iteration {} under way", issued_->iteration);
  const ProfileRange range("save checkpoint");
  if (last_saved_iteration_ != iteration_) {
    saver_->retention().kept.clear();
    if (resolved_.config.train.best.num_kept() > 0) {
      for (const auto& one : best_.best()) saver_->retention().kept.push_back(one.iteration);
    }
    saver_->save(checkpoint_state(), is_passing);
    since_saved_.restart();
    last_saved_iteration_ = iteration_;
  }
  if (is_last) saver_->finish();
}

void Trainer::export_adapter(const std::string& folder) {
  const CheckpointOptions& options = resolved_.derived.checkpoint;
  AdapterExport settings{.options = resolved_.config.lora,
                         .is_of_diffusers = resolved_.config.model.is_of_diffusers(),
                         .base = resolved_.config.checkpoint.load_hf.value_or(""),
                         .base_checksum = base_checksum_,
                         .config = options.adapter ? read_adapter_folder(*options.adapter).config : "",
                         .settings = {.dtype = resolved_.derived.dtype, .log = &log_}};
  save_adapter(folder, tensors_by_owner(*data_parallel_).adapters, groups_, settings);
  log_.info("exported the adapters to {}", folder);
}

void Trainer::export_weights() {
  const CheckpointOptions& options = resolved_.derived.checkpoint;
  if (options.save_adapter) export_adapter(*options.save_adapter);
  if (!options.save_hf) return;
  HfExport settings;
  settings.dtype = resolved_.derived.dtype;
  settings.log = &log_;
  ModelConfig config = built_.config();
  const auto of_model =
      options.load_hf && has_tokenizer_files(*options.load_hf) ? options.load_hf : text_tokenizer(resolved_);
  choose_tokenizer_files(resolved_.derived.tokenizer, of_model, settings);
  std::unique_ptr<Tokenizer> found;
  if (!resolved_.tokenizer) found = open_tokenizer(resolved_.derived.tokenizer, of_model, config, log_);
  add_special_tokens(found ? found.get() : resolved_.tokenizer.get(), config, settings);
  save_hf(*options.save_hf, model_tensors(*data_parallel_), *built_.family, config, groups_, settings);
  if (groups_.world->is_first() && !config.is_of_diffusers()) {
    complete_export(*options.save_hf, resolved_.derived.tokenizer, options.load_hf);
  }
  log_.info("exported the model to {}", *options.save_hf);
}

}  // namespace megalith
