// Checkpoints of other trainers: which a folder is, what it records of the run, and its tensors as ours.
//
//   torch_dist  Megatron-core's, a folder of torch.distributed.checkpoint with common.pt
//   megatron    Megatron-LM's file a rank: mp_rank_XX/model_optim_rng.pt
//   torchtune   epoch_N or step_N with weights and recipe_state.pt
//   torchtitan  a folder of torch.distributed.checkpoint with layers.N.attention.wq
//   deepspeed   ZeRO's flat fp32 groups: mp_rank_00_model_states.pt, zero_pp_rank_N_mp_rank_00_optim_states.pt
//   trainer     transformers' Trainer, Accelerate: safetensors or .bin, optimizer.pt, trainer_state.json
//
// Nothing of a pickle is executed (pickle.h).
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_reader.h"
#include "checkpoint/convert.h"
#include "foreign/canonical_model.h"
#include "foreign/foreign_tensor.h"

namespace megalith {

enum class ForeignKind { kTorchDist, kMegatron, kTorchtune, kTorchtitan, kDeepSpeed, kTrainer };
std::string_view name_of(ForeignKind kind);

// One checkpoint: of iteration `step`, or what the tracker file or the highest number names. Null if the folder holds
// none. UserError for a step that is not there.
struct ForeignFolder {
  ForeignKind kind;
  std::filesystem::path folder;
};
// PEFT's adapters instead of a model, as transformers' Trainer leaves them.
bool holds_adapters(const ForeignFolder& found);
std::optional<ForeignFolder> find_foreign(const std::filesystem::path& path, std::optional<int64_t> step);

inline constexpr int64_t kUnknownSamples = -1;

// A checkpoint's record of its run, in our options' names. Tensors are not opened.
struct ForeignRecord {
  Configuration options;
  TrainState train;
  std::vector<std::string> notes;
  std::string mixed_updates = {};  // the optimizer's counts, if parameters have several: its state cannot go on here

  bool says_architecture() const;
};
ForeignRecord read_foreign_record(const ForeignFolder& found);

// The architecture that it records, or else a config.json's; UserError if neither says it.
ModelConfig foreign_architecture(const ForeignFolder& found, const ForeignRecord& record,
                                 const std::optional<std::string>& hf_config = std::nullopt);

// Tensors of a checkpoint, by key. UserError for a tensor that does not fit the model, and for missing files. Optimizer
// states in a form that is not read are left over: the weights can be taken without them.
struct ForeignTensors {
  std::map<std::string, TensorStore> stores;
  int64_t num_read = 0;
  std::map<std::string, std::vector<std::string>> left_over;  // by the reason
};
ForeignTensors open_foreign_tensors(const ForeignFolder& found, const CanonicalModel& model);

// "66 tensors read (model 22, exp_avg 22, exp_avg_sq 22); left over: 8 (…: a, b and 6 more)".
std::string report_of(const ForeignTensors& tensors);

struct ForeignSettings {
  // Its tensors may not be missing. False: only weights, with the masters if all are there.
  bool with_optimizer = true;
  std::string_view without_optimizer = "no_save_optim";     // the option that sets it to false
  std::optional<std::string> hf_config = std::nullopt;      // folder with the architecture, if it is not recorded
  std::optional<int64_t> global_batch_size = std::nullopt;  // if what was consumed is not
  NonfiniteWeights nonfinite = NonfiniteWeights::kRefused;
};

// All of it, as load_checkpoint() takes it, for a model of this architecture, or adapters beside it; notes say what was
// read and assumed.
// UserError naming where a recorded architecture differs, and what is missing.
StoredCheckpoint open_foreign(const ForeignFolder& found, const ModelConfig& config, const ForeignSettings& settings,
                              std::vector<std::string>& notes);
// As a stored model, for writers.
StoredModel open_stored_foreign(const ForeignFolder& found, const ForeignSettings& settings);

}  // namespace megalith
