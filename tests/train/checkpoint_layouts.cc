#include "train/checkpoint_layouts.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/checkpoint_reader.h"
#include "checkpoint/manifest.h"
#include "comm/thread_world.h"
#include "data/indexed_writer.h"
#include "device/threads.h"
#include "kinds/kinds.h"
#include "support/source_dir.h"
#include "support/temporary_folder.h"
#include "train/trainer.h"

namespace megalith::test {
namespace {

struct StepLossSink : MetricsSink {
  explicit StepLossSink(StepLosses& losses) : losses(losses) {}
  void on_step(const StepRecord& record) override { losses.emplace_back(record.iteration, record.losses.at(0).second); }
  StepLosses& losses;
};

}  // namespace

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

StepLosses train_layout(const std::vector<std::string>& model, const DataLayout& layout,
                        const std::vector<std::string>& more) {
  const int etp = layout.etp == 0 ? layout.tp : layout.etp;
  StepLosses losses;
  const auto body = [&](const Groups& groups) {
    const SingleThreadedScope one_thread;
    ConfigInputs inputs;
    inputs.arguments = {"--vocab_size=67",
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
    if (layout.ep > 1 || etp != layout.tp) {
      inputs.arguments.push_back(fmt::format("--expert_model_parallel_size={}", layout.ep));
      inputs.arguments.push_back(fmt::format("--expert_tensor_parallel_size={}", etp));
    }
    for (const auto* words : {&model, &layout.words, &more}) {
      inputs.arguments.insert(inputs.arguments.end(), words->begin(), words->end());
    }
    inputs.config_root = test::source_dir() / "configs";
    const auto resolved = resolve_config(all_kinds(), inputs, groups.world->size());
    Logger log{LoggerSettings{.write = [](std::string_view) {}}};
    StopRequest never{0};
    Trainer trainer(*resolved, groups, at::kCPU, log, never);
    trainer.load();
    std::vector<std::unique_ptr<MetricsSink>> sinks;
    if (groups.rank == 0) sinks.push_back(std::make_unique<StepLossSink>(losses));
    trainer.run(std::move(sinks));
  };
  const Mesh mesh({.tp = layout.tp, .cp = layout.cp, .dp = layout.dp, .pp = layout.pp, .etp = etp, .ep = layout.ep});
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

void expect_every_layout_goes_on_from_every_other(const std::vector<std::string>& model,
                                                  const std::vector<DataLayout>& layouts, const std::string& precision,
                                                  double tolerance, const std::string& data) {
  const TemporaryFolder documents;
  const std::string words = data.empty() ? "--data_path=" + write_documents(documents.path()) : data;
  const StepLosses straight = train_layout(model, layouts[0], {words, "--train_iters=6", precision});
  ASSERT_EQ(straight.size(), 6u);
  for (size_t from = 0; from < layouts.size(); ++from) {
    const TemporaryFolder saved;
    const std::string load = "--load=" + saved.path().string();
    train_layout(model, layouts[from],
                 {words, "--train_iters=6", "--exit_interval=3", precision, "--save", saved.path().string()});
    const TensorMap written = stored_tensors(saved.path(), 3);
    ASSERT_GT(written.size(), 20u);
    for (size_t to = 0; to < layouts.size(); ++to) {
      if (from == to) continue;
      const std::string what = layouts[from].name + " to " + layouts[to].name;
      // Later losses depend on the state, which is compared below, and on the layout that goes on.
      if (tolerance > 0 && to == (from + 1) % layouts.size()) {
        const StepLosses resumed = train_layout(model, layouts[to], {words, "--train_iters=6", load, precision});
        ASSERT_EQ(resumed.size(), 3u) << what;
        for (size_t k = 0; k < 3; ++k) {
          EXPECT_EQ(resumed[k].first, straight[3 + k].first);
          EXPECT_NEAR(resumed[k].second, straight[3 + k].second, tolerance * straight[3 + k].second) << what;
        }
      }
      const TemporaryFolder again;
      train_layout(model, layouts[to],
                   {words, "--train_iters=3", load, precision, "--save", again.path().string()});
      const TensorMap read = stored_tensors(again.path(), 3);
      ASSERT_EQ(written.size(), read.size()) << what;
      for (const auto& [name, tensor] : written) EXPECT_TRUE(at::equal(read.at(name), tensor)) << what << ": " << name;
    }
  }
}

}  // namespace megalith::test
