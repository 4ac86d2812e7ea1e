// Configuration files: Primus's layout, flat files, composition, substitution, and hostile input.
#include "config/yaml_config.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "support/temporary_folder.h"

namespace megalith {
namespace {

namespace fs = std::filesystem;

struct YamlConfig : testing::Test {
  test::TemporaryFolder folder;
  EnvironmentMap environment;

  ConfigFile read(const std::string& name) {
    return read_config_file(folder.path() / name, folder.path() / "configs", environment);
  }
  // "name=value …" in the order of application, without the errors' being there unnoticed.
  std::string settings(const std::string& name) {
    const ConfigFile file = read(name);
    for (const UserError& error : file.errors) ADD_FAILURE() << error.what();
    std::string text;
    for (const Setting& setting : file.settings) {
      text += (text.empty() ? "" : " ") + setting.name + "=" + setting.value.text();
    }
    return text;
  }
  // Messages without the folder, one a line.
  std::string errors(const std::string& name) {
    std::string text;
    for (const UserError& error : read(name).errors) text += error.message() + "\n";
    const std::string prefix = folder.path().string() + "/";
    for (size_t at = 0; (at = text.find(prefix)) != std::string::npos;) text.erase(at, prefix.size());
    return text;
  }
};

TEST_F(YamlConfig, AFlatFileIsASetOfOptions) {
  folder.write("flat.yaml", "lr: 1e-5\nload: null\nbf16: True\ndata_path: [0.5, 'a b']\n\nsplit: 99,1,0\nempty:\n");
  EXPECT_EQ(settings("flat.yaml"), "lr=1e-5 load=null bf16=True data_path=[0.5, a b] split=99,1,0 empty=null");
  const ConfigFile file = read("flat.yaml");
  EXPECT_EQ(file.settings[4].source.where, (folder.path() / "flat.yaml").string() + ":6");
  EXPECT_EQ(file.settings[4].source.layer, OptionLayer::kFile);
  EXPECT_EQ(file.settings[1].value.form, WrittenValue::Form::kNull);
}

// A file in a checkout of Primus was written for the presets of that checkout, not for ours of the same names.
TEST_F(YamlConfig, AnExperimentInAPrimusTreeTakesItsPresets) {
  folder.write("configs/modules/megatron/pre_trainer.yaml", "lr: 1\n");
  folder.write("configs/models/tiny.yaml", "num_layers: 1\n");
  folder.write("configs/models/ours.yaml", "num_layers: 3\n");
  folder.write("Primus/primus/configs/modules/megatron/pre_trainer.yaml", "includes: [base.yaml]\nlr: 2\n");
  folder.write("Primus/primus/configs/modules/megatron/base.yaml", "lr: 3\nclip_grad: 4\n");
  folder.write("Primus/primus/configs/models/megatron/tiny.yaml", "num_layers: 2\n");
  const auto experiment = [](const char* model) {
    return fmt::format("modules: {{pre_trainer: {{config: pre_trainer.yaml, model: {}}}}}\n", model);
  };
  folder.write("Primus/examples/megatron/configs/exp.yaml", experiment("tiny.yaml"));
  folder.write("Primus/examples/megatron/configs/mixed.yaml", experiment("ours.yaml"));
  folder.write("exp.yaml", experiment("tiny.yaml"));
  EXPECT_EQ(settings("Primus/examples/megatron/configs/exp.yaml"), "lr=2 clip_grad=4 num_layers=2");
  EXPECT_EQ(settings("Primus/examples/megatron/configs/mixed.yaml"), "lr=2 clip_grad=4 num_layers=3");
  EXPECT_EQ(settings("exp.yaml"), "lr=1 num_layers=1");
}

TEST_F(YamlConfig, PrimusLayoutAppliesPresetsBelowOverrides) {
  folder.write("configs/modules/pre_trainer.yaml", "extends: [base.yaml]\nlr: 2e-5\nseq_length: 1024\n");
  folder.write("configs/modules/base.yaml", "lr: 2.5e-4\nclip_grad: 1.0\n");
  folder.write("configs/models/llama3.1_8B.yaml", "num_layers: 32\nseq_length: 8192\n");
  folder.write("exp.yaml", R"(
work_group: ${PRIMUS_TEAM:amd}
exp_name: ${PRIMUS_EXP_NAME:llama3.1_8B-pretrain}
workspace: ./output
platform: {config: platform.yaml}
env: {NCCL_DEBUG: WARN, CACHE: "$HOME/cache-${USER:nobody}"}
modules:
  pre_trainer:
    framework: megatron
    config: pre_trainer.yaml
    model: megatron/llama3.1_8B.yaml
    overrides:
      lr: 1.0e-5
      lora: {dim: 32}
)");
  environment = {{"HOME", "/home/ours"}, {"PRIMUS_TEAM", "ours"}};
  EXPECT_EQ(settings("exp.yaml"),
            "lr=2e-5 clip_grad=1.0 seq_length=1024 num_layers=32 seq_length=8192 lr=1.0e-5 lora.dim=32");
  const ConfigFile file = read("exp.yaml");
  ASSERT_EQ(file.settings.size(), 7u);
  EXPECT_EQ(file.settings[3].source.layer, OptionLayer::kPreset);
  EXPECT_EQ(file.settings[5].source.layer, OptionLayer::kFile);
  ASSERT_EQ(file.header.size(), 3u);
  EXPECT_EQ(file.header[0].value.text(), "ours");
  EXPECT_EQ(file.header[1].value.text(), "llama3.1_8B-pretrain");
  EXPECT_EQ(file.exports.at("CACHE"), "/home/ours/cache-nobody");
  ASSERT_EQ(file.notes.size(), 2u);
  EXPECT_NE(file.notes[0].find("platform has no effect"), std::string::npos);
  EXPECT_NE(file.notes[1].find("seq_length 8192 of the model preset is used; the trainer preset has 1024"),
            std::string::npos);
}

TEST_F(YamlConfig, AFlatFileMayNameAPreset) {
  folder.write("configs/models/tiny.yaml", "num_layers: 2\n");
  folder.write("flat.yaml", "model: tiny\nlr: 1\n");  // no .yaml: an option like any other
  EXPECT_EQ(settings("flat.yaml"), "model=tiny lr=1");
  folder.write("flat.yaml", "lr: 1\nmodel: tiny.yaml\n");
  EXPECT_EQ(settings("flat.yaml"), "num_layers=2 lr=1");
}

TEST_F(YamlConfig, TheFrameworkSaysWherePresetsAreWhateverTheOrder) {
  folder.write("configs/models/megatron/tiny.yaml", "num_layers: 1\n");
  folder.write("configs/models/torchtitan/tiny.yaml", "model: {n_layers: 2}\n");
  folder.write("flat.yaml", "model: tiny.yaml\nframework: torchtitan\n");
  EXPECT_EQ(settings("flat.yaml"), "model.n_layers=2");
}

TEST_F(YamlConfig, PresetsBesideTheExperimentComeFirst) {
  folder.write("configs/models/tiny.yaml", "num_layers: 2\n");
  folder.write("experiments/tiny.yaml", "num_layers: 3\n");
  folder.write("experiments/exp.yaml", "modules: {post_trainer: {model: tiny.yaml}}\n");
  EXPECT_EQ(settings("experiments/exp.yaml"), "num_layers=3");
}

TEST_F(YamlConfig, AnExperimentMayHaveTheNameOfItsPreset) {
  folder.write("configs/models/tiny.yaml", "num_layers: 2\n");
  folder.write("experiments/tiny.yaml", "modules: {pre_trainer: {model: tiny.yaml, overrides: {lr: 1}}}\n");
  EXPECT_EQ(settings("experiments/tiny.yaml"), "num_layers=2 lr=1");
}

TEST_F(YamlConfig, ExtendsMergesDeeplyAndLaterFilesBeatEarlier) {
  folder.write("a.yaml", "modules: {pre_trainer: {overrides: {x: 1, y: 1, z: 1}}}\n");
  folder.write("sub/b.yaml", "extends: ../a.yaml\nmodules: {pre_trainer: {overrides: {y: 2, z: 2}}}\n");
  folder.write("c.yaml", "modules: {pre_trainer: {overrides: {w: 3}}}\n");
  folder.write("exp.yaml", "extends: [sub/b.yaml, c.yaml]\nmodules: {pre_trainer: {overrides: {z: 4, new: 5}}}\n");
  EXPECT_EQ(settings("exp.yaml"), "x=1 y=2 z=4 w=3 new=5");
}

TEST_F(YamlConfig, BasesRefuseKeysThatNoBaseHas) {
  folder.write("base.yaml", "lr: 1\nclip_grad: 1\n");
  folder.write("good.yaml", "bases: [base.yaml]\nlr: 2\n");
  EXPECT_EQ(settings("good.yaml"), "lr=2 clip_grad=1");
  folder.write("bad.yaml", "bases: [base.yaml]\nclip_gard: 2\n");
  EXPECT_EQ(errors("bad.yaml"), "bad.yaml:2: 'clip_gard' is in none of this file's bases. Did you mean 'clip_grad'?\n");
}

TEST_F(YamlConfig, IncludesFillInAndTheFirstWins) {
  folder.write("one.yaml", "a: 1\nb: 1\n");
  folder.write("two.yaml", "b: 2\nc: 2\n");
  folder.write("own.yaml", "includes: [one.yaml, two.yaml]\na: 0\n");
  EXPECT_EQ(settings("own.yaml"), "b=1 c=2 a=0");
}

TEST_F(YamlConfig, VariablesAreSubstitutedOrReported) {
  environment = {{"LR", "3e-4"}, {"EMPTY", ""}};
  folder.write("x.yaml",
               "lr: ${LR}\na: \"${EMPTY}x\"\nb: ${NONE:}\nc: ${NONE:a:b}\nd: ${ONE:1}-${TWO:2}\ne: $LR ${}\n");
  EXPECT_EQ(settings("x.yaml"), "lr=3e-4 a=x b= c=a:b d=1-2 e=$LR ${}");
  folder.write("y.yaml", "a: 1\nlr: ${NONE}\nb: ${NOBODY}\n");
  EXPECT_EQ(errors("y.yaml"),
            "y.yaml:2: the environment variable 'NONE' is not set\n"
            "y.yaml:3: the environment variable 'NOBODY' is not set\n");
  EXPECT_EQ(substitute_variables("${A${LR}}", environment), "${A3e-4}");  // nested: only what is a whole form
  EXPECT_EQ(substitute_variables("${", environment), "${");
}

// Values of options are written to config.yaml, run.json, the page and checkpoints.
TEST_F(YamlConfig, SecretsAreRefusedInOptionsAndTakenInTheEnvironmentOfARun) {
  environment = {
      {"HF_TOKEN", "hf_x"}, {"WANDB_API_KEY", "k"}, {"PGPASSWORD", "p"}, {"NUM_TOKENS", "5"}, {"TOKENIZER", "t"}};
  folder.write("x.yaml", "a: ${HF_TOKEN}\nb: [1, \"x${WANDB_API_KEY}\"]\nc: {d: \"${PGPASSWORD}\"}\n");
  const std::string found = errors("x.yaml");
  for (const char* part : {"x.yaml:1: by its name the variable HF_TOKEN holds a secret", "variable WANDB_API_KEY holds",
                           "x.yaml:3: by its name the variable PGPASSWORD holds"}) {
    EXPECT_NE(found.find(part), std::string::npos) << found;
  }
  EXPECT_EQ(found.find("hf_x"), std::string::npos);
  folder.write("y.yaml", "a: ${NUM_TOKENS} ${TOKENIZER} ${MY_SECRET:none}\nenv: {HF_TOKEN: \"${HF_TOKEN}\"}\n");
  EXPECT_EQ(settings("y.yaml"), "a=5 t none");
  // Messages quote names of files and frameworks.
  for (const char* text : {"extends: ${HF_TOKEN}.yaml\n", "modules: {pre_trainer: {model: \"${HF_TOKEN}.yaml\"}}\n",
                           "modules: {pre_trainer: {framework: \"${HF_TOKEN}\"}}\n"}) {
    folder.write("z.yaml", text);
    const std::string said = errors("z.yaml");
    EXPECT_NE(said.find("variable HF_TOKEN holds a secret"), std::string::npos) << text << said;
    EXPECT_EQ(said.find("hf_x"), std::string::npos) << said;
  }
  folder.write("z.yaml",
               "modules:\n  pre_trainer:\n    model: ${HF_TOKEN}.yaml\n    config: ${PGPASSWORD}.yaml\n"
               "    other: 1\n    overrides: {a: \"${WANDB_API_KEY}\"}\n");
  const std::string all = errors("z.yaml");
  for (const char* part : {"z.yaml:3: by its", "z.yaml:4: by its", "z.yaml:5: unknown key", "z.yaml:6: by its"}) {
    EXPECT_NE(all.find(part), std::string::npos) << part << " not in\n" << all;
  }
}

TEST_F(YamlConfig, WrongLayoutsAreAllReportedWithTheirLines) {
  folder.write("configs/models/llama3.1_8B.yaml", "num_layers: 32\n");
  folder.write("exp.yaml", R"(work_gruop: amd
micro_batch_size: 2
modules:
  pre_trainer:
    framework: megatron
    model: llama3.1_8b.yml
    override: {lr: 1}
  platform: {}
)");
  EXPECT_EQ(errors("exp.yaml"),
            "exp.yaml:1: unknown key 'work_gruop'. Did you mean 'work_group'?\n"
            "exp.yaml:8: module 'platform' is no trainer\n"
            "exp.yaml:6: no preset 'llama3.1_8b.yml'. Did you mean 'llama3.1_8B.yaml'?\n"
            "exp.yaml:7: unknown key 'override'. Did you mean 'overrides'?\n");
}

// As llama3_8B-BF16-lora-sft.yaml of Primus v26.5.1 is written.
TEST_F(YamlConfig, OptionsBesideModulesAreOverrides) {
  folder.write("base.yaml", "modules: {post_trainer: {overrides: {lr: 1, clip_grad: 1}}}\n");
  folder.write("exp.yaml", "extends: [base.yaml]\nlora: {enabled: true}\nlr: 2\n");
  EXPECT_EQ(settings("exp.yaml"), "lr=1 clip_grad=1 lora.enabled=true lr=2");
  ASSERT_EQ(read("exp.yaml").notes.size(), 1u);
  EXPECT_NE(read("exp.yaml").notes[0].find("exp.yaml:2: lora.enabled, lr beside modules: read as overrides"),
            std::string::npos);
}

TEST_F(YamlConfig, StructureErrorsAreNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {"- a\n- b\n", "x.yaml:1: the file is not a map of options\n"},
      {"just text\n", "x.yaml:1: the file is not a map of options\n"},
      {"a: {b: [[1]]}\n", "x.yaml:1: a list holds another list or a map here\n"},
      {"modules: 3\n", "x.yaml:1: modules is not a map\n"},
      {"modules: {}\n", "x.yaml:1: modules names no trainer\n"},
      {"modules: {a_trainer: {}, b_trainer: {}}\n", "x.yaml:1: two trainers in one file\n"},
      {"modules:\n  trainer:\n    overrides: 3\n", "x.yaml:3: overrides is not a map\n"},
      {"env: 3\n", "x.yaml:1: env takes a map of variables\n"},
      {"a: 1\n? [x]\n: 2\n", "x.yaml:2: a key must be a word\n"},
      {"a: 1\n---\nb: 2\n", "x.yaml holds more than one YAML document\n"},
      {"a: 1\n---\n", "x.yaml holds more than one YAML document\n"},
      // The parser would give empty documents for ever.
      {",3-\n", "x.yaml:1: not valid YAML: a value cannot begin like this\n"},
      {"extends: gone.yaml\n", "x.yaml:1: extends names 'gone.yaml', which is not there\n"},
      {"extends: [{a: b}]\n", "x.yaml:1: 'extends' takes file names\n"},
      {"model: gone.yaml\n", "x.yaml:1: no preset 'gone.yaml'\n"},
  };
  for (const auto& [text, expected] : cases) {
    folder.write("x.yaml", text);
    EXPECT_EQ(errors("x.yaml"), expected) << text;
  }
}

TEST_F(YamlConfig, AKeyWrittenTwiceIsUsedLastAndNoted) {
  folder.write("x.yaml", "lr: 1\nlr: 2\n");
  EXPECT_EQ(settings("x.yaml"), "lr=2");
  ASSERT_EQ(read("x.yaml").notes.size(), 1u);
  EXPECT_NE(read("x.yaml").notes[0].find("x.yaml:2: 'lr' was written at "), std::string::npos);
}

TEST_F(YamlConfig, SyntaxErrorsHaveALine) {
  for (const char* text : {"a: [1, 2\nb: 3\n", "a: b: c\n", "\tx: 1\n", "a: *nowhere\n", "}"}) {
    folder.write("x.yaml", text);
    const std::string message = errors("x.yaml");
    EXPECT_EQ(message.substr(0, 7), "x.yaml:") << text;
    EXPECT_NE(message.find("not valid YAML"), std::string::npos) << text << message;
  }
}

TEST_F(YamlConfig, FilesThatAreNoConfigurationAreRefused) {
  EXPECT_EQ(errors("gone.yaml"), "gone.yaml: no such file\n");
  fs::create_directory(folder.path() / "dir");
  EXPECT_EQ(errors("dir"), "dir is a folder\n");
  folder.write("binary.yaml", std::string("a: \0 b", 6));
  EXPECT_EQ(errors("binary.yaml"), "binary.yaml is not a text file\n");
  folder.write("large.yaml", std::string(100 << 20, 'a'));
  EXPECT_EQ(errors("large.yaml"), "large.yaml is larger than 1.00 MiB, too large for a configuration\n");
  folder.write("empty.yaml", "");
  EXPECT_EQ(settings("empty.yaml"), "");
}

TEST_F(YamlConfig, CompositionInACircleIsRefused) {
  folder.write("a.yaml", "extends: b.yaml\n");
  folder.write("b.yaml", "includes: [a.yaml]\n");
  EXPECT_EQ(errors("a.yaml"), "a.yaml: the file is composed of itself: a.yaml -> b.yaml -> a.yaml\n");
  // Each file extends the next one twice: 2^30 loads unless they are counted.
  for (int i = 0; i < 30; ++i) {
    const std::string next = "n" + std::to_string(i + 1) + ".yaml";
    folder.write("n" + std::to_string(i) + ".yaml", "extends: [" + next + ", " + next + "]\n");
  }
  folder.write("n30.yaml", "a: 1\n");
  EXPECT_NE(errors("n0.yaml").find("more than 200 files are composed"), std::string::npos);
}

TEST_F(YamlConfig, AnchorsWorkAndBombsDoNot) {
  folder.write("x.yaml", "a: &x [1, 2]\nb: *x\n");
  EXPECT_EQ(settings("x.yaml"), "a=[1, 2] b=[1, 2]");
  std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 12; ++i) {
    const std::string below = "*a" + std::to_string(i - 1);
    bomb += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [";
    for (int k = 0; k < 10; ++k) bomb += (k ? ", " : "") + below;
    bomb += "]\n";
  }
  folder.write("bomb.yaml", bomb);
  EXPECT_NE(errors("bomb.yaml").find("more than 20000 values"), std::string::npos);
  folder.write("self.yaml", "a: &a [*a]\n");
  EXPECT_NE(errors("self.yaml"), "");
}

TEST_F(YamlConfig, DeepNestingIsRefusedWithoutACrash) {
  folder.write("lists.yaml", "a: " + std::string(100000, '['));
  EXPECT_NE(errors("lists.yaml"), "");
  std::string maps;
  for (int i = 0; i < 900; ++i) maps += std::string(static_cast<size_t>(i), ' ') + "a:\n";
  folder.write("maps.yaml", maps);
  EXPECT_NE(errors("maps.yaml"), "");
  folder.write("dashes.yaml", [] {
    std::string text;
    for (int i = 0; i < 50000; ++i) text += "- ";
    return text;
  }());
  EXPECT_NE(errors("dashes.yaml"), "");
  std::string closed = "a: " + std::string(40, '[') + std::string(40, ']');
  folder.write("closed.yaml", closed);
  EXPECT_NE(errors("closed.yaml").find("nested deeper than 32 levels"), std::string::npos);
}

TEST_F(YamlConfig, ManyKeysAreReadInReasonableTime) {
  std::string text;
  for (int i = 0; i < 15000; ++i) text += "key_" + std::to_string(i) + ": " + std::to_string(i) + "\n";
  folder.write("many.yaml", text);
  EXPECT_EQ(read("many.yaml").settings.size(), 15000u);
}

// Every prefix and every single-byte change of a real file is either read or reported: never a crash.
TEST_F(YamlConfig, DamagedFilesNeverCrash) {
  const std::string whole =
      "extends: [a.yaml]\nenv: {A: $B}\nmodules:\n  pre_trainer:\n    model: &m tiny.yaml\n    overrides:\n"
      "      lr: ${LR:1e-5}\n      data_path: [0.5, \"a\\x41\", *m]\n      note: |\n        text\n      x: !!str 3\n";
  folder.write("a.yaml", "modules: {pre_trainer: {overrides: {}}}\n");
  folder.write("configs/models/tiny.yaml", "num_layers: 2\n");
  for (size_t length = 0; length <= whole.size(); ++length) {
    folder.write("cut.yaml", whole.substr(0, length));
    read("cut.yaml");
  }
  size_t num_reported = 0;
  for (size_t i = 0; i < whole.size(); ++i) {
    for (const char c : {'[', '{', ':', '\n', '&', '\xff', '"', '$', '-'}) {
      std::string changed = whole;
      changed[i] = c;
      folder.write("cut.yaml", changed);
      num_reported += read("cut.yaml").errors.empty() ? 0 : 1;
    }
  }
  EXPECT_GT(num_reported, whole.size());
}

}  // namespace
}  // namespace megalith
