// The whole configuration of a run: every topic's options, gathered once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_options.h"
#include "comm/mesh.h"
#include "config/option.h"
#include "config/resolve.h"
#include "data/data_options.h"
#include "device/device.h"
#include "device/threads.h"
#include "hub/options.h"
#include "metrics/log_options.h"
#include "metrics/tracking_options.h"
#include "models/model_config.h"
#include "nn/adapter_options.h"
#include "nn/fp8_recipe.h"
#include "ops/gpu/gemm_tuning.h"
#include "ops/kernels.h"
#include "optim/learning_rate.h"
#include "optim/loss_scaler.h"
#include "optim/optimizer.h"
#include "parallel/data_parallel_options.h"
#include "parallel/pipeline/pipeline_options.h"
#include "parallel/recompute_options.h"
#include "tokenizer/tokenizer.h"
#include "train/batch_schedule.h"
#include "train/best_options.h"
#include "train/block_index_options.h"
#include "train/fault_options.h"
#include "train/flux_encoder_options.h"
#include "train/graph_options.h"
#include "train/kind.h"
#include "train/profile.h"
#include "train/rate_finder.h"
#include "train/sample_options.h"
#include "train/sampling.h"
#include "train/task_options.h"

namespace megalith {

// Batch, duration, precision and evaluation.
struct TrainOptions {
  int64_t micro_batch_size = 1;
  std::optional<int64_t> global_batch_size;  // default: micro_batch_size * data-parallel size
  std::optional<int64_t> gradient_accumulation_steps;
  std::vector<int64_t> rampup_batch_size;  // start, increment, samples; empty: none
  std::optional<std::string> step_batch_size_schedule;
  bool decrease_batch_size_if_needed = false;
  std::optional<int64_t> seq_length;   // default: min(max_position_embeddings, 4096)
  std::optional<int64_t> train_iters;  // default 10
  std::optional<int64_t> train_samples;
  std::optional<double> train_epochs;
  int64_t seed = 1234;
  bool bf16 = false, fp16 = false, fp32 = false;
  LossScaleOptions loss_scaling;
  int64_t eval_iters = 100, eval_interval = 1000;
  bool skip_train = false;
  std::vector<std::string> freeze;
  std::optional<int64_t> thaw_at;
  double neftune_noise_alpha = 0;
  std::optional<int64_t> exit_interval;
  std::optional<double> exit_duration_in_mins;
  std::optional<int64_t> check_sync;
  BestOptions best;
  RateFinderOptions rate_finder;
  FaultOptions faults;
  bool dry_run = false;
  int64_t dry_run_world_size = 1;
  std::optional<std::string> dry_run_device;

  void visit(OptionVisitor& v);
};

// Attention on a GPU. The last three are Megatron-LM's words: for cuDNN, and twice the reference.
enum class AttentionBackend { kAuto, kCudnn, kFlash, kReference, kFused, kUnfused, kLocal };

struct RuntimeOptions {
  DeviceOptions device;
  ThreadOptions threads;
  Kernels kernels = Kernels::kFused;
  ops::gpu::GemmTuningOptions gemm_tuning;
  AttentionBackend attention_backend = AttentionBackend::kAuto;
  bool allow_oversubscription = false;
  GraphOptions graphs;

  void visit(OptionVisitor& v);
};

struct Config {
  ModelConfig model;
  TaskOptions task;
  ParallelOptions parallel;
  PipelineOptions pipeline;
  DataParallelOptions data_parallel;
  RecomputeOptions recompute;
  Fp8Options fp8;
  LoraOptions lora;
  bool sequence_parallel = false;  // read Derived::is_sequence_parallel
  TrainOptions train;
  LearningRateOptions learning_rate;
  OptimizerOptions optimizer;
  DataOptions data;
  TokenizerOptions tokenizer;
  int64_t extra_vocab_size = 0;
  HubOptions hub;
  CheckpointOptions checkpoint;
  LogOptions log;
  TrackingOptions tracking;
  SampleOptions samples;
  SamplingOptions sampling;
  FluxEncoderOptions encoders;  // read Derived::encoders
  BlockIndexOptions block_index;
  ProfileOptions profile;
  RuntimeOptions runtime;

