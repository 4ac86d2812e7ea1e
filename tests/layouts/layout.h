// One way to spread a training run over ranks, and the run itself: a tiny decoder through the trainer's own objects,
// the ranks as threads. What every rank ends with is gathered by canonical name and compared with a single rank's.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/groups.h"
#include "comm/thread_devices.h"
#include "models/model.h"
#include "nn/expert_options.h"
#include "optim/optimizer.h"
#include "parallel/data_parallel.h"
#include "parallel/pipeline/pipeline_options.h"
#include "parallel/recompute_options.h"
#include "train/setup.h"
#include "verify/check_batch.h"
#include "verify/parallel_check.h"

namespace megalith::test {

// How gradients and parameters lie over the data-parallel ranks. The same name means the same factory.
struct DataParallelKind {
  std::string name = "replicated";
  // empty: GradBuffer
  std::function<std::unique_ptr<DataParallel>(const BuiltModel& model, const Groups& groups)> make;
};
DataParallelKind zero1();                   // the distributed optimizer
DataParallelKind zero1_between_matrices();  // the same with the buckets that Muon asks for
DataParallelKind fsdp();
DataParallelKind fsdp_on_host();  // runs in host memory

// The run that a layout must reproduce: all that may change its numbers.
struct TinyRun {
  bool is_tied = false, has_dropout = false, has_documents = false, has_qkv_bias = false, has_head_norms = false;
  bool is_olmo = false;  // norms behind attention and the MLP, and of whole queries and keys
  int64_t num_layers = 2;
  int64_t num_kv_heads = 4;  // of 8 heads
  int64_t global_batch = 8, sequence = 6;
  int64_t window = 0;  // tokens that one sees, itself included; 0: all before it
  // window_attn_skip_freq; where it is given, layers with a window also rotate by a base of their own.
  std::string windowed_layers = {};
  bool has_sinks = false;  // in the softmax of attention, one for each head
  // "gpt": squared ReLU, biases, learned positions; "gemma2", "gemma3"; "mixtral", "gpt_oss", "deepseek", "llama4":
  // with experts; "t5", "megatron_t5", "t5_experts", "megatron_t5_experts": num_layers in each of two stacks; "bert",
  // "megatron_bert" and "bert_experts", which is Megatron-LM's with them: masked, with labels of sentences;
  // "biencoder" and "biencoder_shared": questions and texts; "flux": pictures, num_layers joint and as many single
  // blocks, told the guidance unless is_tied
  std::string family = "llama";
  bool has_capacity = false;  // of experts, so that tokens are dropped
  DropPolicy drop_policy = DropPolicy::kProbability;
  bool is_masked = false;                // masked_lm, without causality
  std::optional<SilentDocument> silent;  // needs has_documents; tokens are not coupled then (verify/document_check.h)
  // "sgd", "lion", "adafactor", "adam8bit", "muon", "muon, joined" (queries, keys and values as one matrix), "adam on
  // the host" (of half of a rank's elements)
  std::string optimizer = "adam";
  std::string fp8_format = {};           // "hybrid", "e4m3": products of eight bits
  std::string fp8_recipe = "tensorwise";
  std::vector<std::string> adapters = {};  // lora.target_modules; given: only adapters are trained
  // "answers", "pairs": rows are packed samples of instruction data, whose questions carry no loss; or pairs of answers
  // with the loss of pairs; "ratings": rated answers with KTO's. 11 samples in rows of `sequence`, or one sample in
  // each.
  std::string packs = {};
  bool has_one_sample_a_row = false;
  double adapter_dropout = 0;
  bool drops_what_adapters_add = false;  // dropout_position post
  bool has_lengths = false;              // use_dora
  int64_t image_size = 48, text_length = 5;  // of flux: nine tokens of 16 x 16 pixels
  bool is_packed = false;                // lora.quantization nf4; wider, so that parts of rows begin with blocks

