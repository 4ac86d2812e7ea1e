// Names of Megatron-LM, Primus and their environment that are no options here.
#include "config/known_names.h"

#include <gtest/gtest.h>

#include "config/dialect.h"
#include "config/known_names_table.h"
#include "core/strings.h"

namespace megalith {
namespace {

using Kind = KnownName::Kind;

struct NamesSample {
  int64_t num_dataset_builder_threads = 0;
  bool bf16 = false;
  double lr = 0, lora_dim = 0;
  void visit(OptionVisitor& v) {
    v.field("num_dataset_builder_threads", num_dataset_builder_threads, "Declared here, so it beats the table.");
    v.field("bf16", bf16, "A switch.");
    v.field("lr", lr, "Rate.");
    v.field("lora_dim", lora_dim, "Rank.");
  }
};

TEST(KnownNames, EveryKindIsThereWithAReason) {
  EXPECT_EQ(find_known_name("use-flash-attn")->kind, Kind::kNoEffect);
  EXPECT_EQ(find_known_name("fp32_residual_connection")->kind, Kind::kUnsupported);
  EXPECT_EQ(find_known_name("batch_size")->text, "write micro_batch_size");
  EXPECT_EQ(find_known_name("micro_batchsize"), nullptr);
  for (const KnownNamesRow& row : known_names_rows()) {
    EXPECT_NE(row.text, "") << row.names;
    for (const std::string& entry : split_words(row.names)) {
      // Refused names must say which values are accepted.
      EXPECT_EQ(entry.find('=') != std::string::npos, row.kind != Kind::kNoEffect) << entry;
    }
  }
}

TEST(KnownNames, WhatIsAnOptionIsNotInTheTable) {
  for (const char* name :
       {"pp_algorithm", "enable_zero_bubble", "num_virtual_stages_per_pipeline_rank", "pipeline_model_parallel_layout",
        "num_layers_per_virtual_pipeline_stage", "microbatch_group_size_per_vp_stage", "pipeline_model_parallel_size",
        "decoder_first_pipeline_num_layers", "account_for_loss_in_pipeline_split"}) {
    EXPECT_EQ(find_known_name(name), nullptr) << name;
  }
  // Names that only change how transfers are made are still in the table.
  for (const char* name : {"overlap_p2p_comm", "communication_method"}) {
    EXPECT_EQ(find_known_name(name)->kind, Kind::kNoEffect) << name;
  }
}

// A run that needs one of these to fit, or whose results it decides, must not start as if it were there.
TEST(KnownNames, WhatDecidesResultsOrMemoryIsNeverWithoutEffect) {
  const auto asks = [](const char* name, const char* value) {
    const KnownName* known = find_known_name(name);
    return known != nullptr && known->kind != Kind::kNoEffect && !is_neutral(*known, WrittenValue::of(value));
  };
  for (const char* name :
       {"distribute_saved_activations", "moe_layer_recompute", "offload", "cpu_offload",
        "standalone_embedding_stage", "use_checkpoint_opt_param_scheduler", "use_mp_args_from_checkpoint_args",
        "moe_use_megatron_switch", "check_for_large_grads", "check_for_spiky_loss", "enable_turbo_attention_float8",
        "perform_rl_step", "enable_1f1b_v", "gradient_checkpointing", "enable_full_sharding_in_hsdp",
        "disable_bf16_reduced_precision_matmul", "sft", "load_model_opt_format"}) {
    EXPECT_TRUE(asks(name, "true")) << name;
    EXPECT_FALSE(asks(name, "false")) << name;  // as presets have it
  }
  EXPECT_TRUE(asks("zero_bubble_v_schedule_mem_setup", "min"));
  EXPECT_FALSE(asks("zero_bubble_v_schedule_mem_setup", "half"));
  EXPECT_TRUE(asks("pp_max_mem", "40"));
  EXPECT_TRUE(asks("padded_vocab_size", "32768"));
  EXPECT_TRUE(asks("kitchen_recipe_number", "5"));
  EXPECT_TRUE(asks("num_seq_splits", "2"));
  // These are options, or words for options, now.
  for (const char* name :
       {"use_megatron_fsdp", "use_custom_fsdp", "data_parallel_sharding_strategy", "data_parallel_replicate_degree",
        "encoder_seq_length", "allow_padding_num_layers", "qk_l2_norm", "moe_apply_probs_on_input", "main_grads_dtype"}) {
    EXPECT_EQ(find_known_name(name), nullptr) << name;
  }
  // A checkpoint holds no generator, and its architecture is always read: both ways are the same.
  for (const char* name : {"load_rng", "save_rng", "use_checkpoint_args"}) {
    EXPECT_EQ(find_known_name(name)->kind, Kind::kNoEffect) << name;
  }
}

TEST(KnownNames, VariablesAreKnownByFamily) {
  EXPECT_NE(find_known_name("NVTE_CK_USES_BWD_V3"), nullptr);
  EXPECT_NE(find_known_name("HSA_NO_SCRATCH_RECLAIM"), nullptr);
  EXPECT_NE(find_known_name("use_turbo_attention"), nullptr);
  EXPECT_EQ(find_known_name("NVTX_RANGES"), nullptr);
  EXPECT_EQ(find_known_name("nvte_debug"), nullptr);
}

TEST(KnownNames, NeutralValuesAskForNothing) {
  const auto neutral = [](const char* name, const char* value) {
    return is_neutral(*find_known_name(name), WrittenValue::of(value));
  };
  EXPECT_TRUE(neutral("mxfp4_backward_precision", "null"));
  EXPECT_TRUE(neutral("mxfp4_backward_precision", "None"));
  EXPECT_FALSE(neutral("mxfp4_backward_precision", "fp8"));
  EXPECT_TRUE(neutral("attention_sink_k", "0"));
  EXPECT_FALSE(neutral("attention_sink_k", "8"));
  EXPECT_TRUE(neutral("fp16_lm_cross_entropy", "off"));
  EXPECT_FALSE(neutral("fp16_lm_cross_entropy", "true"));
  EXPECT_TRUE(neutral("head_lr_mult", "1.0"));
  EXPECT_FALSE(neutral("head_lr_mult", "0.5"));
  EXPECT_TRUE(is_neutral(*find_known_name("spec"), WrittenValue::null()));
  EXPECT_TRUE(is_neutral(*find_known_name("iterations_to_skip"), {WrittenValue::Form::kList, {}}));
}

TEST(KnownNames, AnOptionBeatsTheTable) {
  NamesSample sample;
  OptionSet set(sample);
  EXPECT_NE(look_up(set, "num-dataset-builder-threads").option, nullptr);
  EXPECT_EQ(look_up(set, "num-dataset-builder-threads").known, nullptr);
}

TEST(KnownNames, LookUpTriesTheWholeNameFirst) {
  NamesSample sample;
  OptionSet set(sample);
  EXPECT_FALSE(look_up(set, "no_persist_layer_norm").is_negated);
  EXPECT_TRUE(look_up(set, "no-bf16").is_negated);
  EXPECT_EQ(look_up(set, "no-bf16").option, set.find("bf16"));
  EXPECT_TRUE(look_up(set, "no_rope_fusion").is_negated);
  EXPECT_FALSE(look_up(set, "no_lr"));  // not a boolean
  EXPECT_FALSE(look_up(set, "no_num_layers"));
}

TEST(KnownNames, OtherProgramsWordsComeLast) {
  NamesSample sample;
  OptionSet set(sample);
  EXPECT_EQ(look_up(set, "learning-rate").option, set.find("lr"));
  EXPECT_NE(look_up(set, "learning-rate").word, nullptr);
  EXPECT_EQ(look_up(set, "optimizer.learning_rate").option, set.find("lr"));
  EXPECT_EQ(look_up(set, "lr").word, nullptr);
  EXPECT_FALSE(look_up(set, "max_steps"));  // a word for train_iters, which this set lacks
  EXPECT_EQ(find_other_word("max_steps")->neutral, std::vector<std::string>{"-1"});
  EXPECT_EQ(split_entry("a=b|c"), (std::pair<std::string, std::vector<std::string>>{"a", {"b", "c"}}));
  EXPECT_EQ(split_entry("a"), (std::pair<std::string, std::vector<std::string>>{"a", {}}));
  for (const OtherWordsRow& row : other_words_rows()) {
    for (const std::string& entry : split_words(row.names)) {
      const std::string name = split_entry(entry).first;
      EXPECT_EQ(find_known_name(name), nullptr) << name << " would be found among the known names first";
      EXPECT_EQ(find_other_word(name)->option, row.becomes.empty() ? row.option : row.becomes[0].option);
    }
  }
}

TEST(KnownNames, DottedNamesResolveToTheirWholePathOrLastPart) {
  NamesSample sample;
  OptionSet set(sample);
  EXPECT_EQ(look_up(set, "modules.pre_trainer.overrides.lr").option, set.find("lr"));
  EXPECT_EQ(look_up(set, "modules.pre_trainer.lr").option, set.find("lr"));
  EXPECT_EQ(look_up(set, "overrides.lora.dim").option, set.find("lora_dim"));
  EXPECT_EQ(look_up(set, "optimizer.lr").option, set.find("lr"));
  EXPECT_NE(look_up(set, "adapter.peft_type").known, nullptr);
  EXPECT_NE(look_up(set, "torch_compile.mode").known, nullptr);
  for (const char* name : {".", "..", "modules.", "modules..", "lr.", ""}) EXPECT_FALSE(look_up(set, name)) << name;
}

TEST(NoEffectNotes, GiveOneLineAReason) {
  NoEffectNotes notes;
  notes.add("a", "fused");
  notes.add("b", "one rank");
  notes.add("c", "fused");
  notes.add("a", "fused");
  EXPECT_EQ(notes.lines(), (std::vector<std::string>{"no effect here: a, c (fused)", "no effect here: b (one rank)"}));
}

}  // namespace
}  // namespace megalith
