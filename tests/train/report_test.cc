// The start-up report and the table at the end, read by a person: whole texts, and the limits that hold for any run.
#include "kinds/kinds.h"
#include "train/report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <sstream>

#include "comm/fake_group.h"
#include "support/source_dir.h"
#include "train/rank_picture.h"
#include "train/run_end.h"

namespace megalith {
namespace {

using ReportWords = std::vector<std::string>;

std::unique_ptr<Resolved> resolved_run(const ReportWords& words, int64_t world_size = 1) {
  ConfigInputs inputs;
  inputs.arguments = words;
  inputs.config_root = test::source_dir() / "configs";
  return resolve_config(all_kinds(), inputs, world_size);
}

ReportWords demo_words(const ReportWords& more) {
  const std::string file = (test::source_dir() / "configs/experiments/demo.yaml").string();
  ReportWords words = {"--config", file, "--train_iters", "340"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

class SizedRows : public RowReader {
 public:
  SizedRows(std::string name, DataSize size) : name_(std::move(name)), size_(size) {}
  Batch read(std::span<const int64_t>) const override { return {}; }
  int64_t num_rows() const override { return 1; }
  std::string name() const override { return name_; }
  std::optional<DataSize> size() const override { return size_; }

 private:
  std::string name_;
  DataSize size_;
};

std::unique_ptr<BatchSource> sized_source(const std::string& name, DataSize size) {
  return std::make_unique<BatchSource>(std::make_shared<SizedRows>(name, size), Order(RowOrder::kOnce, 1, name));
}

std::string report_of(const Resolved& resolved, const ReportFacts& facts = {}, const MemoryByOwner* memory = nullptr,
                      const std::string& device = "CPU Test, 2 cores, AMX bf16, 24.0 GiB") {
  const Groups groups(Mesh::from_options(resolved.config.parallel, resolved.derived.world_size), /*world_rank=*/0,
                      fake_group_factory(/*rank=*/0));
  const BuiltModel built = build_model(resolved, groups, at::kMeta);
  return startup_report(resolved, count_model(built, resolved), memory, device, facts);
}

// "…" takes three bytes and one column.
size_t columns_of(const std::string& line) {
  return static_cast<size_t>(
      std::count_if(line.begin(), line.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0u) != 0x80u; }));
}

std::vector<std::string> lines_in(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

TEST(StartupReport, OfTheDemoIsThis) {
  const auto resolved =
      resolved_run(demo_words({"--mock_data", "--save", "out/checkpoint", "--metrics_file", "out/metrics.jsonl"}));
  DataSets data;
  data.train = sized_source("out/train_text_document", DataSize{1130, 3950413, 3950413.0 / 256});
  data.valid = sized_source("out/valid_text_document", DataSize{59, 202795});
  const MemoryByOwner memory{
      .parameters = 22 << 20, .gradients = 44 << 20, .optimizer = 132 << 20, .activations = 1 << 30};
  const std::string report = report_of(*resolved, {.data = &data, .flops_per_s = 0.5e12, .is_measured = true}, &memory,
                                       "CPU Test, 2 cores\nsetting");
  EXPECT_EQ("\n" + report, R"(
model      llama, 9,639,552 parameters: embedding 98.7 k, 6 layers 9.44 M, head 99.1 k
           hidden 384, ffn 1024, 6 heads of 64 (2 KV), vocabulary 257 (padded 384)
precision  bf16 weights and products; gradients, moments and master weights in fp32
optimizer  AdamW, beta1 0.9, beta2 0.95, weight decay 0.1, gradients clipped at norm 1
           learning rate 0.002, cosine to 0.0002 in 340 steps, 40 of them warm-up
data       train on 3.95 M tokens in 1.13 k documents, 0.353 epochs in this run: out/train_text_document
           evaluate on 203 k tokens in 59 documents, 8 batches every 100 steps: out/valid_text_document
batch      16 samples of 256 tokens = 1 microbatch of 16 on 1 data-parallel rank; 340 steps, 1.39 M tokens
layout     1 rank
device     CPU Test, 2 cores
memory     this rank: parameters 22.0 MiB, gradients 44.0 MiB, optimizer 132 MiB, activations about 1.00 GiB
compute    265 GFLOP a step (250 GFLOP with attention halved for causality); at 500 GFLOP/s, as this processor
           multiplies now, a step takes at least 0.53 s and the run 3 m 0 s
output     checkpoints in out/checkpoint at the end, metrics in out/metrics.jsonl)");
}

TEST(StartupReport, DrawsTheRanksOfALayout) {
  const auto resolved = resolved_run(demo_words({"--mock_data", "--tensor_model_parallel_size", "2",
                                                 "--pipeline_model_parallel_size", "2", "--global_batch_size", "64"}),
                                     /*world_size=*/8);
  const std::string report = report_of(*resolved);
  EXPECT_NE(report.find("\n           stage 0   dp0 [0 1]  dp1 [2 3]\n           stage 1   dp0 [4 5]  dp1 [6 7]\n"),
            std::string::npos)
      << report;
  EXPECT_NE(report.find("% idle by the simulator"), std::string::npos) << report;
}

ModelNumbers numbers_of(const ReportWords& more) {
  ReportWords words = {"--num_layers",
                       "2",
                       "--hidden_size",
                       "64",
                       "--num_attention_heads",
                       "4",
                       "--vocab_size",
                       "64",
                       "--seq_length",
                       "32",
                       "--max_position_embeddings",
                       "32",
                       "--position_embedding_type",
                       "rope",
                       "--mock_data",
                       "--global_batch_size",
                       "2"};
  words.insert(words.end(), more.begin(), more.end());
  const auto resolved = resolved_run(words);
  const Groups groups = Groups::single();
  return count_model(build_model(*resolved, groups, at::kMeta), *resolved);
}

// Forward and backward of a pair of a query and a key: 4 heads of 16 channels, twice 2 products, three times; 2
// samples.
TEST(ModelNumbers, AttentionIsCountedInFullAndAsFarAsItSees) {
  const double pair = 2.0 * 3 * 4 * 16 * 4, all = 32.0 * 32;
  const ModelNumbers causal = numbers_of({});
  const double rest = causal.flops_per_step - 2 * all * pair;
  EXPECT_DOUBLE_EQ(causal.flops_per_step_seen, rest + 2 * (all / 2) * pair);
  const auto pairs_seen = [&](const ReportWords& more) {
    const ModelNumbers numbers = numbers_of(more);
    EXPECT_DOUBLE_EQ(numbers.flops_per_step, causal.flops_per_step) << "windows and chunks do not change this count";
    return (numbers.flops_per_step_seen - rest) / pair;
  };
  // A query sees 8 keys, the first eight half of that.
  const double windowed = 32 * 8 - 8 * 8 / 2.0;
  EXPECT_DOUBLE_EQ(pairs_seen({"--window_size", "7,0"}), 2 * windowed);
  EXPECT_DOUBLE_EQ(pairs_seen({"--window_size", "7,0", "--window_attn_skip_freq", "2"}), windowed + all / 2);
  EXPECT_DOUBLE_EQ(pairs_seen({"--window_size", "99,0"}), 2 * all / 2) << "a window that reaches everywhere";
  // Two chunks of 12 and the rest of 8 in the layer that rotates.
  const double chunked = 2 * 12 * 12 / 2.0 + 8 * 8 / 2.0;
  EXPECT_DOUBLE_EQ(pairs_seen({"--attention_chunk_size", "12", "--no_rope_freq", "2"}), chunked + all / 2);
  EXPECT_DOUBLE_EQ(pairs_seen({"--task", "masked_lm", "--mask_token_id", "3", "--is_causal=false"}), 2 * all);
}

// Primus's formula for latent attention, for a token; the vocabulary needs no padding.
double primus_flops_per_token(const ModelConfig& c, double s) {
  const auto h = static_cast<double>(c.hidden_size), n = static_cast<double>(c.num_attention_heads);
  const double qk = 192, rope = 64, v = 128, rank_q = 1536, rank_kv = 512;
  const double q = rank_q / h * (1 + n * qk / h);
  const double kv = (rank_kv + rope) / h + rank_kv / h * n * (qk - rope + v) / h;
  const double experts = 3 * static_cast<double>(c.moe_router_topk + 1) * 2048 / h;
  const auto layers = static_cast<double>(c.num_layers);
  const double all = q + kv + s / h * n * (qk + v) / h + n * v / h + experts;
  return 6 * h * h * (layers * all + static_cast<double>(*c.vocab_size) / h);
}

TEST(ModelNumbers, TheLinesCountIsPrimussFormula) {
  const auto numbers = [](const std::string& preset, const ReportWords& more) {
    ReportWords words = {"--config", preset, "--mock_data", "--seq_length", "4096", "--global_batch_size", "2"};
    words.insert(words.end(), more.begin(), more.end());
    const auto resolved = resolved_run(words);
    const ModelNumbers found = count_model(build_model(*resolved, Groups::single(), at::kMeta), *resolved);
    return std::pair(found, primus_flops_per_token(resolved->config.model, 4096) * 2 * 4096);
  };
  // Three layers with experts, and a prediction module: 19.08 GFLOP a token, of 29.8.
  const auto [deep, formula] =
      numbers("deepseek_v3", {"--num_layers", "3", "--moe_layer_freq", "1", "--mtp_num_layers", "1"});
  EXPECT_NEAR(formula / (2 * 4096), 19.08e9, 0.01e9);
  EXPECT_NEAR(deep.flops_per_step_primus, formula, 1e-9 * formula);
  EXPECT_GT(deep.flops_per_step, 1.5 * formula);
  const auto without = numbers("deepseek_v3", {"--num_layers", "3", "--moe_layer_freq", "1", "--mtp_num_layers", "0"});
  EXPECT_DOUBLE_EQ(without.first.flops_per_step_primus, deep.flops_per_step_primus);
  // Only routers are beside it: 256 experts in three layers, three passes.
  EXPECT_NEAR(without.first.flops_per_step - formula, 6.0 * 7168 * 256 * 3 * 2 * 4096, 1e-6 * formula);
  const ModelNumbers dense = numbers_of({});
  EXPECT_DOUBLE_EQ(dense.flops_per_step_primus, dense.flops_per_step);
}

TEST(StartupReport, SaysWhichNumbersAreUsed) {
  const auto precision = [](const ReportWords& words) {
    const auto resolved = resolved_run(demo_words(words));
    for (const std::string& line : lines_in(report_of(*resolved))) {
      if (line.starts_with("precision  ")) return line.substr(11);
    }
    return std::string();
  };
  EXPECT_EQ(precision({"--mock_data"}), "bf16 weights and products; gradients, moments and master weights in fp32");
  EXPECT_EQ(precision({"--mock_data", "--fp32", "--bf16=false"}),
            "fp32 for weights, products, gradients and the optimizer");
  EXPECT_EQ(precision({"--mock_data", "--fp16", "--bf16=false"}),
            "fp16 weights and products; gradients, moments and master weights in fp32; dynamic loss scale");
  EXPECT_EQ(precision({"--mock_data", "--master_weights", "none", "--stochastic_rounding"}),
            "bf16 weights and products; gradients and moments in fp32, no master weights");
}

TEST(StartupReport, OfEveryPresetFits25LinesAnd110Columns) {
  int num_presets = 0;
  for (const auto& entry : std::filesystem::directory_iterator(test::source_dir() / "configs/models")) {
    if (entry.path().extension() != ".yaml") continue;
    ++num_presets;
    ReportWords words = {"--config",
                         entry.path().string(),
                         "--mock_data",
                         "--bf16",
                         "--global_batch_size",
                         "64",
                         "--save",
                         std::string(90, 'f'),
                         "--metrics_file",
                         "m.jsonl",
                         "--page_file",
                         "page.html",
                         "--loss_plot_file",
                         "loss.svg",
                         "--tensorboard_dir",
                         "events"};
    // No Hugging Face class has Megatron-LM's own forms of GELU, its T5, or two encoders.
    const std::string preset = entry.path().stem();
    const std::set<std::string> without_class = {"bert_345M", "demo_bert", "t5_220M", "ict_217M", "demo_ict"};
    if (!without_class.contains(preset)) words.insert(words.end(), {"--save_hf", std::string(90, 'g')});
    if (preset.starts_with("t5_") || preset == "demo_t5") words.insert(words.end(), {"--decoder_seq_length", "128"});
    const auto resolved = resolved_run(words, /*world_size=*/8);
    DataSets data;
    for (auto* source : {&data.train, &data.valid, &data.test}) {
      *source = sized_source(std::string(60, 'd'), DataSize{123456789, 1234567890123});
    }
    const MemoryByOwner memory{int64_t{1} << 40, int64_t{1} << 40, int64_t{1} << 40, int64_t{1} << 40,
                               int64_t{1} << 40};
    const std::string report = report_of(
        *resolved,
        {.attention = "cuDNN (1.31 ms a layer, and flash attention 1.87 ms)", .data = &data, .flops_per_s = 989e12},
        &memory);
    const std::vector<std::string> lines = lines_in(report);
    EXPECT_LE(lines.size(), kReportLines) << entry.path() << "\n" << report;
    for (const std::string& line : lines) EXPECT_LE(columns_of(line), kReportColumns) << entry.path() << "\n" << line;
  }
  EXPECT_GT(num_presets, 10);
}

Mesh mesh_of(int tp, int cp, int dp, int pp) { return Mesh(Mesh::Sizes{.tp = tp, .cp = cp, .dp = dp, .pp = pp}); }

TEST(RankPicture, ShowsWhoSharesWhat) {
  using Lines = std::vector<std::string>;
  EXPECT_EQ(rank_picture(Mesh::single(), 80), Lines());
  EXPECT_EQ(rank_picture(mesh_of(1, 1, 3, 1), 80), Lines({"ranks  dp0 [0]  dp1 [1]  dp2 [2]"}));
  EXPECT_EQ(rank_picture(mesh_of(4, 1, 1, 1), 80), Lines({"ranks  [0 1 2 3]"}));
  EXPECT_EQ(rank_picture(mesh_of(2, 2, 1, 1), 80), Lines({"ranks  [0 1 | 2 3]"}));
  EXPECT_EQ(rank_picture(mesh_of(2, 1, 2, 2), 80),
            Lines({"stage 0   dp0 [0 1]  dp1 [2 3]", "stage 1   dp0 [4 5]  dp1 [6 7]"}));
}

// Rows that are padded to the length of a sequence have fewer tokens than they take: 5440 samples of this run.
TEST(StartupReport, PassesAreCountedInSamples) {
  const auto resolved = resolved_run(demo_words({"--mock_data"}));
  DataSets data;
  data.train = sized_source("rows", DataSize{272, 1000, 272});
  EXPECT_NE(report_of(*resolved, {.data = &data}).find("1.00 k tokens in 272 documents, 20 epochs in this run"),
            std::string::npos)
      << report_of(*resolved, {.data = &data});
  data.train = sized_source("sentences", DataSize{272, 1000});
  EXPECT_EQ(report_of(*resolved, {.data = &data}).find("epochs"), std::string::npos);
}

TEST(RankPicture, LeavesOutTheMiddleOfWhatIsLarge) {
  const std::vector<std::string> lines = rank_picture(mesh_of(8, 2, 16, 16), 60);
  ASSERT_EQ(lines.size(), 4U);
  EXPECT_EQ(lines[0], "stage 0   dp0 [0 … 15]  dp1 [16 … 31]  …  dp15 [240 … 255]");
  EXPECT_EQ(lines[2], "…");
  EXPECT_EQ(lines[3], "stage 15  dp0 [3840 … 3855]  …  dp15 [4080 … 4095]");
}

TEST(RunEnd, IsATableForPeople) {
  const auto resolved =
      resolved_run(demo_words({"--mock_data", "--tokenizer_type", "ByteTokenizer", "--save", "out/my run",
                               "--metrics_file", "out/metrics.jsonl", "--page_file", "out/page.html"}));
  double now_s = 0;
  std::string text;
  RunEnd end(
      *resolved, [&](std::string_view line) { text += line; }, [&] { return now_s; });
  for (int64_t i = 1; i <= 340; ++i) {
    StepRecord record;
    record.iteration = i;
    record.train_iters = 340;
    record.losses = {{"lm loss", i <= 320 ? 9.0 : 1.5}};
    record.elapsed_ms = 800;
    record.tokens = 4096;
    record.flops = 0.4e12;
    record.memory_peak_bytes = int64_t{1} << 30;
    end.on_step(record);
    if (i % 100 == 0) end.on_validation({.iteration = i, .when = "", .losses = {{"lm loss", i == 200 ? 1.25 : 2.0}}});
  }
  now_s = 271;
  end.on_end();
  EXPECT_EQ(text, R"(
done        340 of 340 steps in 4 m 31 s
loss        1.5000 in training (mean of the last 20 steps)
            2.0000 on validation (least 1.2500 after step 200)
speed       5.12 k tokens/s, 800 ms a step, 0.5 TFLOP/s; 1.39 M tokens in all
memory      tensors took 1.00 GiB at most
checkpoint  out/my run
metrics     out/metrics.jsonl
page        out/page.html
next        megalith generate --load 'out/my run' --prompt "…"
            megalith inspect checkpoint 'out/my run'
)");
}

TEST(RunEnd, OfAStoppedRunWithoutACheckpointSaysSo) {
  const auto resolved = resolved_run(demo_words({"--mock_data"}));
  std::string text;
  RunEnd end(
      *resolved, [&](std::string_view line) { text += line; }, [] { return 0.0; });
  end.on_end();
  EXPECT_EQ(text, "") << "nothing was done";
  StepRecord record;
  record.iteration = 21;
  record.train_iters = 340;
  record.losses = {{"lm loss", 3.0}};
  end.on_step(record);
  end.on_end();
  EXPECT_NE(text.find("\nstopped     21 of 340 steps, 1 of them in this run in 0.00 s\n"), std::string::npos) << text;
  EXPECT_NE(text.find("\nloss        3.0000 in training (of the last step)\n"), std::string::npos) << text;
  EXPECT_NE(text.find("\nweights     were not saved; --save FOLDER saves them\n"), std::string::npos) << text;
}

}  // namespace
}  // namespace megalith
