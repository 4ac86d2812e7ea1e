// The table's rows about processes, machines and logs.
#include "compat/variable.h"

namespace megalith {

std::vector<ScriptVariable> launch_variables() {
  using enum VariableKind;
  using enum VariableType;
  constexpr std::string_view kOurs = "megalith launch";
  std::vector<ScriptVariable> rows = {
      {{"EXP"}, kLaunching, kText, kPrimusScripts, "The experiment file. Needed.", "001:255"},
      {{"NNODES"},
       kLaunching,
       kCount,
       kTrainingScripts,
       "Machines of the run.",
       "000:209",
       {{only(FrontEnd::kGpt3), "128"}, {kTrainingScripts, "1"}}},
      {{"NODE_RANK"},
       kLaunching,
       kCount,
       kTrainingScripts,
       "This machine's number, from 0. Under Slurm it is Slurm's.",
       "000:212",
       {{kTrainingScripts, "0"}}},
      {{"MASTER_ADDR"},
       kLaunching,
       kText,
       kTrainingScripts,
       "Name or address of machine 0; needed with NNODES above 1. Under Slurm the first of its machines.",
       "000:206",
       {{kTrainingScripts, "localhost"}}},
      {{"MASTER_PORT"},
       kLaunching,
       kCount,
       kTrainingScripts,
       "Port at which the processes of several machines meet. On one machine a free one is taken, unless it is set.",
       "train_llama3.sh",
       {{only(FrontEnd::kLlama2), "6020"},
        {kRocmScripts | kStanfordScripts, "6000"},
        {kPrimusScripts, "1234"},
        {kBenchmarkScripts, "29500"}}},
      {{"GPUS_PER_NODE"},
       kLaunching,
       kCount,
       kTrainingScripts,
       "Processes a machine. Without it one for each GPU, one on a machine without any, and 8 in a dry run.",
       "run_pretrain.sh",
       {{kOneProcessScripts, "1"}}},
      {{"DRY_RUN"},
       kLaunching,
       kWord,
       kAllFrontEnds,
       "1 prints what every variable became, the configuration, layout and memory; json prints one JSON object. "
       "Nothing is started.",
       kOurs,
       {{kAllFrontEnds, "0"}}},
      {{"TINY"},
       kLaunching,
       kSwitch,
       kTrainingScripts,
       "1 shrinks the model and batch to a toy that trains on a processor. Stanford's scripts then train for 10 steps.",
       kOurs,
       {{kTrainingScripts, "0"}}},
      {{"SLURM"},
       kLaunching,
       kSwitch,
       kTrainingScripts,
       "1 starts one task on each of NNODES machines with srun. A batch script of Slurm needs no word, and TINY=1 "
       "none.",
       kOurs,
       {{only(FrontEnd::kGpt3), "1"}, {kTrainingScripts, "0"}}},
      {{"CONTAINER"},
       kLaunching,
       kSwitch,
       kTrainingScripts,
       "1 starts the run in a container of DOCKER_IMAGE, by docker or else podman.",
       kOurs,
       {{kTrainingScripts, "0"}}},
      {{"DOCKER_IMAGE"},
       kLaunching,
       kText,
       kTrainingScripts,
       "Image for CONTAINER=1 and SLURM=1. Under Slurm no container is used without it.",
       "001:424"},
      {{"NO_TRAINING"},
       kLaunching,
       kSwitch,
       kLlamas,
       "1 prints what every variable became and starts nothing.",
       "train_llama3.sh",
       {{kRocmScripts, "0"}}},
      {{"TEE_OUTPUT"},
       kLogging,
       kSwitch,
       kRocmScripts | kBenchmarkScripts,
       "1 writes the log to the console and to the file, 0 only to the file.",
       "000:261",
       {{kRocmScripts | kBenchmarkScripts, "1"}}},
      {{"LOG_DIR"},
       kLogging,
       kText,
       kMegatronScripts,
       "Folder of the log. Without it experiment/…, named after the run; Primus's is ./output.",
       "train_llama3.sh"},
      {{"EXP_NAME"},
       kLogging,
       kText,
       kRocmScripts,
       "Part of the log's name: LOG_DIR/output_EXP_NAME.log.",
       "train_llama3.sh",
       {{kRocmScripts, "perf"}}},
      {{"TRAIN_LOG"},
       kLogging,
       kText,
       kTrainingScripts,
       "The log's file, instead of one in LOG_DIR.",
       "train_llama3.sh"},
      {{"BACKEND_PATH"}, kNoEffect, kText, kPrimusScripts, "", "run_pretrain.sh"},
      {{"REBUILD_BNXT"}, kNoEffect, kSwitch, kPrimusScripts, "", "run_pretrain.sh"},
      {{"PATH_TO_BNXT_TAR_PACKAGE"}, kNoEffect, kText, kPrimusScripts, "", "run_pretrain.sh"},
      {{"CPUS_PER_TASK"},
       kLaunching,
       kCount,
       kPrimusScripts,
       "Processors of a task, for srun.",
       "run_slurm_pretrain.sh"},
      {{"PRIMUS_HIPBLASLT_TUNING_STAGE"},
       kRefused,
       kWord,
       kPrimusScripts,
       "Stages of hipBLASLt's tuning: --gemm_tuning tune does the same in one run.",
       "run_pretrain.sh"},
  };
  for (ScriptVariable& row : rows) {
    if (row.name() == "NODE_RANK") row.least = 0;
    if (row.name() == "DRY_RUN") row.words = {"0", "1", "json", "true", "false"};
    if (row.name() == "BACKEND_PATH") row.reason = "there is one back end, this program";
    if (row.name() == "REBUILD_BNXT" || row.name() == "PATH_TO_BNXT_TAR_PACKAGE") {
      row.reason = "network drivers belong into the image, and are not built at a start";
    }
    if (row.name() == "PRIMUS_HIPBLASLT_TUNING_STAGE") {
      row.words = {"0", "1", "2", "3"};
      row.neutral = "0";
      row.reason = "tuning in stages; --gemm_tuning tune times products at their first use, --gemm_tuning use reads it";
    }
    if (row.kind == VariableKind::kNoEffect) row.help = row.reason;
  }
  return rows;
}

}  // namespace megalith
