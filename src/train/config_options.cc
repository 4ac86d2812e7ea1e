// The options of a run that belong to no other struct; see config.h.
#include "config/option.h"
#include "models/model_bounds.h"
#include "train/config.h"

namespace megalith {
namespace {

constexpr int64_t kMostMicroBatch = 1 << 20, kMostDryRanks = 1 << 20;  // products with lengths cannot overflow

}  // namespace

void TrainOptions::visit(OptionVisitor& v) {
  v.group("Batch and duration");
  v.field("micro_batch_size", micro_batch_size, "Samples in one forward and backward pass.")
      .unit("samples")
      .within(1, kMostMicroBatch)
      .in_toy(InToy::kMade)
      .acts_in(kBenches | RunCommands{RunCommand::kEvaluate, RunCommand::kEmbed, RunCommand::kPlan});
  v.field("global_batch_size", global_batch_size,
          "Samples of one optimizer step; default: micro_batch_size times the data-parallel size.")
      .unit("samples")
      .at_least(1)
      .in_toy(InToy::kMade)
      .acts_in(kBenches | RunCommands{RunCommand::kEvaluate, RunCommand::kPlan});
  v.field("gradient_accumulation_steps", gradient_accumulation_steps,
          "Microbatches of a data-parallel rank in one optimizer step, instead of global_batch_size.")
      .unit("microbatches")
      .within(1, kMostMicroBatch)
      .alias("training_gradient_accumulation_steps");
  v.field("rampup_batch_size", rampup_batch_size,
          "Three numbers, start, increment and samples: the global batch grows from start to global_batch_size in "
          "equal increments over that many samples; needs train_samples.")
      .unit("samples");
  v.field("step_batch_size_schedule", step_batch_size_schedule,
          "The global batch in steps, '0:768 250B:1536': from so many tokens on (seq_length of them a sample) so many "
          "samples, instead of global_batch_size.");
  v.field("decrease_batch_size_if_needed", decrease_batch_size_if_needed,
          "Round a global batch down to a multiple of micro_batch_size times the data-parallel size.")
      .acts_in({RunCommand::kEvaluate});
  v.field("seq_length", seq_length, "Tokens of a sample; default: the smaller of max_position_embeddings and 4096.")
      .unit("tokens")
      .within(1, kMostPositions)
      .in_toy(InToy::kMade)
      .read_by(kTextModels)
      .acts_in(kBenches | RunCommands{RunCommand::kEvaluate, RunCommand::kEmbed});
  v.field("train_iters", train_iters, "Length of the run; default 10.")
      .unit("optimizer steps")
      .at_least(0)
      .in_toy(InToy::kMade);
  v.field("train_samples", train_samples, "Length of the run in samples, instead of train_iters.")
      .unit("samples")
      .at_least(1);
  v.field("train_epochs", train_epochs,
          "Length of the run in passes over sft_data_path, in whole steps, instead of train_iters.")
      .unit("passes")
      .above(0)
      .alias("num_train_epochs")
      .alias("num_epochs")
      .alias("epochs");
  v.field("exit_interval", exit_interval, "Stop, after saving, at iterations divisible by this.")
      .unit("optimizer steps")
      .at_least(1)
      .changes_numbers(false);
  v.field("check_sync", check_sync,
          "At iterations divisible by this, compare the weights and optimizer state that several ranks should hold "
          "alike, and stop at the first difference.")
      .unit("optimizer steps")
      .at_least(1)
      .alias("check_weight_hash_across_dp_replicas_interval");
  v.field("exit_duration_in_mins", exit_duration_in_mins, "Stop, after saving, once the run has taken this long.")
      .unit("minutes")
      .above(0)
      .changes_numbers(false);
  v.field("skip_train", skip_train, "Only evaluate.");
  v.field(
      "dry_run", dry_run,
      "Resolve and check everything that a run would open, print configuration, layout, size and the memory of a rank "
      "by owner; read no weights and allocate nothing.");
  v.field("dry_run_world_size", dry_run_world_size,
          "Number of ranks that a dry run resolves the layout for; unset: the fewest that fit it.")
      .unit("ranks")
      .within(1, kMostDryRanks)
      .acts_in(kPlan);
  v.field("dry_run_device", dry_run_device,
          "A dry run says whether a rank fits this GPU (MI300X, H100, …), which options would save most where it does "
          "not, and what has no fast form there. Default: none, or the one whose folder a script's file is in.");
  v.field("seed", seed, "Seed of weights, dropout and data order.")
      .above(0)
      .in_toy(InToy::kKept)
      .acts_in({RunCommand::kGenerate, RunCommand::kEvaluate});

  v.group("Precision", {.acts_in = kWithModel});
  v.field("bf16", bf16, "Model and activations in bfloat16; master weights, moments and gradients in fp32.")
      .in_toy(InToy::kSetAside);
  v.field("fp16", fp16,
          "Model and activations in float16 with loss scaling; master weights, moments and gradients in fp32.")
      .in_toy(InToy::kSetAside);
  v.field("fp32", fp32, "Everything in fp32; the default when no other precision is given.").toy("true");
  v.group("Precision");
  loss_scaling.visit(v);

  v.group("Evaluation");
  v.field("eval_iters", eval_iters, "Global batches of one evaluation; 0 and -1 turn it off.")
      .at_least(-1)
      .acts_in({RunCommand::kEvaluate})
      .toy("0");
  v.field("eval_interval", eval_interval, "Evaluate at iterations divisible by this.")
      .unit("optimizer steps")
      .at_least(1);

  v.group("Frozen weights");
  v.field("freeze", freeze,
          "Regular expressions over whole names of weights as in Hugging Face's files, such as "
          "'model\\.layers\\.[0-7]\\..*': weights that match are not trained; they have no gradient and no optimizer "
          "state.");
  v.field("thaw_at", thaw_at,
          "Train freeze's weights too after this many steps, with moments that begin there; they take the memory of "
          "trained weights from the start.")
      .unit("optimizer steps")
      .at_least(1);

  v.group("Noise in the embeddings");
  v.field(
       "neftune_noise_alpha", neftune_noise_alpha,
       "Add uniform noise to the embeddings in training (NEFTune): within this number divided by the root of a row's "
       "tokens times the hidden size. 0: none; the paper uses 5.")
      .at_least(0)
      .alias("noisy_embedding_alpha")
      .in_toy(InToy::kKept)
      .read_by(kTextModels);

  best.visit(v);
  rate_finder.visit(v);
  faults.visit(v);
}

void RuntimeOptions::visit(OptionVisitor& v) {
  v.group("Machine");
  device.visit(v);
  threads.visit(v);
  v.choice("kernels", kernels, {"fused", "reference"},
           "fused: vectorised operators. reference: the plain, slow ones that define them, for tracking down a wrong "
           "number.")
      .in_toy(InToy::kMade);
  gemm_tuning.visit(v);
  v.choice(
      "attention_backend", attention_backend, {"auto", "cudnn", "flash", "reference", "fused", "unfused", "local"},
      "Who computes attention on a GPU, wherever it takes the mask: cuDNN, flash attention, or the reference, which "
      "keeps a matrix of scores. auto measures both libraries at the start. Megatron-LM's fused is cudnn here, its "
      "unfused and local are reference.");
  v.field("allow_oversubscription", allow_oversubscription,
          "Start a run that by its estimate needs more memory than there is.")
      .changes_numbers(false);
  graphs.visit(v);
}

void Config::visit(OptionVisitor& v) {
  model.visit(v);
  visit_run(v);
}

void Config::visit_run(OptionVisitor& v) {
  task.visit(v);
  train.visit(v);
  learning_rate.visit(v);
  optimizer.visit(v);
  data.visit(v);
  tokenizer.visit(v);
  v.field("extra_vocab_size", extra_vocab_size,
          "Rows of the embedding beyond the tokenizer's vocabulary, or beyond vocab_size where there is no tokenizer. "
          "Ignored where the vocabulary is that of a model that is loaded.")
      .unit("ids")
      .within(0, 1 << 20)
      .acts_in(kTrainOnly);
  hub.visit(v);
  checkpoint.visit(v);
  log.visit(v);
  tracking.visit(v);
  samples.visit(v);
  sampling.visit(v);
  encoders.visit(v);
  v.field("encoders.path", encoders.folder,
          "FLUX folder whose encoders are used. Default: the folder of load_hf, where it is one of a whole FLUX.")
      .by_rank(ByRank::kSameContents);
  block_index.visit(v);
  profile.visit(v);
  parallel.visit(v);
  pipeline.visit(v);
  v.field("sequence_parallel", sequence_parallel,
          "Split the tokens of norms, dropout and the residual stream over the tensor-parallel ranks, which otherwise "
          "all hold them whole: less memory, the same traffic. micro_batch_size times seq_length must divide evenly.");
  data_parallel.visit(v);
  recompute.visit(v);
  fp8.visit(v);
  lora.visit(v);
  runtime.visit(v);
}

}  // namespace megalith
