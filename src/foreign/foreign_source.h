// One kind of foreign checkpoint, as foreign_checkpoint.cc lists them.
#pragma once

#include "foreign/dcp.h"
#include "foreign/foreign_checkpoint.h"

namespace megalith {

struct ForeignSource {
  ForeignKind kind;
  std::string_view name;
  bool (*is_here)(const std::filesystem::path& folder);
  ForeignRecord (*record)(const std::filesystem::path& folder);
  void (*read)(const std::filesystem::path& folder, const CanonicalModel& model, ForeignTensors& tensors);
};

extern const ForeignSource kTorchDist, kMegatronRanks, kTorchtune, kTorchtitan, kDeepSpeed, kTrainerFolder;

// Names what is not read, and why.
void leave_over(ForeignTensors& tensors, std::string_view reason, std::string_view name);

// A Megatron tensor whole, of weights or of a state ("exp_avg"), into the store of its key.
void read_megatron_tensor(const ForeignTensor& tensor, std::string_view name, const std::string& key,
                          const CanonicalModel& model, ForeignTensors& tensors);
// A canonical name, or one that transformers 5 has instead (checkpoint/fused_experts.h).
bool has_canonical_form(const CanonicalModel& model, std::string_view name);
// A tensor under such a name, of weights or of a state; left over if the model has none of that name, or
// if it is a tied tensor's second copy. UserError for another shape.
void read_canonical_tensor(const ForeignTensor& tensor, std::string_view name, const std::string& key,
                           const CanonicalModel& model, ForeignTensors& tensors);
// The same for names of Meta's (torchtitan_names.h) and Hugging Face's, which must be one of the model's.
bool has_titan_form(const CanonicalModel& model, std::string_view name);
void read_titan_tensor(const ForeignTensor& tensor, const std::string& name, const std::string& key,
                       const CanonicalModel& model, ForeignTensors& tensors);
// A folder of Hugging Face's weights: safetensors, or pytorch_model*.bin.
void read_hf_weights(const std::filesystem::path& folder, const CanonicalModel& model, ForeignTensors& tensors);
// PEFT's adapters of a Trainer's folder, under their names below the model's, with their states.
void read_trainer_adapters(const std::filesystem::path& folder, const CanonicalModel& model, ForeignTensors& tensors);
// A file's tensor, by its canonical name; left over if the value is none.
void read_named(const TorchArchive& archive, const PickleValue& value, const std::string& name, const std::string& key,
                const CanonicalModel& model, ForeignTensors& tensors);
// Our key of an optimizer's state in Megatron-LM's and PyTorch's words; "" for others.
std::string state_key(std::string_view theirs);
// Leaves over a state that state_key() does not know.
void leave_state(ForeignTensors& tensors, std::string_view theirs);

// From Megatron-LM's args, iteration, opt_param_scheduler and optimizer.
ForeignRecord megatron_record(const TorchArchive& common);
// The network that tensors of these names make: a BERT with or without its heads, a T5.
void read_megatron_network(const std::vector<std::string>& names, ForeignRecord& record);
// The state of its gradient scaler.
void read_megatron_scaler(const TorchArchive& archive, const PickleValue& scaler, ForeignRecord& record);
// Hugging Face's part of a record: config.json's architecture, and Trainer's step. Nothing where there is no such file.
void read_trainer_record(const std::filesystem::path& folder, ForeignRecord& record);
// Megatron-LM's args, a Namespace: options, consumed samples (by the record's iteration) and seed.
void read_megatron_args(const TorchArchive& archive, const PickleValue& args, ForeignRecord& record);
// Hyperparameters in an optimizer's param_groups, as options: the peak of the learning rate, the largest weight decay.
// path: of `from` in the optimizer's state.
void read_hyperparameters(const TorchArchive& archive, const PickleValue& from, const std::string& path,
                          ForeignRecord& record);
// Updates that an optimizer's param_groups or state count, if they do: the record's optimizer_step and mixed_updates;
// and its hyperparameters.
void read_updates(const TorchArchive& archive, const PickleValue& optimizer, ForeignRecord& record);

}  // namespace megalith
