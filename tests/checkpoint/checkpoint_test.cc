// Native checkpoints: what is saved comes back bit for bit, in the same layout and in any other.
#include <gtest/gtest.h>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/checkpoint_reader.h"
#include "checkpoint/checkpoint_writer.h"
#include "comm/thread_world.h"
#include "core/error.h"
#include "support/temporary_folder.h"
#include "toy_state.h"

namespace megalith {
namespace {

using namespace test;  // NOLINT: the toy model's helpers
namespace fs = std::filesystem;

TEST(Checkpoint, RoundTripIsBitEqual) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t block_bytes : {1, 64, 1 << 20}) {
      const TemporaryFolder folder;
      const Groups groups = Groups::single();
      CapturedLog log;
      ToyState toy(optimizer_keys(dtype));
      const TrainState train = toy.state.train;
      const fs::path path = save_checkpoint(folder.path(), toy.state, groups, log.log, {.block_bytes = block_bytes});
      EXPECT_EQ(path.filename(), "iter_0000003");
      EXPECT_EQ(read_pointer(folder.path()).iteration, 3);
      EXPECT_TRUE(verify_checkpoint(path, *groups.world).empty());
      toy.clear();
      const Manifest manifest = load_checkpoint(path, toy.state, groups);
      EXPECT_EQ(toy.first_difference(), "");
      EXPECT_EQ(toy.state.train, train);
      EXPECT_EQ(manifest.configuration, toy.state.configuration);
      EXPECT_FALSE(manifest.torch_version.empty());
    }
  }
}

TEST(Checkpoint, OneRankWritesWholeTensorsUnderCanonicalNames) {
  const TemporaryFolder folder;
  CapturedLog log;
  const ToyState toy(optimizer_keys());
  const fs::path path = save_checkpoint(folder.path(), toy.state, Groups::single(), log.log);
  const TensorStore store = TensorStore::open_folder(path);  // as any reader of safetensors would
  EXPECT_EQ(store.entries().size(), 9u);
  const auto* q = store.find("layers.0.q_proj.weight");
  ASSERT_NE(q, nullptr);
  EXPECT_EQ(q->shape, (std::vector<int64_t>{12, 5}));
  EXPECT_EQ(q->dtype, SafetensorsDtype::kBf16);
  EXPECT_EQ(store.find("embed.weight")->shape, (std::vector<int64_t>{7, 5}));          // no padding on disk
  EXPECT_EQ(store.find("layers.0.c_fc.weight")->shape, (std::vector<int64_t>{5, 6}));  // as the file keeps it
}

TEST(Checkpoint, SavingTwiceGivesTheSameBytes) {
  const TemporaryFolder a, b;
  CapturedLog log;
  const ToyState toy(optimizer_keys());
  const fs::path pa = save_checkpoint(a.path(), toy.state, Groups::single(), log.log);
  const fs::path pb = save_checkpoint(b.path(), toy.state, Groups::single(), log.log, {.block_bytes = 7});
  int num_files = 0;
  for (const auto& entry : fs::directory_iterator(pa)) {
    EXPECT_EQ(read_file(entry.path()), read_file(pb / entry.path().filename())) << entry.path();
    ++num_files;
  }
  EXPECT_EQ(num_files, 5);
}

struct Layout {
  int tp = 1, dp = 1;
};

// Runs `body(groups, toy)` on every rank of a layout, each with its part of the toy model.
void on_all_ranks(const Layout& layout, const std::vector<ToyKey>& keys,
                  const std::function<void(const Groups&, ToyState&)>& body) {
  const Mesh mesh({.tp = layout.tp, .dp = layout.dp});
  const auto run = [&](Groups& groups) {
    ToyState toy(keys, layout.tp, mesh.coordinate(Axis::kTp, groups.rank), layout.dp,
                 mesh.coordinate(Axis::kDp, groups.rank));
    body(groups, toy);
  };
  if (mesh.world_size() == 1) {
    Groups groups = Groups::single();
    run(groups);
  } else {
    ThreadWorld(mesh.world_size()).run(mesh, run);
  }
}

