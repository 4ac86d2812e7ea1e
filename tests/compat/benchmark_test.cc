// AMD's benchmarks: what flags and tags become, figures from logs, and the files of results.
#include "compat/benchmark.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "compat/benchmark_results.h"
#include "compat/benchmark_wikitext.h"
#include "compat/launch_plan.h"
#include "kinds/kinds.h"
#include "support/source_dir.h"

namespace megalith {
namespace {

LaunchPlan benchmark_plan(std::vector<std::string> words, EnvironmentMap environment = {}) {
  LaunchInputs inputs;
  inputs.front_end = FrontEnd::kBenchmark;
  inputs.words = std::move(words);
  inputs.environment = std::move(environment);
  inputs.tree = "/tree/";
  inputs.now = "now";
  inputs.count_gpus = [] { return 8; };
  inputs.exists = [](const std::string& path) { return path.starts_with("/tree/"); };
  return plan_launch(inputs);
}

std::string errors_in(const LaunchPlan& plan) {
  std::string text;
  for (const UserError& error : plan.errors) text += fmt::format("{}\n", error.what());
  return text;
}

std::string option_in(const LaunchPlan& plan, std::string_view name) {
  const PlannedOption* found = plan.find(name);
  return found == nullptr ? "(none)" : found->value;
}

std::string said_in(const LaunchPlan& plan) { return fmt::format("{}\n", fmt::join(plan.notes, "\n")); }

std::string exported_in(const LaunchPlan& plan, std::string_view name) {
  for (const PlannedExport& one : plan.exports) {
    if (one.name == name) return one.value;
  }
  return "(none)";
}

TEST(Benchmark, PretrainingIsTheJobOfThePage) {
  struct Row {
    const char *model, *preset, *batch, *seq_length;
  };
  for (const Row& row :
       {Row{"Llama-3.1-8B", "llama3.1_8B", "18", "8192"}, Row{"Llama-3.1-70B", "llama3.1_70B", "4", "8192"},
        Row{"Llama-3.3-70B", "llama3.3_70B", "4", "8192"}, Row{"Llama-2-70B", "llama2_70B", "4", "4096"}}) {
    const LaunchPlan plan = benchmark_plan({"-t", "pretrain", "-m", row.model, "-p", "BF16"});
    EXPECT_EQ(errors_in(plan), "");
    EXPECT_EQ(plan.config, row.preset);
    EXPECT_EQ(option_in(plan, "micro_batch_size"), row.batch);
    EXPECT_EQ(option_in(plan, "seq_length"), row.seq_length);
    EXPECT_EQ(option_in(plan, "train_iters"), "50");
    EXPECT_EQ(option_in(plan, "lr_warmup_iters"), "10");
    EXPECT_EQ(option_in(plan, "use_torch_fsdp2"), "true");
    EXPECT_EQ(option_in(plan, "recompute_granularity"), "full");
    EXPECT_EQ(option_in(plan, "log_style"), "torchtitan");
    EXPECT_EQ(option_in(plan, "fp8_format"), "(none)");
    EXPECT_EQ(plan.world_size(), 8);
    EXPECT_EQ(plan.train_log, fmt::format("{}-pretrain.csv", row.model));
    EXPECT_EQ(plan.benchmark->results, fmt::format("../perf_{}.csv", row.model));
  }
}

TEST(Benchmark, FlagsBecomeOptionsAndTheBlockEchoesThem) {
  const LaunchPlan plan = benchmark_plan(
      {"-t", "HF_pretrain", "-m", "Llama-3.1-70B", "-p", "FP8", "-s", "4096", "-n", "1", "-f", "0", "-b", "2"});
  EXPECT_EQ(errors_in(plan), "");
  EXPECT_EQ(option_in(plan, "fp8_format"), "hybrid");
  EXPECT_EQ(option_in(plan, "seq_length"), "4096");
  EXPECT_EQ(option_in(plan, "micro_batch_size"), "2");
  EXPECT_EQ(option_in(plan, "use_torch_fsdp2"), "(none)");
  EXPECT_EQ(option_in(plan, "use_distributed_optimizer"), "true");
  EXPECT_EQ(plan.world_size(), 1);
  const std::string said = said_in(plan);
  for (const char* line : {"training_mode: HF_pretrain\n", "model_repo: Llama-3.1-70B\n", "datatype: FP8\n",
                           "sequence_length: 4096\n", "num_gpus: 1\n", "fsdp: 0\n", "batch_size: 2\n",
                           "training log: Llama-3.1-70B-HF_pretrain.csv\n", "results: ../perf_Llama-3.1-70B.csv\n",
                           "Only Llama 3.1 8B supports FP8 precision.", "-s 4096: --seq_length 4096\n"}) {
    EXPECT_NE(said.find(line), std::string::npos) << line << "not in\n" << said;
  }
  EXPECT_EQ(said_in(benchmark_plan({"-m", "Llama-3.1-8B", "-p", "FP8"})).find("Only Llama"), std::string::npos);
}

TEST(Benchmark, FlagsAreRowsOfTheOneTable) {
  std::string names;
  for (const ScriptVariable& row : script_flags()) {
    EXPECT_TRUE(row.name().starts_with('-') && !row.help.empty() && !row.source.empty()) << row.name();
    EXPECT_EQ(row.type == VariableType::kWord, !row.words.empty()) << row.name();
    EXPECT_EQ(find_script_variable(row.name()), &row);
    names += row.name();
  }
  EXPECT_EQ(names, "-t-m-p-s-n-f-b");
  EXPECT_EQ(finetuning_variables().size(), 10u);
  for (const ScriptVariable& row : script_variables()) EXPECT_FALSE(row.name().starts_with('-')) << row.name();
}

TEST(Benchmark, ExportsAreThoseOfItsScript) {
  const LaunchPlan plan = benchmark_plan({"-m", "Llama-3.1-8B"});
  EXPECT_EQ(exported_in(plan, "ROCBLAS_USE_HIPBLASLT"), "1");
  EXPECT_EQ(exported_in(plan, "DISABLE_ADDMM_CUDA_LT"), "0");
  EXPECT_EQ(exported_in(plan, "HIP_FORCE_DEV_KERNARG"), "1");
  EXPECT_EQ(exported_in(plan, "TORCH_NCCL_HIGH_PRIORITY"), "0");
  EXPECT_EQ(exported_in(plan, "GPU_MAX_HW_QUEUES"), "8");
  EXPECT_EQ(exported_in(plan, "NCCL_CHECKS_DISABLE"), "(none)");
}

TEST(Benchmark, ATagIsTheScriptOfItsBackend) {
  LaunchPlan plan = benchmark_plan({"--model_repo", "pyt_megatron_lm_train_llama-3.1-8b", "-p", "FP8"});
  EXPECT_EQ(errors_in(plan), "");
  EXPECT_EQ(plan.front_end, FrontEnd::kLlama3);
  EXPECT_EQ(plan.config, "llama3.1_8B");
  EXPECT_EQ(option_in(plan, "global_batch_size"), "128");
  EXPECT_EQ(option_in(plan, "fp8_format"), "hybrid");
  EXPECT_EQ(plan.train_log, "Llama-3.1-8B-pretrain.csv");
  EXPECT_EQ(plan.benchmark->results, "perf_Llama-3.1-8B.csv");

  plan = benchmark_plan({"--model_repo", "primus_pyt_megatron_lm_train_llama-3.3-70b", "-n", "1"});
  EXPECT_EQ(errors_in(plan), "");
  EXPECT_EQ(plan.front_end, FrontEnd::kPrimus);
  EXPECT_EQ(plan.config, "/tree/examples/megatron/configs/llama3.3_70B-pretrain.yaml");
  EXPECT_EQ(fmt::format("{}", fmt::join(plan.user_options, " ")),
            "--micro_batch_size 2 --global_batch_size 16 --train_iters 50");
  EXPECT_EQ(plan.world_size(), 1);

  plan = benchmark_plan({"--model_repo", "pyt_train_llama-3.1-8b"});
  EXPECT_EQ(errors_in(plan), "");
  EXPECT_EQ(plan.front_end, FrontEnd::kBenchmark);
  EXPECT_EQ(plan.benchmark->results, "perf_Llama-3.1-8B.csv");
}

TEST(Benchmark, TheUsersVariablesWinOverATagsOwn) {
  const std::string tag = "pyt_megatron_lm_train_llama-3.1-8b";
  EXPECT_EQ(option_in(benchmark_plan({"--model_repo", tag}, {{"MBS", "1"}}), "micro_batch_size"), "1");
  EXPECT_EQ(option_in(benchmark_plan({"--model_repo", tag, "MBS=4"}), "micro_batch_size"), "4");
}

TEST(Benchmark, BadFlagsAreNamedAsTheyWereWritten) {
  const std::pair<std::vector<std::string>, std::vector<std::string>> rows[] = {
      {{"-t", "pretrain"}, {"-m is not set", "Llama-3.1-8B, Llama-3.1-70B"}},
      {{"-m", "Llama-3.1-9B"}, {"-m Llama-3.1-9B", "Did you mean Llama-3.1-8B"}},
      {{"--model_repo", "pyt_train_lama-3.1-8b"}, {"--model_repo pyt_train_lama-3.1-8b", "pyt_train_llama-3.1-8b"}},
      {{"-m", "Llama-3.1-8B", "-p", "FP16"}, {"-p FP16", "BF16, FP8"}},
      {{"-m", "Llama-3.1-8B", "-s", "1000"}, {"-s 1000", "at least 2048 and at most 8192"}},
      {{"-m", "Llama-3.1-8B", "-s", "16384"}, {"-s 16384", "8192"}},
      {{"-m", "Llama-3.1-8B", "-n", "4"}, {"-n 4", "1, 8"}},
      {{"-m", "Llama-3.1-8B", "-t", "train"}, {"-t train", "pretrain, HF_pretrain, finetune_fw"}},
      {{"-m", "Llama-3.1-8B", "-n", "8", "GPUS_PER_NODE=1"}, {"-n 8", "GPUS_PER_NODE=1", "disagree"}},
      {{"-m", "Llama-3.1-8B", "-p"}, {"-p needs a value"}},
      {{"-m", "Llama-3.1-8B", "TP=2"}, {"TP", "benchmark has no use for it"}},
      {{"-m", "Llama-3.1-8B", "-b", "4", "MBS=2"}, {"-b 4", "MBS=2", "disagree"}},
      {{"-m", "Llama-3.1-8B", "GAS=2"}, {"GAS=2 is for fine-tuning", "-t is pretrain"}},
      {{"-m", "Llama-3.1-8B", "-t", "finetune_fw", "MAX_STEPS=0"}, {"MAX_STEPS=0", "at least 1"}},
      {{"-m", "Llama-3.1-8B", "-t", "finetune_fw", "-f", "0", "CPU_OFFLOAD=1"}, {"CPU_OFFLOAD", "-f 0"}},
      {{"-m", "Llama-3.1-8B", "-t", "finetune_lora", "PACKED=perhaps"}, {"PACKED=perhaps", "switch"}},
      {{"-m", "Flux", "-t", "finetune_fw"}, {"-t finetune_fw -m Flux"}},
      {{"-m", "Flux", "-p", "FP8"}, {"-p FP8", "BF16"}},
      {{"-m", "Flux", "-s", "4096"}, {"-s 4096", "FLUX has no such choice"}},
      {{"-m", "Flux", "GAS=2"}, {"GAS=2 is for fine-tuning", "-m is Flux"}},
      {{"-m", "Llama-3.1-405B"}, {"-t pretrain -m Llama-3.1-405B", "finetune_fw"}},
      {{"-m", "Llama-3.1-70B", "-t", "finetune_lora", "-p", "FP8"}, {"-p FP8", "finetune_lora"}},
      {{"-m", "Llama-3.1-8B", "MOCK_DATA=0"}, {"MOCK_DATA=0", "DATA_PATH"}},
      {{"-m", "Llama-3.1-8B", "MOCK_DATA=0", "DATA_PATH=a"}, {"DATA_PATH=a", "a.idx"}},
      {{"--model_repo", "pyt_megatron_lm_train_llama-2-7b", "-t", "finetune_fw"}, {"-t finetune_fw"}},
  };
  for (const auto& [words, parts] : rows) {
    const std::string said = errors_in(benchmark_plan(words));
    for (const std::string& part : parts) EXPECT_NE(said.find(part), std::string::npos) << part << "\nnot in\n" << said;
  }
}

std::string input_in(const LaunchPlan& plan, std::string_view name) {
  for (const PlannedOption& one : plan.inputs) {
    if (one.name == name) return one.value;
  }
  return "(none)";
}

TEST(Benchmark, FluxHasThePagesFigures) {
  const LaunchPlan plan = benchmark_plan({"-m", "Flux"});
  EXPECT_EQ(errors_in(plan), "");
  EXPECT_EQ(plan.config, "flux_dev");
  for (const auto& [name, value] :
       std::initializer_list<std::pair<const char*, const char*>>{{"micro_batch_size", "10"},
                                                                  {"image_size", "512"},
                                                                  {"train_iters", "100"},
                                                                  {"use_torch_fsdp2", "true"},
                                                                  {"log_style", "pictures"},
                                                                  {"bf16", "true"},
                                                                  {"recompute_granularity", "full"}}) {
    EXPECT_EQ(option_in(plan, name), value) << name;
  }
  EXPECT_EQ(input_in(plan, "load_hf"), "black-forest-labs/FLUX.1-dev");
  EXPECT_EQ(input_in(plan, "data_path"), "pseudo-camera-10k");
  EXPECT_EQ(option_in(benchmark_plan({"-m", "Flux", "-b", "3"}), "micro_batch_size"), "3");
  EXPECT_EQ(input_in(benchmark_plan({"-m", "Flux", "DATA_PATH=pictures", "MODEL_DIR=flux"}), "data_path"), "pictures");
  const LaunchPlan made_up = benchmark_plan({"-m", "Flux", "MOCK_DATA=1"});
  EXPECT_EQ(option_in(made_up, "mock_data"), "true");
  EXPECT_TRUE(made_up.inputs.empty());
}

TEST(Benchmark, FineTuningHasThePagesFigures) {
  struct Row {
    const char *model, *batch, *seq_length, *rank;
  };
  for (const Row& row : {Row{"Llama-3.1-8B", "16", "8192", "8"}, Row{"Llama-3.1-70B", "4", "8192", "16"},
                         Row{"Llama-3.3-70B", "4", "8192", "16"}, Row{"Llama-2-7B", "32", "4096", "8"},
                         Row{"Llama-2-13B", "32", "4096", "8"}, Row{"Llama-2-70B", "8", "4096", "16"}}) {
    for (const char* mode : {"finetune_fw", "finetune_lora", "finetune_qlora", "HF_finetune_lora"}) {
      const LaunchPlan plan = benchmark_plan({"-t", mode, "-m", row.model, "-p", "BF16"});
      EXPECT_EQ(errors_in(plan), "");
      EXPECT_EQ(option_in(plan, "micro_batch_size"), row.batch);
      EXPECT_EQ(option_in(plan, "seq_length"), row.seq_length);
      EXPECT_EQ(option_in(plan, "gradient_accumulation_steps"), "1");
      EXPECT_EQ(option_in(plan, "train_iters"), "20");
      EXPECT_EQ(option_in(plan, "seed"), "42");
      EXPECT_EQ(option_in(plan, "recompute_granularity"), "full");
      EXPECT_EQ(option_in(plan, "log_style"), "torchtune");
      EXPECT_EQ(input_in(plan, "enable_packed_sequences"), "true");
      const bool is_full = mode == std::string("finetune_fw"), is_chat = mode == std::string("HF_finetune_lora");
      EXPECT_EQ(option_in(plan, "lr"), is_full ? "2e-5" : "3e-4");
      EXPECT_EQ(option_in(plan, "lora.dim"), is_full ? "(none)" : row.rank);
      EXPECT_EQ(option_in(plan, "lora.quantization"), mode == std::string("finetune_qlora") ? "nf4" : "(none)");
      EXPECT_EQ(option_in(plan, "exp_avg_dtype"), is_full ? "bf16" : "(none)");
      EXPECT_EQ(input_in(plan, "sft_data_path"), is_chat ? "HuggingFaceH4/ultrachat_200k" : "wikitext_train.json");
      EXPECT_EQ(plan.benchmark->made_rows, is_chat ? "" : "wikitext_train.json");
      EXPECT_EQ(plan.train_log, fmt::format("{}-{}.csv", row.model, mode));
      // What a dry run resolves reads nothing.
      const std::string dry = fmt::format("{}", fmt::join(plan.arguments_without_inputs(), " "));
      EXPECT_NE(dry.find("--mock_data true"), std::string::npos);
      EXPECT_EQ(dry.find("--load_hf"), std::string::npos);
    }
  }
}

TEST(Benchmark, FineTuningTakesTheVariablesOfItsScript) {
  const LaunchPlan plan =
      benchmark_plan({"-t", "finetune_lora", "-m", "Llama-3.1-8B"}, {{"MBS", "2"},
                                                                     {"GAS", "3"},
                                                                     {"SEQ_LEN", "4096"},
                                                                     {"PACKED", "False"},
                                                                     {"CPU_OFFLOAD", "True"},
                                                                     {"EPOCHS", "2"},
                                                                     {"ACTIVATION_CHECKPOINTING", "False"},
                                                                     {"MAX_STEPS", "60"},
                                                                     {"SEED", "7"},
                                                                     {"TRAIN_FILE", "mine.json"},
                                                                     {"MODEL_DIR", "/models/mine"},
                                                                     {"COMPILE", "True"}});
  EXPECT_EQ(errors_in(plan), "");
  EXPECT_EQ(option_in(plan, "micro_batch_size"), "2");
  EXPECT_EQ(option_in(plan, "gradient_accumulation_steps"), "3");
  EXPECT_EQ(option_in(plan, "seq_length"), "4096");
  EXPECT_EQ(option_in(plan, "fsdp_cpu_offload"), "true");
  EXPECT_EQ(option_in(plan, "train_iters"), "120");
  EXPECT_EQ(option_in(plan, "lr_decay_iters"), "(none)");  // longer than the warm-up
  EXPECT_EQ(option_in(plan, "seed"), "7");
  EXPECT_EQ(option_in(plan, "recompute_granularity"), "(none)");
  EXPECT_EQ(input_in(plan, "enable_packed_sequences"), "(none)");
  EXPECT_EQ(input_in(plan, "sft_data_path"), "mine.json");
  EXPECT_EQ(input_in(plan, "load_hf"), "/models/mine");
  EXPECT_EQ(plan.benchmark->made_rows, "");
  const std::string said = said_in(plan);
  for (const char* line : {"GAS=3: --gradient_accumulation_steps 3\n",
                           "TRAIN_FILE=mine.json: --sft_data_path mine.json\n", "COMPILE=1: no effect here"}) {
    EXPECT_NE(said.find(line), std::string::npos) << line << "not in\n" << said;
  }
  EXPECT_EQ(option_in(benchmark_plan({"-t", "finetune_fw", "-m", "Llama-3.1-405B"}), "fsdp_cpu_offload"), "true");
  // A toy, and whoever says so, trains on made-up tokens.
  const LaunchPlan toy = benchmark_plan({"-t", "finetune_fw", "-m", "Llama-3.1-8B", "TINY=1"});
  EXPECT_EQ(option_in(toy, "mock_data"), "true");
  EXPECT_TRUE(toy.inputs.empty());
  EXPECT_EQ(benchmark_plan({"-t", "finetune_fw", "-m", "Llama-3.1-8B", "MOCK_DATA=1"}).benchmark->made_rows, "");
}

TEST(Benchmark, FluxsFiguresAreMeansBehindTheWarmup) {
  std::string log;
  for (int step = 1; step <= 25; ++step) {
    const double rate = step <= 10 ? 1 : step;
    log += fmt::format(
        "step: {}/25 | step_loss: {:.5f} | step_time_total: {:.4f} | fps: {:.4f} | fps_gpu: {:.4f} | "
        "tflops/s: {:.4f} | memory: 1.00GiB\n",
        step, 0.1 * step, 10 / rate, 8 * rate, rate, 60 * rate);
  }
  const BenchmarkFigures figures = read_benchmark_figures(BenchmarkBackend::kFlux, log);
  ASSERT_EQ(figures.metrics.size(), 2U);
  EXPECT_EQ(figures.metrics[0].first, "FPS_per_GPU");
  EXPECT_DOUBLE_EQ(figures.metrics[0].second, 18);
  EXPECT_EQ(figures.metrics[1].first, "TFLOPS_per_GPU");
  EXPECT_DOUBLE_EQ(figures.metrics[1].second, 1080);
  EXPECT_TRUE(
      figures.summary.starts_with("avg_fps,avg_fps_gpu,avg_tflops,avg_step_time_total,avg_loss\n144,18,1080,0.59"))
      << figures.summary;
  EXPECT_TRUE(figures.summary.ends_with(",1.8\n")) << figures.summary;
  EXPECT_THROW(read_benchmark_figures(BenchmarkBackend::kFlux, "nothing\n"), UserError);
}

std::string torchtitan_log(int steps) {
  std::string log;
  for (int i = 0; i < steps; ++i) {
    log += fmt::format(
        "[titan] 2026-01-31 12:00:00,250 - root - INFO - step: {:2}  loss:  1.00000  grad_norm:  1.0000  "
        "memory:  1.00GiB(1.00%)  tps: 1,0{:02}  tflops: 2,3{:02}.50  mfu: N/A\n",
        i + 1, i, i);
  }
  return log;
}

double metric_of(const BenchmarkFigures& figures, std::string_view name) {
  for (const auto& [metric, value] : figures.metrics) {
    if (metric == name) return value;
  }
  return -1;
}
double tokens_of(const BenchmarkFigures& figures) { return metric_of(figures, "tok_per_s_per_gpu"); }
double tflops_of(const BenchmarkFigures& figures) { return metric_of(figures, "TFLOPS_per_gpu"); }

TEST(Benchmark, FineTuningsFiguresAreThoseOfTheLaterHalf) {
  std::string log = "Writing logs to x\n";
  for (int i = 1; i <= 4; ++i) {
    log += fmt::format(" iteration {}/ 4 | tokens per GPU (tokens/s/GPU): {}.0/9.0 |\n", i, 1000 * i);
    log += fmt::format("Step {} | loss:2 lr:3e-06 tokens_per_second_per_gpu:{}.5 peak_memory_alloc:{}.25 \n", i,
                       100 * i, i == 1 ? 9 : i);
  }
  BenchmarkFigures figures = read_benchmark_figures(BenchmarkBackend::kTorchtune, log);
  EXPECT_DOUBLE_EQ(metric_of(figures, "max_memory_alloc"), 4.25);
  EXPECT_DOUBLE_EQ(metric_of(figures, "avg_tokens_per_s_per_gpu"), 350.5);
  EXPECT_EQ(figures.lines,
            (std::vector<std::string>{"Max memory alloc (last half): 4.250000",
                                      "Average tokens/s/gpu (last half): 350.5000", "Max memory alloc: 9.250000",
                                      "Average tokens/s/gpu: 3000.0000", "Unmasked tokens/s/gpu: 300.5000"}));
  EXPECT_THROW(read_benchmark_figures(BenchmarkBackend::kTorchtune, "no step\n"), UserError);
}

TEST(Benchmark, ArticlesAreTheLinesBetweenTheirTitles) {
  std::vector<std::string> articles;
  ArticleMaker maker([&](const std::string& article) { articles.push_back(article); });
  for (const char* line : {"", " = First = \n", "", " Words . \n", " = = Part = = \n", "", " 2 = 2 = \n",
                           " = no title = \n", "", " = Second = \n", " More . \n"}) {
    maker.add(line);
  }
  maker.finish();
  ASSERT_EQ(articles.size(), 2U);
  EXPECT_EQ(articles[0], " = First = \n Words . \n = = Part = = \n 2 = 2 = \n = no title = \n");
  EXPECT_EQ(articles[1], " = Second = \n More . \n");
}

TEST(Benchmark, FiguresAreTheMeanOfLines30To39) {
  const BenchmarkFigures figures = read_benchmark_figures(BenchmarkBackend::kTorchtitan, torchtitan_log(50));
  EXPECT_DOUBLE_EQ(tokens_of(figures), 1034.5);  // of 1030 to 1039
  EXPECT_DOUBLE_EQ(tflops_of(figures), 2335.0);  // of 2330.5 to 2339.5
  EXPECT_EQ(figures.note, "");
}

TEST(Benchmark, AShortLogGivesTheMeanOfItsEndAndSaysSo) {
  BenchmarkFigures figures = read_benchmark_figures(BenchmarkBackend::kTorchtitan, torchtitan_log(25));
  EXPECT_DOUBLE_EQ(tokens_of(figures), 1019.5);  // of 1015 to 1024
  EXPECT_NE(figures.note.find("25 lines"), std::string::npos);
  figures = read_benchmark_figures(BenchmarkBackend::kTorchtitan, torchtitan_log(1));
  EXPECT_DOUBLE_EQ(tokens_of(figures), 1000);
  EXPECT_THROW(read_benchmark_figures(BenchmarkBackend::kTorchtitan, "no step\n"), UserError);
}

TEST(Benchmark, OtherBackendsHaveTheirOwnPatterns) {
  const std::string line =
      " iteration 1/ 2 | throughput per GPU (TFLOP/s/GPU): 10.0/9.0 | tokens per GPU (tokens/s/GPU): 100.0/90.0 |\n"
      " iteration 2/ 2 | throughput per GPU (TFLOP/s/GPU): 20.0/9.0 | tokens per GPU (tokens/s/GPU): 200.0/90.0 |\n";
  const std::string summary = "throughput per GPU: 15.0\ntokens/GPU/s: 150\n";
  BenchmarkFigures figures = read_benchmark_figures(BenchmarkBackend::kPrimus, line);
  EXPECT_DOUBLE_EQ(tokens_of(figures), 200);
  EXPECT_DOUBLE_EQ(tflops_of(figures), 20);
  figures = read_benchmark_figures(BenchmarkBackend::kMegatron, line + summary);
  EXPECT_DOUBLE_EQ(tokens_of(figures), 150);
  EXPECT_DOUBLE_EQ(tflops_of(figures), 15);
}

TEST(Benchmark, FilesOfResultsHaveTheColumnsOfTheirBackend) {
  ConfigInputs inputs;
  inputs.arguments = {"--config", "demo", "--mock_data", "--vocab_size=257", "--seq_length=32", "--micro_batch_size=2"};
  inputs.config_root = test::source_dir() / "configs";
  const auto resolved = resolve_config(all_kinds(), inputs, 8);
  BenchmarkRun run;
  run.model = "Llama-3.1-8B";
  run.mode = "pretrain";
  BenchmarkFigures figures{.metrics = {{"tok_per_s_per_gpu", 6310.25}, {"TFLOPS_per_gpu", 388.2}}};
  EXPECT_EQ(benchmark_csv(run, figures, *resolved, {"MI300X", "abc"}),
            "model,performance,metric,mode,build_commit\n"
            "Llama-3.1-8B,6310.2,tok_per_s_per_gpu,pretrain,abc\n"
            "Llama-3.1-8B,388.2,TFLOPS_per_gpu,pretrain,abc\n");
  run.backend = BenchmarkBackend::kMegatron;
  EXPECT_EQ(benchmark_csv(run, figures, *resolved, {"MI300X", "abc"}).substr(0, 44),
            "model,performance,metric,build_commit\nLlama-");
  run.backend = BenchmarkBackend::kPrimus;
  EXPECT_EQ(
      benchmark_csv(run, figures, *resolved, {"MI300X", "abc"}),
      "model,performance,metric,mode,precision,batch_size,global_batch_size,seq_len,device,num_gpus,build_commit\n"
      "Llama-3.1-8B,6310.2,tok_per_s_per_gpu,pretrain,BF16,2,16,32,MI300X,8,abc\n"
      "Llama-3.1-8B,388.2,TFLOPS_per_gpu,pretrain,BF16,2,16,32,MI300X,8,abc\n");
  run.backend = BenchmarkBackend::kTorchtune;
  run.mode = "HF_finetune_lora";
  figures.metrics = {{"max_memory_alloc", 120.5}, {"avg_tokens_per_s_per_gpu", 1000}};
  add_sample_rate(figures, *resolved);  // 8 GPUs, 32 tokens a sample
  EXPECT_EQ(benchmark_csv(run, figures, *resolved, {"MI300X", "abc"}),
            "model,performance,metric,mode,build_commit\n"
            "Llama-3.1-8B,250.0,train_samples_per_s,HF_finetune_lora,abc\n"
            "Llama-3.1-8B,120.5,max_memory_alloc,HF_finetune_lora,abc\n"
            "Llama-3.1-8B,1000.0,avg_tokens_per_s_per_gpu,HF_finetune_lora,abc\n");
  // Rows of other modes stay, those of this one are replaced; columns of another back end's file stay too.
  const std::string earlier =
      "model,performance,metric,mode,precision,build_commit\n"
      "Llama-3.1-8B,1.0,max_memory_alloc,HF_finetune_lora,BF16,old\n"
      "Llama-3.1-8B,6310.2,tok_per_s_per_gpu,pretrain,FP8,old\n";
  figures.metrics = {{"max_memory_alloc", 120.5}};
  EXPECT_EQ(benchmark_csv(run, figures, *resolved, {"MI300X", "abc"}, earlier),
            "model,performance,metric,mode,precision,build_commit\n"
            "Llama-3.1-8B,6310.2,tok_per_s_per_gpu,pretrain,FP8,old\n"
            "Llama-3.1-8B,120.5,max_memory_alloc,HF_finetune_lora,,abc\n");
  run.backend = BenchmarkBackend::kMegatron;
  EXPECT_EQ(
      benchmark_csv(run, figures, *resolved, {"MI300X", "abc"}, "model,performance,metric,build_commit\nm,1,a,b\n"),
      "model,performance,metric,build_commit\n"
      "Llama-3.1-8B,120.5,max_memory_alloc,abc\n");
  EXPECT_EQ(figures.lines.back(), "{'train_samples_per_second': 250.000000}");
}

TEST(Benchmark, EveryTagPlansWithoutAnError) {
  for (const BenchmarkTag& tag : benchmark_tags()) {
    const LaunchPlan plan = benchmark_plan({"--model_repo", std::string(tag.tag)});
    EXPECT_EQ(errors_in(plan), "") << tag.tag;
    EXPECT_EQ(plan.benchmark->results, fmt::format("perf_{}.csv", tag.model)) << tag.tag;
  }
}

}  // namespace
}  // namespace megalith
