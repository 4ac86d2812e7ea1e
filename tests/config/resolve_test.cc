// All layers together: precedence, everything wrong at once, names without effect.
#include "config/resolve.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "config/help.h"
#include "core/strings.h"
#include "support/temporary_folder.h"

namespace megalith {
namespace {

struct ResolveSample {
  int64_t micro_batch_size = 1, seq_length = 4096;
  std::optional<int64_t> num_layers;
  double lr = 1e-4;
  bool bf16 = false, add_bias_linear = true;
  std::optional<std::string> load, exp_name, pp_algorithm, recompute_granularity, recompute_method;
  std::optional<int64_t> recompute_num_layers;
  bool enable_zero_bubble = false;
  std::vector<std::string> data_path;

  void visit(OptionVisitor& v) {
    v.group("Everything");
    v.field("micro_batch_size", micro_batch_size, "Samples.").at_least(1);
    v.field("seq_length", seq_length, "Tokens.").at_least(1);
    v.field("num_layers", num_layers, "Layers.").alias("encoder_num_layers").at_least(1);
    v.field("lr", lr, "Rate.").above(0);
    v.field("bf16", bf16, "Train in bf16.");
    v.field("add_bias_linear", add_bias_linear, "Bias.").opposite("disable_bias_linear");
    v.field("load", load, "Folder.");
    v.field("exp_name", exp_name, "Name.");
    v.field("data_path", data_path, "Prefixes.");
    v.field("pp_algorithm", pp_algorithm, "Order of work.");
    v.field("enable_zero_bubble", enable_zero_bubble, "Older word.");
    v.field("recompute_granularity", recompute_granularity, "What.");
    v.field("recompute_method", recompute_method, "How.");
    v.field("recompute_num_layers", recompute_num_layers, "How many.");
  }
};

struct Resolve : testing::Test {
  test::TemporaryFolder folder;
  ResolveSample sample;
  OptionSet set{sample};
  ConfigInputs inputs;