TEST(Checkpoint, AnyLayoutLoadsUnderAnyOther) {
  const std::vector<Layout> layouts = {{1, 1}, {2, 1}, {1, 2}, {2, 2}, {1, 3}};
  for (const Layout& from : layouts) {
    const TemporaryFolder folder;
    on_all_ranks(from, optimizer_keys(), [&](const Groups& groups, ToyState& toy) {
      CapturedLog log;
      save_checkpoint(folder.path(), toy.state, groups, log.log);
    });
    for (const Layout& to : layouts) {
      on_all_ranks(to, optimizer_keys(), [&](const Groups& groups, ToyState& toy) {
        CapturedLog log;
        const auto found = find_checkpoint(folder.path(), std::nullopt, *groups.world, log.log);
        ASSERT_TRUE(found.has_value());
        toy.clear();
        load_checkpoint(found->folder, toy.state, groups);
        EXPECT_EQ(toy.first_difference(), "")
            << "tp" << from.tp << " dp" << from.dp << " -> tp" << to.tp << " dp" << to.dp;
        EXPECT_EQ(toy.state.train.consumed_train_samples, 96);
      });
    }
  }
}

TEST(Checkpoint, ReplicasAreWrittenOnceAndSpread) {
  const TemporaryFolder folder;
  std::vector<int64_t> bytes(4);
  on_all_ranks({.tp = 1, .dp = 4}, {{"model"}}, [&](const Groups& groups, ToyState& toy) {
    CapturedLog log;
    CheckpointWriter writer(folder.path(), toy.state, groups, log.log);
    bytes[static_cast<size_t>(groups.rank)] = writer.num_bytes();
    writer.write();
    writer.finish();
  });
  const Manifest manifest = load_manifest(folder.path() / "iter_0000003");
  EXPECT_EQ(manifest.chunks.size(), 9u);
  EXPECT_EQ(manifest.layout.at("dp"), 4);
  const int64_t all = 4 * (24 * 5 + 28 * 5 + 5 * 14 + 7 * 5 + 30 + 5);
  EXPECT_EQ(bytes[0] + bytes[1] + bytes[2] + bytes[3], all);
  // The largest tensor (140 elements) sets the bound: no rank writes more than that when four share 400.
  for (const int64_t one : bytes) EXPECT_LE(one, 4 * 140);
}

