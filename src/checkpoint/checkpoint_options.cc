#include "checkpoint/checkpoint_options.h"

#include <fmt/format.h>

#include "config/option.h"

namespace megalith {

void CheckpointOptions::visit(OptionVisitor& v) {
  v.group("Checkpoints", {.changes_numbers = false});
  v.field("save", save, "Folder that checkpoints are written to: every save_interval, and at the end.");
  v.field("disable_last_saving", disable_last_saving, "Write no checkpoint at the end of the run.");
  v.field("auto_continue_train", auto_continue_train, "Load from save's folder when it holds a checkpoint.");
  v.field("save_interval", save_interval, "Save a checkpoint after every so many iterations.")
      .unit("iterations")
      .at_least(1);
  v.field("save_interval_in_mins", save_interval_in_mins,
          "Save a checkpoint once so much time has passed since the last one; the next checkpoint replaces it. The "
          "default holds where save_interval is not given; 0: never.")
      .unit("minutes")
      .at_least(0);
  v.field("keep_last", keep_last, "After each save, delete all but so many of the newest checkpoints.").at_least(1);
  v.field("save_retain_interval", save_retain_interval,
          "Never delete checkpoints of multiples of this iteration; without keep_last, each save deletes the previous "
          "checkpoint unless it is such a multiple.")
      .unit("iterations")
      .at_least(1);
  v.field("no_save_optim", no_save_optim, "Write only the weights, without the optimizer's state.");
  v.field("async_save", async_save,
          "Write checkpoints beside training: a step waits only for the copy to host memory, which takes the size of "
          "the checkpoint.");
  v.field("load", load,
          "Folder of a run or of checkpoints to go on from: the newest intact one is taken, under any parallel layout.")
      .acts_in(kWithModel);
  v.field("pretrained_checkpoint", pretrained_checkpoint,
          "Checkpoints, also another trainer's, to take the weights from when load has none; the run then starts as "
          "with finetune.")
      .alias("ict_load");
  v.field("bert_load", bert_load,
          "With model_type biencoder: checkpoints of a BERT, or a Hugging Face folder of one, that each encoder starts "
          "from when load has none. The BERT's heads are left out.")
      .read_by(kBiencoders);
  v.field("ckpt_step", ckpt_step, "Load the checkpoint of this iteration instead of the newest.")
      .unit("iteration")
      .at_least(0)
      .acts_in(kWithModel);
  v.field("no_load_optim", no_load_optim, "Load the weights and the counters, but start with a fresh optimizer.");
  v.field("finetune", finetune, "Load only the weights: iteration 0, no samples consumed, a fresh optimizer.");
  v.field("exit_on_missing_checkpoint", exit_on_missing_checkpoint,
          "Refuse to start when load has no checkpoint, instead of starting afresh.");
  v.field("load_hf", load_hf,
          "Hugging Face folder that gives the architecture and the weights, or a model of the hub: org/name, or "
          "org/name@revision.")
      .alias("hf_path")
      .by_rank(ByRank::kSameContents)
      .acts_in(kWithModel);
  v.field("save_hf", save_hf, "Hugging Face folder that the model is exported to at the end.");
  v.field("adapter", adapter,
          "Folder of low-rank adapters as PEFT writes it, to go on from or to use: it gives lora.* and the weights.")
      .by_rank(ByRank::kSameContents)
      .acts_in({RunCommand::kGenerate, RunCommand::kEvaluate});
  v.field("save_adapter", save_adapter, "Folder for PEFT that the adapters are exported to at the end.");
  v.field("allow_nonfinite_weights", allow_nonfinite_weights,
          "Load weights and states that hold NaN or infinities, which are refused without it.")
      .acts_in(kWithWeights);
  v.field("export_hf", export_hf, "Export the model to the folder hf of output_dir at the end.");
  v.field(
       "overwrite", overwrite,
       "Replace what an earlier run left: its checkpoints in save once the first new one is there, the files "
       "of a model in save_hf, its lines in metrics_file and log_file, and with output_dir the whole run, which then "
       "begins anew; and any other file that an option names as output.")
      .acts_in(kWithModel | kPlan);
}

SaveSettings CheckpointOptions::save_settings() const {
  return {.with_optimizer = !no_save_optim,
          .retention = {.keep_last = keep_last, .retain_interval = save_retain_interval},
          .before_step = {}};
}

// Presets and scripts give intervals, finetune and the like even without folders: no error.
std::vector<UserError> check_checkpoint_options(const CheckpointOptions& options) {
  std::vector<UserError> errors;
  const auto refuse = [&](std::string message, std::string remedy) {
    errors.emplace_back(std::move(message), std::move(remedy));
  };
  if (options.save_retain_interval && options.save_interval &&
      *options.save_retain_interval % *options.save_interval != 0) {
    refuse(
        fmt::format(
            "save_retain_interval {} is not a multiple of save_interval {}: none of those checkpoints is ever written",
            *options.save_retain_interval, *options.save_interval),
        fmt::format("use a multiple of {}", *options.save_interval));
  }
  if (!options.load && options.ckpt_step) {
    refuse(fmt::format("ckpt_step is {}, but load is not set", *options.ckpt_step), "give the folder with --load");
  }
  if (options.bert_load && options.pretrained_checkpoint) {
    refuse("bert_load and pretrained_checkpoint (ict_load) both give the weights", "keep one of them");
  }
  if (options.load_hf && options.pretrained_checkpoint) {
    refuse("load_hf and pretrained_checkpoint both give the weights", "keep one of them");
  }
  return errors;
}

}  // namespace megalith
