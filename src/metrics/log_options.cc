#include "metrics/log_options.h"

#include "config/option.h"
#include "core/error.h"

namespace megalith {

void LogOptions::visit(OptionVisitor& v) {
  v.group("Logging", {.changes_numbers = false});
  v.choice(
       "log_format", log_format, {"auto", "compact", "megatron", "json"},
       "What a run prints on standard output. compact: a line of at most 110 columns a step, and a table at the end. "
       "megatron: the iteration line, the validation block and the four lines of summary that readers of Megatron-LM's "
       "and Primus's logs look for. json: an object a line. auto: compact.")
      .by_rank(ByRank::kFree);
  v.field(
       "log_style", log_style,
       "Print beside log_format what readers of another trainer's log look for. torchtitan and torchtune: "
       "its line of a step and of an evaluation; torchtune's stand in log_file too. pictures: step_loss, fps_gpu and "
       "tflops/s of a step, as benchmarks of models of pictures print them.")
      .words({"torchtitan", "torchtune", "pictures"})
      .by_rank(ByRank::kFree);
  v.field("quiet", quiet, "Print warnings, errors and what a command was asked for, and nothing of how a run goes.")
      .by_rank(ByRank::kFree)
      .acts_in(kWithWeights);
  v.field("verbose", verbose,
          "Print more: every option that differs from its default, settings of libraries, and messages for debugging.")
      .by_rank(ByRank::kFree)
      .acts_in(kWithWeights);
  v.field("explain_options", explain_options,
          "Before the run, list every option that differs from its default, and who set it.")
      .by_rank(ByRank::kFree);
  v.field("suggest_layout", suggest_layout,
          "Before the run, search a second for a layout that is planned to be much faster, and name it in one line. For "
          "several ranks on GPUs of known rates, and in a dry run for a dry_run_device.")
      .by_rank(ByRank::kFree)
      .acts_in(kTrainOnly);
  v.field("log_interval", log_interval, "Steps from one iteration line to the next.").unit("iterations").at_least(1);
  v.field("log_throughput", log_throughput, "Show memory, TFLOP/s and tokens/s in the iteration line.");
  v.field("log_avg_skip_iterations", log_avg_skip_iterations,
          "Iterations at the start that the averages in the iteration line leave out.")
      .unit("iterations")
      .at_least(0);
  v.field("log_avg_reset_interval", log_avg_reset_interval, "Iteration lines after which those averages start anew.")
      .unit("lines")
      .at_least(1);
  v.field("log_params_norm", log_params_norm,
          "Log the L2 norm of all parameters after the step. It costs a pass over the weights for each step that is "
          "logged.");
  v.field(
      "output_dir", output_dir,
      "A folder for everything that a run leaves: its configuration, log, metrics, TensorBoard events, page, picture "
      "of the loss and checkpoints, each where its own option says nothing else. Started again, the run goes on "
      "from its newest checkpoint.");
  v.field("wait_for_folder", wait_for_folder,
          "Where another run writes to output_dir or save, wait for its end instead of refusing to start.");
  v.field("log_file", log_file, "A file to which everything is appended that the run says on the terminal.")
      .by_rank(ByRank::kFree);
  v.field("record_file", record_file,
          "A file for the run's record, as output_dir has in run.json: who started it when, where, with which options, "
          "on which ranks, and how it ended. A run that is started again adds to it.")
      .by_rank(ByRank::kFree);
  v.field("metrics_file", metrics_file,
          "A file to which each optimizer step and each evaluation appends one JSON object.")
      .by_rank(ByRank::kFree);
  v.field("loss_plot_file", loss_plot_file, "A file for a picture (SVG) of the loss over the run.")
      .by_rank(ByRank::kFree);
  v.field("page_file", page_file,
          "A file for a web page on the run: loss, learning rate, gradient norm, throughput and memory.")
      .by_rank(ByRank::kFree);

  v.field("mlperf_log_file", mlperf_log_file,
          "A file for the lines ':::MLLOG' by which MLCommons judges a benchmark; the first evaluation at or below "
          "mlperf_target ends its run, not the training.")
      .by_rank(ByRank::kFree);
  v.field("mlperf_benchmark", mlperf_benchmark, "Its submission_benchmark: llama31_8b, llama2_70b_lora, flux1, ...");
  v.field("mlperf_target", mlperf_target,
          "The loss of an evaluation that it has to reach. Default: the benchmark's, where MLCommons has one.")
      .above(0);

  v.group("TensorBoard", {.changes_numbers = false});
  v.field("tensorboard_dir", tensorboard_dir, "A folder for TensorBoard's events, under Megatron-LM's tags.")
      .by_rank(ByRank::kFree);
  v.field("disable_tensorboard", disable_tensorboard, "Write no TensorBoard events, whatever tensorboard_dir says.");
  v.field("tensorboard_log_interval", tensorboard_log_interval, "Steps from one TensorBoard event to the next.")
      .unit("iterations")
      .at_least(1);
  v.field("log_timers_to_tensorboard", log_timers_to_tensorboard,
          "Write events with the time of a step and the throughput.");
  v.field("log_memory_to_tensorboard", log_memory_to_tensorboard, "Write events with the memory that is used.");
  v.field("log_loss_scale_to_tensorboard", log_loss_scale_to_tensorboard, "Write events with the loss scale.");
  v.field("log_world_size_to_tensorboard", log_world_size_to_tensorboard, "Write events with the number of ranks.");
  v.field("log_validation_ppl_to_tensorboard", log_validation_ppl_to_tensorboard,
          "Write events with the perplexity beside those with an evaluation's loss.");
}

bool LogOptions::is_params_norm_due(int64_t iteration, int64_t train_iters) const {
  if (!log_params_norm) return false;
  return metrics_file || iteration % log_interval == 0 || iteration == train_iters ||
         (writes_tensorboard() && iteration % tensorboard_log_interval == 0);
}

std::vector<UserError> check_log_options(const LogOptions& options) {
  std::vector<UserError> errors;
  if (options.quiet && options.verbose) {
    errors.emplace_back("quiet and verbose are both set", "choose one: quiet prints less, verbose more");
  }
  if (options.mlperf_log_file.has_value() != options.mlperf_benchmark.has_value()) {
    errors.emplace_back("of mlperf_log_file and mlperf_benchmark one is given",
                        "give both, as in --mlperf_log_file mlperf.log --mlperf_benchmark llama31_8b");
  }
  return errors;
}

}  // namespace megalith
