// configs/recipes: every one resolves to a run of its model that a dry run shows, with the figures it is known by.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "config/presets.h"
#include "kinds/kinds.h"
#include "support/source_dir.h"
#include "support/temporary_folder.h"
#include "train/config.h"
#include "train/dry_run.h"

namespace megalith {
namespace {

struct Recipes : testing::Test {
  test::TemporaryFolder folder;
  std::filesystem::path root = test::source_dir() / "configs";

  Recipes() { folder.write("rows.jsonl", "{\"prompt\": \"a\", \"completion\": \"b\"}\n"); }
  std::unique_ptr<Resolved> resolve_recipe(const std::string& name, std::vector<std::string> more = {}) {
    ConfigInputs inputs;
    inputs.arguments = {"--config",        name,
                        "--dry_run=true",  "--dry_run_world_size=8",
                        "--sft_data_path", (folder.path() / "rows.jsonl").string()};
    inputs.arguments.insert(inputs.arguments.end(), more.begin(), more.end());
    inputs.config_root = root;
    return resolve_config(all_kinds(), inputs, 1, /*extra=*/{}, {.opens_data = true});
  }
};

TEST_F(Recipes, EveryOnePassesADryRun) {
  int num_recipes = 0;
  for (const Preset& preset : list_presets(root)) {
    if (!preset.name.starts_with("recipes/")) continue;
    ++num_recipes;
    SCOPED_TRACE(preset.name);
    const auto resolved = resolve_recipe(preset.name);
    const std::string model = preset.name.substr(8, preset.name.rfind('_') - 8);
    ConfigInputs inputs;
    inputs.arguments = {"--config", model};
    inputs.config_root = root;
    Resolved whole(all_kinds());
    try_resolve(*whole.options, inputs);
    EXPECT_EQ(resolved->config.model.num_layers, whole.config.model.num_layers);
    EXPECT_EQ(resolved->config.lora.enabled, preset.name.ends_with("lora"));
    EXPECT_EQ(resolved->config.lora.packs_weights(), preset.name.ends_with("_qlora"));
    EXPECT_EQ(resolved->derived.seq_length, model.starts_with("llama2") ? 4096 : 8192);
    EXPECT_EQ(resolved->derived.num_microbatches, *resolved->config.train.gradient_accumulation_steps);
    EXPECT_EQ(resolved->derived.global_batch_size,
              resolved->derived.num_microbatches * 8 * resolved->derived.micro_batch_size);
    EXPECT_FALSE(dry_run_text(*resolved, make_dry_run(*resolved)).empty());
    EXPECT_FALSE(about(preset).empty());
  }
  EXPECT_EQ(num_recipes, 51);
}

TEST_F(Recipes, HaveTheirFigures) {
  const auto lora = resolve_recipe("recipes/llama3.1_70B_lora");
  EXPECT_EQ(lora->config.lora.dim, 16);
  EXPECT_EQ(lora->config.lora.alpha, 32);
  EXPECT_EQ(lora->config.lora.target_modules,
            (std::vector<std::string>{"q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}));
  EXPECT_EQ(lora->config.learning_rate.lr, 3e-4);
  EXPECT_EQ(lora->config.learning_rate.weight_decay, 0.01);
  EXPECT_EQ(lora->config.learning_rate.lr_warmup_iters, 100);
  EXPECT_EQ(lora->options->find("lr_decay_style")->text(), "cosine");
  EXPECT_EQ(resolve_recipe("recipes/llama2_70B_full")->config.learning_rate.lr, 2e-5);
}

TEST_F(Recipes, GiveWayToLengthsAndBatchesThatAreTyped) {
  const auto resolved = resolve_recipe("recipes/llama3.1_8B_lora", {"--train_iters=300", "--global_batch_size=64"});
  EXPECT_EQ(resolved->derived.train_iters, 300);
  EXPECT_EQ(resolved->derived.global_batch_size, 64);
  EXPECT_NE(fmt::format("{}", fmt::join(resolved->notes, "\n")).find("gives way to train_iters 300"),
            std::string::npos);
}

}  // namespace
}  // namespace megalith