  bool has_experts() const {
    return family == "mixtral" || family == "gpt_oss" || family == "deepseek" || family == "llama4" ||
           family.ends_with("_experts");
  }
  bool is_t5() const { return family.find("t5") != std::string::npos; }
  bool is_bert() const { return family.find("bert") != std::string::npos; }
  bool is_flux() const { return family == "flux"; }
  bool is_biencoder() const { return family.starts_with("biencoder"); }
  std::string text() const;
  auto operator<=>(const TinyRun&) const = default;
};

struct Layout {
  int tp = 1, dp = 1, cp = 1, pp = 1;
  int dp_replicate = 1;  // copies of the shards: dp_shard x dp_replicate = dp
  bool is_sequence_parallel = false;
  int64_t micro_batch = 1;  // samples of a rank's microbatch; their number follows from the global batch
  TinyRun task;
  DataParallelKind data_parallel;
  RecomputeOptions recompute;
  std::vector<std::string> cp_comm_type = {"p2p"};  // one, or one a layer
  int cp_ulysses = 1;                               // of a2a+p2p: ranks of an all-to-all
  PipelineOptions pipeline;
  int ep = 1, etp = 0;  // etp 0: tp
  std::string dispatcher = "alltoall";
  bool overlaps_shared_expert = false;

  int world_size() const { return tp * cp * dp * pp; }
  int64_t num_microbatches() const;
  std::string text() const;  // "tp 2, dp 2, sequence parallel, 2 microbatches of 1, tied"
};

struct Precision {
  at::ScalarType dtype = at::kDouble;
  Kernels kernels = Kernels::kReference;
  const ThreadDevices* devices = nullptr;  // of the ranks; null: the CPU
  int graph_warmup_steps = 0;              // above 0: microbatches are graphs after so many steps
};

// Where a mistake can be put in without touching the program; every member may be empty.
struct Mistake {
  std::string name;
  CheckHooks hooks;
  std::function<PipelinePlan(PipelinePlan, const Groups&)> change_pipeline;  // what this rank takes it for
  std::optional<bool> is_of_experts;  // which layouts are tried: those with experts, those without; unset: all
  std::optional<OptimizerKind> rule;  // and those with this rule, whose ranks exchange; unset: those without such
};

// Gradient clipping is always at work in these runs: a wrong norm shows in the parameters.
inline constexpr double kClipGrad = 0.05;

// What the optimizer of a task is told: Muon in a way that every one of its options changes the numbers.
OptimizerOptions optimizer_of(const TinyRun& task);
// The rule, if its ranks exchange more than gradients and weights.
std::optional<OptimizerKind> exchanging(OptimizerKind rule);

// One outcome a rank. Learning rate and the rest are fixed.
std::vector<RankOutcome> run_layout(const Layout& layout, const Precision& precision, int num_steps,
                                    const Mistake* mistake = nullptr);
// The same task on one rank on the CPU, kept for the next layout that asks: in one microbatch, or in those of `layout`
// where the task's numbers are defined per microbatch (balance of experts, scales of eight-bit products), and of all
// ranks together where they are of such a set (a biencoder's loss).
const RankOutcome& single_rank_outcome(const Layout& layout, const Precision& precision, int num_steps);

// The comparison of verify/layout_check.h; a failure begins with the layout.
Comparison compare(const Layout& layout, const std::vector<RankOutcome>& ranks, const RankOutcome& expected,
                   double tolerance);

// The rows that the samples of a task with packs fill.
int64_t rows_of_packs(const TinyRun& task);

// Fails the running test where a layout is not as one rank: 3 steps on the reference operators to 1e-9, loss, norms,
// every gradient and every parameter; and one step on the fused ones to 1e-5.
void expect_as_one_rank_in_float64(const std::vector<Layout>& layouts);
void expect_as_one_rank_in_float32(const std::vector<Layout>& layouts);

}  // namespace megalith::test