  void visit(OptionVisitor& v);
  void visit_run(OptionVisitor& v);  // all but the model's
};

// Numbers that follow from a Config; never written back, so a saved configuration is as written.
struct Derived {
  int64_t world_size = 1, data_parallel_size = 1;
  int64_t micro_batch_size = 1, global_batch_size = 1, num_microbatches = 1;  // of a full step
  BatchSchedule batches;
  // train_samples  read by the run; schedule_samples  length of the schedules
  int64_t seq_length = 0, train_iters = 0, train_samples = 0, schedule_samples = 0;
  PipelinePlan pipeline;
  bool is_sequence_parallel = false;  // requested, with tensor-parallel ranks to split tokens over
  int64_t vocab_size = 0;
  int64_t eod_id = 0;
  at::ScalarType dtype = at::kFloat;
  // Read these instead of the person's: hub names are local paths, `load` is what auto_continue_train found, and what
  // use_torch_fsdp2 does itself is off.
  CheckpointOptions checkpoint;
  TokenizerOptions tokenizer;
  DataOptions data;
  DataParallelOptions data_parallel;
  FluxEncoderOptions encoders;
  bool is_hub_out_of_reach = false;           // a dry run whose hub tokenizer may not be requested
  bool replaces_checkpoints = false;          // overwrite: the first save removes an earlier run's
  std::optional<std::string> text_tokenizer;  // recorded in the checkpoint (train/text_tokenizer.h)
};

struct Resolved {
  Kinds kinds;  // all
  Config config;
  std::unique_ptr<OptionSet> options;
  Derived derived;
  std::unique_ptr<Tokenizer> tokenizer;  // null if not named and not needed
  std::vector<std::string> notes;
  std::map<std::string, std::string> header;   // exp_name and the like of a Primus file
  std::map<std::string, std::string> exports;  // the file's env, for the process environment
  bool wants_help = false;                     // then nothing was checked

  // extra: declares the command's own options
  explicit Resolved(Kinds all, const std::function<void(OptionVisitor&)>& extra = {});
  Resolved(const Resolved&) = delete;

  const Kind& kind() const;
};

// A command's needs before anything is allocated.
struct CommandNeeds {
  enum class Weights { kIgnored, kOptional, kRequired };  // of --load and --load_hf

  bool reads_batches = true;  // false: reads single tokens, so sequence_parallel is off
  bool opens_data = false;    // data, or mock_data, must be named, and files exist
  Weights weights = Weights::kIgnored;
  bool writes_run = false;  // writes a run's folder, which a Primus file's header may name
  // Called with readable options before output folders are inspected.
  std::function<void(const Config&)> hold_folders = {};
  // Changes options after reading, before they are checked.
  std::function<void(Config&)> adjust = {};
  // The command's own checks, reported with the others.
  std::function<std::vector<UserError>(Resolved&)> more_checks = {};
};

// Reads configuration file, environment and arguments; fills unset architecture options from --load_hf or the
// checkpoint in --load; checks everything, missing files included (train/inputs.h). Throws UserErrors with all errors;
// allocates no tensor. The hub is asked only while there are no errors: for config.json once rules without a model
// hold, for the tokenizer once the model's do, last for weights and data.
std::unique_ptr<Resolved> resolve_config(Kinds kinds, const ConfigInputs& inputs, int64_t world_size,
                                         const std::function<void(OptionVisitor&)>& extra = {},
                                         const CommandNeeds& needs = {});

// resolve_config() after reading: fills `derived` and adds errors. For configurations not from files
// (train/toy_config.h).
void derive_and_check(Resolved& resolved, int64_t world_size, std::vector<UserError>& errors,
                      bool reads_batches = true);

}  // namespace megalith