  Resolve() { inputs.config_root = folder.path() / "configs"; }
  std::string errors() {
    std::string text;
    for (const UserError& error : try_resolve(set, inputs).errors) text += error.message() + "\n";
    const std::string prefix = folder.path().string() + "/";
    for (size_t at = 0; (at = text.find(prefix)) != std::string::npos;) text.erase(at, prefix.size());
    return text;
  }
};

TEST_F(Resolve, LaterLayersWin) {
  folder.write("configs/models/tiny.yaml", "num_layers: 2\nseq_length: 128\nlr: 1\nmicro_batch_size: 10\n");
  folder.write("exp.yaml",
               "exp_name: mine\nmodules: {pre_trainer: {model: tiny.yaml, overrides: {seq_length: 256, lr: 2, "
               "micro_batch_size: 20, load: /from/file}}}\n");
  inputs.arguments = {"--config", (folder.path() / "exp.yaml").string(), "--lr", "3", "--load=null", "--lr", "4"};
  inputs.environment = {{"MEGALITH_LR", "5"}, {"MEGALITH_MICRO_BATCH_SIZE", "30"}};
  const Resolution resolution = resolve(set, inputs);
  EXPECT_EQ(sample.num_layers, 2);
  EXPECT_EQ(sample.seq_length, 256);
  EXPECT_EQ(sample.micro_batch_size, 30);
  EXPECT_EQ(sample.lr, 4);
  EXPECT_FALSE(sample.load);
  EXPECT_EQ(sample.exp_name, "mine");
  EXPECT_EQ(resolution.header.at("exp_name"), "mine");
  EXPECT_EQ(set.find("num_layers")->source().layer, OptionLayer::kPreset);
  EXPECT_EQ(set.find("seq_length")->source().where, (folder.path() / "exp.yaml").string() + ":2");
  EXPECT_EQ(set.find("lr")->history().size(), 5u);
  EXPECT_NE(explain(*set.find("lr")).find("* command line                                        4"), std::string::npos)
      << explain(*set.find("lr"));
}

TEST_F(Resolve, AModelFillsInWhatNobodySet) {
  folder.write("flat.yaml", "seq_length: 256\n");
  inputs.config_file = folder.path() / "flat.yaml";
  resolve(set, inputs);
  const OptionSource model{OptionLayer::kModel, "config.json"};
  apply_values(set, {{"seq_length", "8192"}, {"num_layers", "32"}}, model);
  EXPECT_EQ(sample.seq_length, 256);
  EXPECT_EQ(sample.num_layers, 32);
  EXPECT_EQ(set.find("num_layers")->source().where, "config.json");
  EXPECT_THROW(apply_values(set, {{"num_layers", "0"}, {"lr", "x"}}, model), UserErrors);
  EXPECT_THROW(apply_values(set, {{"no_option", "0"}}, model), InternalError);
}

TEST_F(Resolve, ConfigurationFilesAreComposedInOrder) {
  folder.write("one.yaml", "lr: 0.5\nseq_length: 64\n");
  folder.write("two.yaml", "seq_length: 128\n");
  inputs.config_file = folder.path() / "one.yaml";  // passed over, as there are others
  inputs.arguments = {"--config", folder.path() / "one.yaml", "--config=" + (folder.path() / "two.yaml").string()};
  EXPECT_EQ(errors(), "");
  EXPECT_EQ(sample.lr, 0.5);
  EXPECT_EQ(sample.seq_length, 128);
  inputs.arguments = {"--config", folder.path() / "two.yaml", "--exp", folder.path() / "one.yaml"};
  EXPECT_EQ(errors(), "");
  EXPECT_EQ(sample.seq_length, 64);
  inputs.arguments = {"--config", "nowhere.yaml", "--config", folder.path() / "one.yaml"};
  EXPECT_NE(errors().find("nowhere.yaml"), std::string::npos);
}

// A variable of the shell without a value: the run would train and save nothing.
TEST_F(Resolve, AnEmptyTextOnTheCommandLineIsAnError) {
  inputs.arguments = {"--load", "", "--data_path=", "--num_layers", " "};
  EXPECT_EQ(errors(), "--load is empty\n--data_path is empty\n--num_layers is empty\n");
  inputs.arguments = {"--load=null"};
  inputs.environment = {{"MEGALITH_LOAD", ""}};  // an exported variable without a value says nothing
  EXPECT_EQ(errors(), "");
}

// Options are written down. Here the shell has put a secret in an option's place.
TEST_F(Resolve, AValueThatIsASecretOfTheEnvironmentIsRefusedAndNotShown) {
  folder.write("recipe.yaml", "load: 'runs/hf_0123456789abcdef'\n");
  inputs.config_file = folder.path() / "recipe.yaml";
  inputs.environment = {{"HF_TOKEN", "hf_0123456789abcdef"},
                        {"MEGALITH_LOAD", "hf_0123456789abcdef"},
                        {"MEGALITH_STORE_SECRET_FILE", "/home/me/my_own_secret_file"}};
  inputs.arguments = {"--lr", "hf_0123456789abcdef", "--data_path", "/home/me/my_own_secret_file"};
  const std::string found = errors();
  for (const char* part : {"recipe.yaml:1: load has the value of the variable HF_TOKEN", "MEGALITH_LOAD: load has",
                           "--lr has the value"}) {
    EXPECT_NE(found.find(part), std::string::npos) << part << " not in\n" << found;
  }
  EXPECT_EQ(std::count(found.begin(), found.end(), '\n'), 3) << found;
  EXPECT_EQ(found.find("0123456789"), std::string::npos) << found;
}

TEST_F(Resolve, EverythingWrongIsReportedTogether) {
  folder.write("recipe.yaml", "lr: fast\nmicro_batchsize: 2\nmodules_: 1\nseq_length: 0\noutput_logit_dtype: fp8\n");
  inputs.config_file = folder.path() / "recipe.yaml";
  inputs.environment = {{"MEGALITH_BF16", "maybe"}};
  inputs.arguments = {"--micro-batch-size", "two", "left", "--unknown", "x", "--batch-size", "4", "--load"};
  EXPECT_EQ(errors(),
            "recipe.yaml:1: lr is 'fast', but takes: number above 0\n"
            "recipe.yaml:2: unknown key 'micro_batchsize'. Did you mean 'micro_batch_size'?\n"
            "recipe.yaml:3: unknown key 'modules_'\n"
            "recipe.yaml:4: seq_length is '0', but takes: integer at least 1\n"
            "recipe.yaml:5: output_logit_dtype fp8: this build does not support logits in that dtype\n"
            "MEGALITH_BF16: bf16 is 'maybe', but takes: true or false\n"
            "unknown option '--unknown'\n"
            "--load needs a value (text), but nothing follows\n"
            "--micro_batch_size is 'two', but takes: integer at least 1\n"
            "--batch-size 4 is not an option here\n"
            "unexpected argument 'left'\n");
}

TEST_F(Resolve, ThrowsAllErrorsAndNoneForHelp) {
  inputs.arguments = {"--lr", "0", "--seq_length", "0"};
  try {
    resolve(set, inputs);
    FAIL();
  } catch (const UserErrors& errors) {
    EXPECT_EQ(errors.errors().size(), 2u);
  }
  inputs.arguments.push_back("--help");
  EXPECT_TRUE(resolve(set, inputs).wants_help);
}

TEST_F(Resolve, NamesWithoutEffectAreSaidOnceAReason) {
  folder.write("recipe.yaml", "use_flash_attn: true\nmasked_softmax_fusion: false\noutput_logit_dtype: null\nNVTE_DEBUG: 1\n");
  inputs.config_file = folder.path() / "recipe.yaml";
  inputs.arguments = {"--no-rope-fusion", "--num-dataset-builder-threads", "8", "--use-flash-attn",
                      "--moe_grouped_gemm=false"};
  inputs.environment = {{"NVTE_FLASH_ATTN", "1"}, {"HSA_ENABLE_SDMA", "0"}, {"PATH", "/bin"}, {"MEGALITH_LRR", "1"}};
  const Resolution resolution = resolve(set, inputs);
  EXPECT_EQ(resolution.notes,
            (std::vector<std::string>{
                "no effect here: use_flash_attn, masked_softmax_fusion, rope_fusion (operators are always fused)",
                "no effect here: NVTE_DEBUG (read by Transformer Engine, which is not used)",
                "no effect here: num_dataset_builder_threads (the indices are built by as many threads as there are "
                "processors)",
                "no effect here: moe_grouped_gemm (experts are always grouped, and tokens travel by the group's own "
                "collectives)",
                "the environment variable MEGALITH_LRR names no option here. Did you mean MEGALITH_LR?",
                "environment: HSA_ENABLE_SDMA (read by the GPU's runtime from the environment, not by this program)",
                "environment: NVTE_FLASH_ATTN (read by Transformer Engine, which is not used)"}));
}

TEST_F(Resolve, UnsupportedFeaturesAreRefusedUnlessNeutral) {
  inputs.arguments = {"--attention_sink_k",      "null",  "--num_seq_splits=1",
                      "--fp16_lm_cross_entropy",    "false", "--no-fp16-lm-cross-entropy"};
  EXPECT_EQ(errors(), "");
  inputs.arguments = {"--head-lr-mult",   "8", "--fp16_lm_cross_entropy", "--no-initialization",
                      "--num-seq-splits", "2"};
  EXPECT_EQ(errors(),
            "--head-lr-mult 8: this build does not support a learning rate of its own for BERT's head (decoupled_lr is "
            "that of embedding and head)\n"
            "--fp16_lm_cross_entropy true: this build does not support a cross entropy in fp16\n"
            "--no-initialization true: this build does not support this initialisation\n"
            "--num-seq-splits 2: this build does not support sequences that are cut for the pipeline "
            "(context_parallel_size cuts them over ranks)\n");
}

TEST_F(Resolve, OtherProgramsWordsAreReadAsTheOptionAndSaidOnce) {
  folder.write("recipe.yaml", "learning_rate: 0.5\ntraining.seq_len: 128\n");
  inputs.config_file = folder.path() / "recipe.yaml";
  // -1 is Hugging Face's "unset"; a program without the option train_iters does not know the word.
  inputs.arguments = {"--per_device_train_batch_size", "4", "--learning-rate=0.25", "--max_steps", "-1"};
  EXPECT_EQ(errors(), "unknown option '--max_steps'\n");
  inputs.arguments.resize(3);
  const Resolution resolution = resolve(set, inputs);
  EXPECT_EQ(sample.lr, 0.25);
  EXPECT_EQ(set.find("seq_length")->text(), "128");
  EXPECT_EQ(set.find("micro_batch_size")->text(), "4");
  EXPECT_EQ(resolution.notes,
            std::vector<std::string>{"other programs' words: learning_rate is lr, training.seq_len is seq_length, "
                                     "per_device_train_batch_size is micro_batch_size, learning-rate is lr"});
}

TEST_F(Resolve, WordsWithAnotherMeaningNameWhatToWrite) {
  inputs.arguments = {"--max_steps_per_epoch", "8", "--peft_type", "ia3", "--gradient_checkpointing"};
  EXPECT_EQ(errors(),
            "--max_steps_per_epoch 8 is not an option here\n"
            "--peft_type ia3: this build does not support this form of adapters (lora.enabled has low-rank ones)\n"
            "--gradient_checkpointing true is not an option here\n");
  inputs.arguments = {"--max_steps_per_epoch", "null", "--gradient_checkpointing=false", "--peft_type=none"};
  EXPECT_EQ(errors(), "");
}

TEST_F(Resolve, AnOptionThatDoesNotActIsRefusedOnTheCommandLineAndPassedOverInAFile) {
  inputs.others.here = "generate";
  inputs.others.with_option = [](std::string_view) -> std::vector<std::string> { return {"train"}; };
  inputs.others.acts = [](const Option& option) { return option.name() != "lr"; };
  folder.write("recipe.yaml", "lr: 0.5\n");
  inputs.config_file = folder.path() / "recipe.yaml";
  inputs.environment = {{"MEGALITH_LR", "0.5"}};
  inputs.arguments = {"--lr", "1", "--learning_rate", "1", "--bf16"};
  EXPECT_EQ(errors(),
            "--lr is an option of train; generate has no use for it\n"
            "--learning_rate is an option of train; generate has no use for it\n");
  EXPECT_TRUE(sample.bf16);
  inputs.arguments.clear();
  EXPECT_EQ(errors(), "");
}

TEST_F(Resolve, AWordWithoutItsDashesIsAnsweredWithThem) {
  inputs.arguments = {"bf16", "lrr=1"};
  const Resolution resolution = try_resolve(set, inputs);
  ASSERT_EQ(resolution.errors.size(), 2u);
  EXPECT_EQ(resolution.errors[0].message(), "unexpected argument 'bf16'");
  EXPECT_EQ(resolution.errors[0].remedy(), "options start with two dashes: --bf16");
  EXPECT_EQ(resolution.errors[1].message(), "unknown option '--lrr'. Did you mean '--lr'?");
}

TEST_F(Resolve, AnOptionOfAnotherCommandIsNamedAsSuch) {
  inputs.others = {"prepare", [](std::string_view name) -> std::vector<std::string> {
                     if (name == "tensor_model_parallel_size") return {"train", "generate", "plan"};
                     if (name == "include") return {"fetch"};
                     if (name == "sequence_parallel") return {"train", "plan"};
                     return {};
                   }};
  folder.write("recipe.yaml", "lr: 1\nparallel.tensor_model_parallel_size: 1\n");
  inputs.config_file = folder.path() / "recipe.yaml";
  // Exported for another command: no error, and no guess at a name of this one.
  inputs.environment = {{"MEGALITH_INCLUDE", "a"}, {"MEGALITH_LRR", "1"}};
  inputs.arguments = {"--include", "a", "b", "--no-sequence-parallel", "--lrr", "2", "--bf16"};
  EXPECT_EQ(errors(),
            "recipe.yaml:2: parallel.tensor_model_parallel_size is an option of train, generate and plan; prepare has "
            "no use for it\n"
            "--include is an option of fetch; prepare has no use for it\n"
            "--no-sequence-parallel is an option of train and plan; prepare has no use for it\n"
            "unknown option '--lrr'. Did you mean '--lr'?\n");
  EXPECT_TRUE(sample.bf16);
  EXPECT_EQ(try_resolve(set, inputs).notes,
            std::vector<std::string>{
                "the environment variable MEGALITH_LRR names no option here. Did you mean MEGALITH_LR?"});
}

TEST_F(Resolve, NegationWorksInEveryLayer) {
  folder.write("recipe.yaml", "no_add_bias_linear: true\nbf16: true\n");
  inputs.config_file = folder.path() / "recipe.yaml";
  resolve(set, inputs);
  EXPECT_FALSE(sample.add_bias_linear);
  inputs.arguments = {"--no-bf16", "--no-add-bias-linear", "false"};
  resolve(set, inputs);
  EXPECT_FALSE(sample.bf16);
  EXPECT_TRUE(sample.add_bias_linear);
  inputs.arguments = {"--disable-bias-linear"};
  resolve(set, inputs);
  EXPECT_FALSE(sample.add_bias_linear);
  inputs.arguments = {"--no-bf16=perhaps"};
  EXPECT_EQ(errors(), "--no-bf16 is 'perhaps', but takes: true or false\n");
}

TEST_F(Resolve, DottedAndBareAssignmentsSetOptions) {
  inputs.arguments = {
      "--modules.pre_trainer.overrides.lr", "1e-5", "seq_length=64", "--data_path", "0.5", "a b", "0.5", "c"};
  resolve(set, inputs);
  EXPECT_EQ(sample.lr, 1e-5);
  EXPECT_EQ(sample.seq_length, 64);
  EXPECT_EQ(sample.data_path, (std::vector<std::string>{"0.5", "a b", "0.5", "c"}));
  inputs.arguments = {"folder"};
  inputs.allow_positional = true;
  EXPECT_EQ(resolve(set, inputs).positional, std::vector<std::string>{"folder"});
}

TEST_F(Resolve, NullInAFileUnsets) {
  folder.write("configs/models/tiny.yaml", "num_layers: 2\nload: /x\n");
  folder.write("recipe.yaml", "model: tiny.yaml\nnum_layers: null\nload:\n");
  inputs.config_file = folder.path() / "recipe.yaml";
  resolve(set, inputs);
  EXPECT_FALSE(sample.num_layers);
  EXPECT_FALSE(sample.load);
  EXPECT_EQ(set.find("load")->source().layer, OptionLayer::kFile);
}

// Presets list every name that an option ever had, with null after the unused ones.
TEST_F(Resolve, NullBehindAnotherNameLeavesTheOptionAlone) {
  folder.write("recipe.yaml",
               "num_layers: 32\nencoder_num_layers: null\nlr: 0.5\nlearning_rate: null\nbf16: true\nno_bf16: null\n"
               "training.seq_len: null\n");
  inputs.config_file = folder.path() / "recipe.yaml";
  EXPECT_TRUE(resolve(set, inputs).notes.empty());  // nor is a word read as something
  EXPECT_EQ(sample.num_layers, 32);
  EXPECT_EQ(sample.lr, 0.5);
  EXPECT_TRUE(sample.bf16);
  EXPECT_EQ(set.find("num_layers")->source().where, (folder.path() / "recipe.yaml").string() + ":1");
  // A value after it still counts, and so does null after the name itself, with dots or without.
  inputs.arguments = {"--encoder-num-layers", "8"};
  resolve(set, inputs);
  EXPECT_EQ(sample.num_layers, 8);
  inputs.arguments = {"--modules.pre_trainer.overrides.num_layers", "null", "--lr=null"};
  resolve(set, inputs);
  EXPECT_FALSE(sample.num_layers);
  EXPECT_EQ(sample.lr, 1e-4);
}

TEST_F(Resolve, NullMayFollowASwitch) {
  inputs.arguments = {"--no_load_rng", "null", "--lr", "0.5", "--bf16", "null", "--enable_zero_bubble"};
  EXPECT_EQ(errors(), "");
  EXPECT_EQ(sample.lr, 0.5);
  EXPECT_FALSE(sample.bf16);
  EXPECT_TRUE(sample.enable_zero_bubble);
}

TEST_F(Resolve, PrimussPatchSwitchesTakeTheOptionsBehindThemBack) {
  folder.write("configs/modules/pre_trainer.yaml",
               "patch_zero_bubble: false\nenable_zero_bubble: true\npatch_primus_pipeline: false\n"
               "pp_algorithm: zero-bubble\n");
  folder.write("exp.yaml", "modules: {pre_trainer: {config: pre_trainer.yaml}}\n");
  inputs.config_file = folder.path() / "exp.yaml";
  const std::vector<std::string> notes = resolve(set, inputs).notes;
  EXPECT_FALSE(sample.enable_zero_bubble);
  EXPECT_FALSE(sample.pp_algorithm);
  ASSERT_EQ(notes.size(), 3u);  // one a switch, and that the switches do nothing else
  EXPECT_TRUE(
      notes[0].ends_with("pre_trainer.yaml:1: patch_zero_bubble is false, which takes enable_zero_bubble true back"))
      << notes[0];
  EXPECT_TRUE(notes[1].ends_with("patch_primus_pipeline is false, which takes pp_algorithm zero-bubble back"))
      << notes[1];
  // The last word counts, and without a switch the option does.
  inputs.arguments = {"--patch_zero_bubble", "--pp_algorithm", "1f1b"};
  resolve(set, inputs);
  EXPECT_TRUE(sample.enable_zero_bubble);
  EXPECT_FALSE(sample.pp_algorithm);
  inputs.config_file.reset();
  inputs.arguments = {"--pp_algorithm", "1f1b"};
  resolve(set, inputs);
  EXPECT_EQ(sample.pp_algorithm, "1f1b");
}

TEST_F(Resolve, AModeOfMuonCountsOnlyWhereMuonHasSlices) {
  struct MuonSample {
    std::string optimizer = "adam";
    int64_t tensor_model_parallel_size = 1;
    void visit(OptionVisitor& v) {
      v.field("optimizer", optimizer, "Rule.").words({"adam", "sgd", "muon"});
      v.field("tensor_model_parallel_size", tensor_model_parallel_size, "Ranks.").at_least(1);
    }
  } muon;
  OptionSet options(muon);
  folder.write("trainer.yaml", "muon_tp_mode: blockwise\n");
  inputs.config_file = folder.path() / "trainer.yaml";
  // The notes, or else the errors.
  const auto said = [&](const char* optimizer, const char* ranks, const char* mode) {
    inputs.arguments = {"--optimizer", optimizer, "--tensor_model_parallel_size", ranks};
    if (*mode) inputs.arguments.insert(inputs.arguments.end(), {"--muon_tp_mode", mode});
    const Resolution resolution = try_resolve(options, inputs);
    return resolution.errors.empty() ? join(resolution.notes, "\n") : resolution.errors.front().message();
  };
  EXPECT_EQ(said("adam", "2", ""), "no effect here: muon_tp_mode (read only by the optimizer muon)");
  EXPECT_EQ(said("muon", "1", ""),
            "no effect here: muon_tp_mode (without tensor parallelism every rank has whole matrices)");
  EXPECT_NE(said("muon", "2", "").find("trainer.yaml:1: muon_tp_mode blockwise: this build does not support"),
            std::string::npos);
  EXPECT_EQ(said("muon", "2", "duplicated"), "");  // the last word counts
}

TEST_F(Resolve, RecomputationByItsFirstNameIsWhole) {
  inputs.arguments = {"--activations-checkpoint-method", "uniform"};
  resolve(set, inputs);
  EXPECT_EQ(sample.recompute_granularity, "full");
  EXPECT_EQ(sample.recompute_method, "uniform");
  EXPECT_EQ(sample.recompute_num_layers, 1);
  inputs.arguments = {"--activations-checkpoint-method", "block", "--activations-checkpoint-num-layers", "4"};
  resolve(set, inputs);
  EXPECT_EQ(sample.recompute_num_layers, 4);
}

// Options that Megatron-for-ROCm's Llama script passes; those of architecture and training are declared elsewhere.
TEST_F(Resolve, TheRocmScriptsSwitchesAreAccepted) {
  inputs.arguments = split_words(
      "--use-mcore-models --transformer-impl transformer_engine --no-masked-softmax-fusion "
      "--no-gradient-accumulation-fusion --distributed-backend nccl "
      "--ddp-average-in-collective --num-dataset-builder-threads 8 "
      "--ckpt-format torch_dist --use-flash-attn --no-position-embedding "
      "--attention-softmax-in-fp32 --bf16");
  resolve(set, inputs);
  EXPECT_TRUE(sample.bf16);
}

}  // namespace
}  // namespace megalith
