// Checkpoints through the trainer, from every way of sharding to every other.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/checkpoint_reader.h"
#include "checkpoint/manifest.h"
#include "comm/thread_world.h"
#include "data/indexed_writer.h"
#include "device/threads.h"
#include "support/module_tools.h"
#include "support/temporary_folder.h"
#include "train/trainer.h"

namespace megalith {
namespace {

using test::TensorMap;

using StepLosses = std::vector<std::pair<int64_t, double>>;

struct StepLossSink : MetricsSink {
  explicit StepLossSink(StepLosses& losses) : losses(losses) {}
  void on_step(const StepRecord& record) override { losses.emplace_back(record.iteration, record.losses.at(0).second); }
  StepLosses& losses;
};

struct DataLayout {
  std::string name;
  int tp, dp;
  std::vector<std::string> words;
  int cp = 1, pp = 1;
};

// Forty documents of 8 to 47 tokens; mock data would take longer to index than the runs take.
std::string write_documents(const std::filesystem::path& folder) {
  const std::string prefix = (folder / "documents").string();
  IndexedDatasetWriter writer(prefix, TokenType::kUint16);
  for (int32_t d = 0; d < 40; ++d) {
    std::vector<int32_t> ids;
    for (int32_t p = 0; p < 8 + d; ++p) ids.push_back((d * 31 + p * (d + 1)) % 67);
    writer.add_sequence(ids);
    writer.end_document();
  }
  writer.finish();
  return prefix;
}

// Trains and gives rank 0's losses.
StepLosses train_layout(const DataLayout& layout, const std::vector<std::string>& more) {
  StepLosses losses;
  const auto body = [&](const Groups& groups) {
    const SingleThreadedScope one_thread;
    ConfigInputs inputs;
    inputs.arguments = {"--num_layers=4",
                        "--hidden_size=32",
                        "--num_attention_heads=2",
                        "--vocab_size=67",
                        "--max_position_embeddings=16",
                        "--swiglu",
                        "--normalization=RMSNorm",
                        "--split=100,0,0",
                        "--position_embedding_type=rope",
                        "--disable_bias_linear",
                        "--eval_iters=0",
                        "--lr=1e-2",
                        "--lr_decay_style=constant",
                        "--micro_batch_size=1",
                        "--global_batch_size=4"};
    inputs.arguments.push_back(fmt::format("--tensor_model_parallel_size={}", layout.tp));
    inputs.arguments.push_back(fmt::format("--context_parallel_size={}", layout.cp));
    inputs.arguments.push_back(fmt::format("--pipeline_model_parallel_size={}", layout.pp));
    for (const auto* words : {&layout.words, &more}) {
      inputs.arguments.insert(inputs.arguments.end(), words->begin(), words->end());
    }
    inputs.config_root = std::filesystem::path(MEGALITH_SOURCE_DIR) / "configs";
    const auto resolved = resolve_config(inputs, groups.world->size());
    Logger log{LoggerSettings{.write = [](std::string_view) {}}};
    StopRequest never{0};
    Trainer trainer(*resolved, groups, at::kCPU, log, never);
    trainer.load();
    std::vector<std::unique_ptr<MetricsSink>> sinks;
    if (groups.rank == 0) sinks.push_back(std::make_unique<StepLossSink>(losses));
    trainer.run(std::move(sinks));
  };
  const Mesh mesh({.tp = layout.tp, .cp = layout.cp, .dp = layout.dp, .pp = layout.pp, .etp = layout.tp});
  if (mesh.world_size() == 1) {
    body(Groups::single());
  } else {
    // dp_replicate follows from the options, so each rank makes its groups itself.
    ThreadWorld(mesh.world_size()).run([&](int rank, const GroupFactory& factory) {
      Mesh::Sizes sizes = mesh.sizes();
      for (const std::string& word : layout.words) {
        if (word == "--num_distributed_optimizer_instances=2") sizes.dp_replicate = 2;
      }
      body(Groups(Mesh(sizes), rank, factory));
    });
  }
  return losses;
}

// The first is one rank; six others, each sharded in another way.
std::vector<DataLayout> data_layouts() {
  const std::string zero = "--use_distributed_optimizer", fsdp = "--use_torch_fsdp2";
  return {{"one rank", 1, 1, {}},
          {"replicated dp2", 1, 2, {}},
          {"zero dp4, overlapped, small buckets",
           1,
           4,
           {zero, "--overlap_grad_reduce", "--overlap_param_gather", "--ddp_bucket_size=1000"}},
          {"zero dp4 in two instances", 1, 4, {zero, "--num_distributed_optimizer_instances=2"}},
          {"zero dp2 tp2", 2, 2, {zero, "--overlap_grad_reduce", "--overlap_param_gather", "--sequence_parallel"}},
          {"fsdp dp4", 1, 4, {fsdp}},
          {"fsdp dp2 tp2, recomputed",
           2,
           2,
           {fsdp, "--recompute_granularity=full", "--recompute_method=uniform", "--recompute_num_layers=1"}}};
}

// Pipelines and shared sequences; embeddings are tied, so both ends of a pipeline hold the table.
std::vector<DataLayout> pipeline_layouts() {
  const std::string zero = "--use_distributed_optimizer";
  return {
      {"one rank", 1, 1, {}},
      {"pp2", 1, 1, {}, 1, 2},
      {"pp2 x 2 dp2, zero", 1, 2, {zero, "--num_virtual_stages_per_pipeline_rank=2", "--overlap_grad_reduce"}, 1, 2},
      {"tp2 pp2, zero bubble in a V", 2, 1, {"--pp_algorithm=zbv-formatted", "--sequence_parallel"}, 1, 2},
      {"cp2 dp2, zero", 1, 2, {zero}, 2, 1},
      {"tp2 cp2 pp2, uneven", 2, 1, {"--decoder_first_pipeline_num_layers=1"}, 2, 2},
      {"cp2 fsdp dp2", 1, 2, {"--use_torch_fsdp2"}, 2, 1}};
}

// Everything a checkpoint's files hold, by canonical name.
TensorMap stored_tensors(const std::filesystem::path& folder, int64_t iteration) {
  const std::filesystem::path path = folder / checkpoint_folder_name(iteration);
  TensorMap tensors;
  for (const auto& [key, store] : open_checkpoint(path, load_manifest(path))) {
    for (const auto& [name, entry] : store.entries()) {
      at::Tensor& tensor = tensors[key + "/" + name] = at::empty(entry.shape, at::kFloat);
      store.read(name, Box::whole(entry.shape), tensor);
    }
  }
  return tensors;
}

// Saved under each layout and resumed under each other: parameters and optimizer state are the same bytes, gathered by
// saving them again untrained, and in fp32 the curve is that of one rank.
struct LayoutCase {
  std::string name;
  std::vector<DataLayout> (*layouts)();
  std::string precision;
};
class EveryLayout : public ::testing::TestWithParam<LayoutCase> {};

TEST_P(EveryLayout, GoesOnFromEveryOther) {
  const std::string precision = GetParam().precision;
  const std::vector<DataLayout> layouts = GetParam().layouts();
  const test::TemporaryFolder data;
  const std::string data_path = "--data_path=" + write_documents(data.path());
  const StepLosses straight = train_layout(layouts[0], {data_path, "--train_iters=6", precision});
  ASSERT_EQ(straight.size(), 6u);
  // bf16 activations: sums in another order move a loss of 4 by a few 1e-2.
  const double tolerance = precision == "--fp32" ? 1e-5 : 2e-2;
  for (size_t from = 0; from < layouts.size(); ++from) {
    const test::TemporaryFolder saved;
    const std::string load = "--load=" + saved.path().string();
    train_layout(layouts[from],
                 {data_path, "--train_iters=6", "--exit_interval=3", precision, "--save", saved.path().string()});
    const TensorMap written = stored_tensors(saved.path(), 3);
    ASSERT_GT(written.size(), 20u);
    for (size_t to = 0; to < layouts.size(); ++to) {
      if (from == to) continue;
      const std::string what = layouts[from].name + " to " + layouts[to].name;
      const StepLosses resumed = train_layout(layouts[to], {data_path, "--train_iters=6", load, precision});
      ASSERT_EQ(resumed.size(), 3u) << what;
      for (size_t k = 0; k < 3; ++k) {
        EXPECT_EQ(resumed[k].first, straight[3 + k].first);
        EXPECT_NEAR(resumed[k].second, straight[3 + k].second, tolerance * straight[3 + k].second) << what;
      }
      const test::TemporaryFolder again;
      train_layout(layouts[to], {data_path, "--train_iters=3", load, precision, "--save", again.path().string()});
      const TensorMap read = stored_tensors(again.path(), 3);
      ASSERT_EQ(written.size(), read.size()) << what;
      for (const auto& [name, tensor] : written) EXPECT_TRUE(at::equal(read.at(name), tensor)) << what << ": " << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(CheckpointLayouts, EveryLayout,
                         ::testing::Values(LayoutCase{"data_fp32", data_layouts, "--fp32"},
                                           LayoutCase{"data_bf16", data_layouts, "--bf16"},
                                           LayoutCase{"pipeline_fp32", pipeline_layouts, "--fp32"},
                                           LayoutCase{"pipeline_bf16", pipeline_layouts, "--bf16"}),
                         [](const auto& info) { return info.param.name; });

// Under one layout a run that was stopped is the run in one go, to the last bit.
TEST(CheckpointLayouts, TheSameLayoutGoesOnBitForBit) {
  const test::TemporaryFolder data;
  const std::string data_path = "--data_path=" + write_documents(data.path());
  std::vector<DataLayout> layouts = data_layouts();
  for (const DataLayout& layout : pipeline_layouts()) layouts.push_back(layout);
  for (const DataLayout& layout : layouts) {
    for (const char* precision : {"--fp32", "--bf16"}) {
      const StepLosses straight = train_layout(layout, {data_path, "--train_iters=6", precision});
      const test::TemporaryFolder saved;
      const std::string folder = saved.path().string();
      train_layout(layout, {data_path, "--train_iters=6", "--exit_interval=2", "--save", folder, precision});
      const StepLosses resumed = train_layout(layout, {data_path, "--train_iters=6", "--load", folder, precision});
      EXPECT_EQ(resumed, StepLosses(straight.begin() + 2, straight.end())) << layout.name << " " << precision;
    }
  }
}

}  // namespace
}  // namespace megalith
