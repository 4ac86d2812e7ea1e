// `--config NAME` finds what came with the program, from any folder.
#include "config/presets.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "support/temporary_folder.h"

namespace megalith {
namespace {

struct Presets : testing::Test {
  test::TemporaryFolder folder;
  std::filesystem::path root = folder.path() / "configs";

  Presets() {
    folder.write("configs/models/llama3.1_8B.yaml", "# Llama 3.1 8B.\n# As on the hub.\nnum_layers: 32\n");
    folder.write("configs/models/demo.yaml", "num_layers: 6\n");
    folder.write("configs/models/notes.txt", "no preset\n");
    folder.write("configs/experiments/demo.yaml", "# Trains demo.\n\n# More of it.\nmodel: demo.yaml\n");
    folder.write("configs/experiments/long.yaml", "model: demo.yaml\n");
    folder.write("configs/recipes/llama3.1_8B_lora.yaml", "# Adapters.\nmodel: demo.yaml\n");
    folder.write("configs/recipes/common/lora.yaml", "lr: 1\n");  // a part of recipes, no preset
  }
  std::string found(const std::string& text) const {
    return std::filesystem::relative(find_config(text, root), root).string();
  }
  std::string refused(const std::string& text) const {
    try {
      return find_config(text, root).string();
    } catch (const UserError& error) {
      return error.what();
    }
  }
};

TEST_F(Presets, AreListedWithTheirFirstComment) {
  std::vector<std::string> lines;
  for (const Preset& preset : list_presets(root)) lines.push_back(preset.name + ": " + about(preset));
  const std::vector<std::string> expected = {"demo: ", "llama3.1_8B: Llama 3.1 8B. As on the hub.",
                                             "experiments/demo: Trains demo.",
                                             "experiments/long: ", "recipes/llama3.1_8B_lora: Adapters."};
  EXPECT_EQ(lines, expected);
  EXPECT_TRUE(list_presets("").empty());
  EXPECT_TRUE(list_presets(folder.path() / "nowhere").empty());
}

TEST_F(Presets, AreFoundByName) {
  for (const char* name : {"llama3.1_8B", "llama3.1_8B.yaml", "models/llama3.1_8B", "llama3.1_8b", "Llama3.1-8B"}) {
    EXPECT_EQ(found(name), "models/llama3.1_8B.yaml") << name;
  }
  EXPECT_EQ(found("demo"), "models/demo.yaml");  // a model comes first
  EXPECT_EQ(found("experiments/demo"), "experiments/demo.yaml");
  EXPECT_EQ(found("long"), "experiments/long.yaml");
  EXPECT_EQ(found("llama3.1_8b_lora"), "recipes/llama3.1_8B_lora.yaml");
}

TEST_F(Presets, AFileOfThatNameComesFirst) {
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  folder.write("demo", "num_layers: 1\n");
  std::filesystem::create_directory(folder.path() / "long");  // a folder hides nothing
  EXPECT_EQ(find_config("demo", root), "demo");
  EXPECT_EQ(found("long"), "experiments/long.yaml");
  std::filesystem::current_path(before);
}

TEST_F(Presets, AnUnknownNameHasANearestOne) {
  EXPECT_EQ(refused("llama3.1_9B"),
            "--config llama3.1_9B: no such file, and no preset has that name. Did you mean 'llama3.1_8B'?\n"
            "  check the path; 'megalith presets' lists what came with the program");
  EXPECT_EQ(refused("here/recipe.yaml").find("--config here/recipe.yaml: no such file"), 0u);
}

}  // namespace
}  // namespace megalith