TEST(Checkpoint, FailureOnOneRankFailsAllAndLeavesNothing) {
  const TemporaryFolder folder;
  std::vector<std::string> messages(2);
  on_all_ranks({.tp = 2, .dp = 1}, {{"model"}}, [&](const Groups& groups, ToyState& toy) {
    CapturedLog log;
    SaveSettings settings;
    if (groups.rank == 1) {
      settings.before_step = [](std::string_view step) {
        if (step == "flush file") throw UserError("the disk is gone", "plug it in");
      };
    }
    messages[static_cast<size_t>(groups.rank)] =
        message_of([&] { save_checkpoint(folder.path(), toy.state, groups, log.log, settings); });
  });
  EXPECT_EQ(messages[0], "[rank 1] the disk is gone\nplug it in");
  EXPECT_EQ(messages[1], "the disk is gone\nplug it in");
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(Checkpoint, TiedWeightWithTwoOwnersIsStoredOnce) {
  const TemporaryFolder folder;
  const Mesh mesh({.pp = 2});
  ThreadWorld(2).run(mesh, [&](Groups& groups) {
    CapturedLog log;
    ToyState toy({{"model"}});
    save_checkpoint(folder.path(), toy.state, groups, log.log);  // both stages hold everything
  });
  EXPECT_EQ(load_manifest(folder.path() / "iter_0000003").chunks.size(), 9u);
}

TEST(Checkpoint, ATensorThatNoRankHoldsWholeIsAnInternalError) {
  const TemporaryFolder folder;
  CapturedLog log;
  ToyState half({{"model"}}, /*tp=*/2, /*tp_rank=*/0);
  EXPECT_THROW(save_checkpoint(folder.path(), half.state, Groups::single(), log.log), InternalError);
  EXPECT_TRUE(list_checkpoints(folder.path()).empty());
}

TEST(Checkpoint, WeightsMoveBetweenPrecisions) {
  const TemporaryFolder folder;
  const Groups groups = Groups::single();
  CapturedLog log;
  // The bf16 model holds other values than its fp32 master here, so that it shows which one was read.
  ToyState mixed({{"model", at::kBFloat16}, {"master", at::kFloat}});
  const fs::path path = save_checkpoint(folder.path(), mixed.state, groups, log.log);

  ToyState full({{"model", at::kFloat, false, "master"}});
  full.clear();
  load_checkpoint(path, full.state, groups);
  EXPECT_EQ(full.first_difference(), "");  // fp32 weights come from the master

  ToyState half({{"model", at::kHalf, false, "model"}});
  half.clear();
  load_checkpoint(path, half.state, groups);
  EXPECT_EQ(half.first_difference(), "");  // as wide as what is stored: from the model

  const TemporaryFolder other;
  ToyState plain({{"model", at::kFloat}});
  const fs::path plain_path = save_checkpoint(other.path(), plain.state, groups, log.log);
  ToyState again({{"model", at::kBFloat16}, {"master", at::kFloat, true, "model"}});
  again.clear();
  load_checkpoint(plain_path, again.state, groups);
  EXPECT_EQ(again.first_difference(), "");  // a master is made from the model
}

TEST(Checkpoint, WholeNumbersAreNoWeightsAndNoMoments) {
  for (const char* key : {"model", "master", "exp_avg", "exp_avg_sq"}) {
    for (const at::ScalarType dtype : {at::kInt, at::kBool}) {
      const TemporaryFolder folder;
      CapturedLog log;
      std::vector<ToyKey> keys = optimizer_keys(at::kFloat);
      for (ToyKey& toy_key : keys) {
        if (toy_key.key == key) toy_key.dtype = dtype;
      }
      const ToyState stored(keys);
      const fs::path path = save_checkpoint(folder.path(), stored.state, Groups::single(), log.log);
      ToyState toy(optimizer_keys(at::kFloat));
      const std::string message = message_of([&] { load_checkpoint(path, toy.state, Groups::single()); });
      const std::string type = dtype == at::kInt ? "I32" : "BOOL";
      EXPECT_TRUE(contains(message, fmt::format("is of type {}, expected one of BF16, F16, F32, F64", type))) << key;
      EXPECT_TRUE(contains(message, path.string() + "/")) << key;
    }
  }
}

TEST(Checkpoint, WithoutOptimizerOnlyWeightsAreWrittenAndTheLoadSaysSo) {
  const TemporaryFolder folder;
  const Groups groups = Groups::single();
  CapturedLog log;
  ToyState toy(optimizer_keys());
  const fs::path path = save_checkpoint(folder.path(), toy.state, groups, log.log, {.with_optimizer = false});
  EXPECT_FALSE(fs::exists(path / "exp_avg.safetensors"));
  const std::string message = message_of([&] { load_checkpoint(path, toy.state, groups); });
  EXPECT_TRUE(contains(message, "18 missing: exp_avg embed.weight"));
  EXPECT_TRUE(contains(message, "--no_load_optim"));

  ToyState weights({{"model", at::kBFloat16}, {"master", at::kFloat, true, "model"}, {"exp_avg", at::kFloat}});
  weights.clear();
  for (size_t i = 12; i < 18; ++i) weights.expected[i].fill_(-99);  // the moments stay as they are
  load_checkpoint(path, weights.state, groups, {.with_optimizer = false});
  EXPECT_EQ(weights.first_difference(), "");
}

TEST(Checkpoint, EverythingThatDoesNotFitIsNamedTogether) {
  const TemporaryFolder folder;
  const Groups groups = Groups::single();
  CapturedLog log;
  ToyState stored({{"model"}});
  const fs::path path = save_checkpoint(folder.path(), stored.state, groups, log.log);

  ToyState present({{"model"}});
  present.placements[5] = Placement::whole("other_norm.weight", {5});
  present.placements[4] = Placement::whole("layers.0.c_fc.weight", {6, 5});
  present.state.tensors[4].local = at::zeros({6, 5});
  present.clear();
  const std::string message = message_of([&] { load_checkpoint(path, present.state, groups); });
  EXPECT_TRUE(contains(message,
                       "1 missing: other_norm.weight; 1 misshaped: layers.0.c_fc.weight is [5, 6], expected [6, 5]; "
                       "1 unexpected: norm.weight"));
  for (const CheckpointTensor& tensor : present.state.tensors) EXPECT_TRUE(tensor.local.eq(-99).all().item<bool>());

  ToyState architecture({{"model"}});
  architecture.state.architecture = {{"num_layers", "2"}, {"hidden_size", "7"}, {"new_option", "1"}};
  EXPECT_TRUE(contains(message_of([&] { load_checkpoint(path, architecture.state, groups); }),
                       "num_layers is 1 in the checkpoint and 2 here; hidden_size is 5 in the checkpoint and 7 here"));
}

TEST(Checkpoint, WhatTheDiskCannotHoldIsRefusedBeforeWriting) {
  const TemporaryFolder folder;
  CapturedLog log;
  // A petabyte that takes no memory: one element seen 2^48 times.
  const Placement huge = Placement::whole("huge", {int64_t{1} << 48});
  CheckpointState state;
  state.tensors.push_back({.key = "model", .placement = &huge, .local = at::zeros({1}).expand({int64_t{1} << 48})});
  const std::string message = message_of([&] { save_checkpoint(folder.path(), state, Groups::single(), log.log); });
  EXPECT_TRUE(contains(message, "the checkpoint of iteration 0 needs"));
  EXPECT_TRUE(contains(message, "--keep_last"));
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(CheckpointConfiguration, DifferencesAreListedInOrder) {
  const Configuration stored = {{"lr", "1"}, {"gone", "x"}, {"same", "2"}};
  const Configuration present = {{"new", "3"}, {"same", "2"}, {"lr", "4"}};
  const std::vector<ConfigurationDifference> expected = {{"new", "", "3"}, {"lr", "1", "4"}, {"gone", "x", ""}};
  EXPECT_EQ(compare_configuration(stored, present), expected);
}

TEST(CheckpointConfiguration, ArchitectureIsWhatTheWeightsDependOn) {
  ModelConfig a;
  a.num_layers = 2;
  a.hidden_size = 64;
  a.num_attention_heads = 4;
  a.vocab_size = 100;
  a.position_embedding_type = PositionEmbedding::kRope;
  a.max_position_embeddings = 128;
  ModelConfig b = a;  // the same model said otherwise
  b.ffn_hidden_size = a.ffn_size();
  b.kv_channels = 16;
  b.attention_dropout = 0;
  b.max_position_embeddings = 4096;
  b.rope_scaling_factor = 3;  // off
  EXPECT_EQ(architecture_of(a), architecture_of(b));
  b.use_rope_scaling = true;
  b.swiglu = true;
  const auto differences = compare_configuration(architecture_of(a), architecture_of(b));
  ASSERT_EQ(differences.size(), 3u);
  EXPECT_EQ(differences[0].name, "use_rope_scaling");
  EXPECT_EQ(differences[1].name, "rope_scaling_factor");
  EXPECT_EQ(differences[2].name, "swiglu");

  // And back, with what the weights do not depend on from the configuration.
  ModelConfig c = b;
  const ModelConfig back = model_config_of(architecture_of(b), configuration_of(OptionSet(c)));
  EXPECT_EQ(back.max_position_embeddings, 4096);
  EXPECT_EQ(back.attention_dropout, 0);
  EXPECT_EQ(back.swiglu, true);
  EXPECT_EQ(back.vocab_size, 100);
  EXPECT_EQ(back.moe_layer_freq, "1");  // a text that looks like a number
  EXPECT_EQ(architecture_of(back), architecture_of(b));
  for (const std::string text : {"1", "null", "[0,1]", "a b", "\"\\\n", ""})
    EXPECT_EQ(plain_text(yaml_scalar(text)), text);
}

}  // namespace
}  // namespace megalith
