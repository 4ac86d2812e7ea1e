// BERT's options, its two dictionaries of config.json, and which family has which model.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "models/tiny_models.h"
#include "support/temporary_folder.h"

namespace megalith {
namespace {

using namespace test;

// google-bert/bert-base-uncased's, as published: an old file, of a class without the classifier of sentences.
nlohmann::json bert_base_uncased() {
  return {{"architectures", {"BertForMaskedLM"}},
          {"attention_probs_dropout_prob", 0.1},
          {"gradient_checkpointing", false},
          {"hidden_act", "gelu"},
          {"hidden_dropout_prob", 0.1},
          {"hidden_size", 768},
          {"initializer_range", 0.02},
          {"intermediate_size", 3072},
          {"layer_norm_eps", 1e-12},
          {"max_position_embeddings", 512},
          {"model_type", "bert"},
          {"num_attention_heads", 12},
          {"num_hidden_layers", 12},
          {"pad_token_id", 0},
          {"position_embedding_type", "absolute"},
          {"type_vocab_size", 2},
          {"use_cache", true},
          {"vocab_size", 30522}};
}

HfModel read_bert(const nlohmann::json& json) {
  const TemporaryFolder folder;
  std::ofstream(folder.path() / "config.json") << json.dump();
  return read_hf_config(folder.path());
}

std::string refusal_of(const nlohmann::json& json) {
  try {
    read_bert(json);
  } catch (const UserError& error) {
    return error.message().substr(error.message().find("config.json"));
  }
  return "";
}

TEST(BertConfig, PublishedFileIsRead) {
  const HfModel model = read_bert(bert_base_uncased());
  const ModelConfig& config = model.config;
  EXPECT_EQ(model.family->name, "bert");
  EXPECT_EQ(config.model_type, ModelType::kBert);
  EXPECT_FALSE(config.is_causal());
  EXPECT_EQ(config.norm_placement, NormPlacement::kPostLn);
  EXPECT_TRUE(config.embedding_norm);
  EXPECT_EQ(config.token_types(), 2);
  EXPECT_FALSE(config.bert_binary_head);
  EXPECT_EQ(config.norm_epsilon, 1e-12);
  EXPECT_EQ(config.activation(), ops::ActivationKind::kGelu);
  EXPECT_EQ(config.hidden_dropout, 0.1);
  EXPECT_EQ(config.max_position_embeddings, 512);
}

TEST(BertConfig, ClassSaysWhetherSentencesAreClassified) {
  for (const auto& [type, name, has_head] :
       std::vector<std::tuple<std::string, std::string, bool>>{{"bert", "BertForPreTraining", true},
                                                               {"bert", "BertForMaskedLM", false},
                                                               {"bert", "BertModel", true},
                                                               {"megatron-bert", "MegatronBertForPreTraining", true},
                                                               {"megatron-bert", "MegatronBertForMaskedLM", false},
                                                               {"megatron-bert", "MegatronBertModel", true}}) {
    nlohmann::json json = bert_base_uncased();
    json["model_type"] = type;
    json["architectures"] = {name};
    EXPECT_EQ(read_bert(json).config.bert_binary_head, has_head) << name;
  }
  nlohmann::json json = bert_base_uncased();
  json["architectures"] = {"BertForSequenceClassification"};
  EXPECT_EQ(read_bert(json).config.model_type, ModelType::kClassifier);
  json["architectures"] = {"BertForTokenClassification"};
  EXPECT_NE(refusal_of(json).find("architectures is [BertForTokenClassification], expected BertForPreTraining"),
            std::string::npos)
      << refusal_of(json);
}

TEST(BertConfig, WhatIsWrittenReadsBackTheSame) {
  for (const std::string type : {"bert", "megatron-bert"}) {
    for (const std::string activation : {"gelu", "gelu_new"}) {
      for (const bool has_head : {false, true}) {
        nlohmann::json json = bert_base_uncased();
        json["model_type"] = type;
        json["architectures"] = {(type == "bert" ? "Bert" : "MegatronBert") +
                                 std::string(has_head ? "ForPreTraining" : "ForMaskedLM")};
        json["hidden_act"] = activation;
        json["type_vocab_size"] = 3;
        const HfModel model = read_bert(json);
        EXPECT_EQ(&family_for(model.config), model.family);
        const nlohmann::json written = make_hf_config(*model.family, model.config, at::kFloat);
        for (const char* key : {"architectures", "model_type", "hidden_act", "type_vocab_size", "layer_norm_eps",
                                "hidden_dropout_prob", "attention_probs_dropout_prob", "max_position_embeddings",
                                "vocab_size", "hidden_size", "intermediate_size"}) {
          EXPECT_EQ(written.at(key), json.at(key)) << key;
        }
      }
    }
  }
}

TEST(BertConfig, WhatCannotBeHonouredIsRefused) {
  const auto with = [](const char* key, const nlohmann::json& value) {
    nlohmann::json json = bert_base_uncased();
    json[key] = value;
    return refusal_of(json);
  };
  EXPECT_EQ(with("hidden_act", "relu"),
            "config.json: hidden_act is \"relu\", and only \"gelu\" and \"gelu_new\" and \"gelu_pytorch_tanh\" can be "
            "honoured");
  EXPECT_EQ(with("position_embedding_type", "relative_key"),
            "config.json: position_embedding_type is \"relative_key\", and only \"absolute\" can be honoured");
  EXPECT_EQ(with("is_decoder", true), "config.json: is_decoder is true, and only false can be honoured");
}

ModelConfig encoder() {
  ModelConfig config;
  config.model_type = ModelType::kBert;
  config.num_layers = 2;
  config.hidden_size = 16;
  config.num_attention_heads = 2;
  config.vocab_size = 40;
  config.max_position_embeddings = 8;
  config.bias_gelu_fusion = false;
  return config;
}

TEST(BertConfig, FamilyFollowsFromTheNorms) {
  ModelConfig config = encoder();
  EXPECT_EQ(family_for(config).name, "megatron_bert");
  config.norm_placement = NormPlacement::kPostLn;
  EXPECT_EQ(family_for(config).name, "encoder");
  config.embedding_norm = true;
  EXPECT_EQ(family_for(config).name, "bert");
  config.num_experts = 4;
  EXPECT_EQ(family_for(config).name, "encoder");
}

// Its MLPs have GELU by a tanh and its head by the error function; the class has one form.
TEST(BertConfig, MegatronsDefaultGeluHasNoClass) {
  ModelConfig config = encoder();
  config.bias_gelu_fusion = true;
  const ModelFamily& family = family_for(config);
  EXPECT_EQ(family.name, "encoder");
  try {
    make_hf_config(family, config, at::kFloat);
    FAIL() << "it was exported";
  } catch (const UserError& error) {
    EXPECT_EQ(error.message(),
              "no Hugging Face class has this architecture, so it cannot be exported; the nearest, "
              "MegatronBertForPreTraining, has bias_gelu_fusion false, not true");
  }
}

std::string first_error(const ModelConfig& config) {
  const std::vector<UserError> errors = check_model_config(config);
  return errors.empty() ? "" : errors[0].message();
}

TEST(BertConfig, WordsOfDecodersAreRefused) {
  ModelConfig config = encoder();
  EXPECT_EQ(first_error(config), "");
  config.causal = true;
  EXPECT_EQ(first_error(config), "is_causal is true, and with model_type bert always false");
  config = encoder();
  config.window_size = {3, 0};
  EXPECT_EQ(first_error(config),
            "window_size is 3,0 with is_causal false, where a window reaches as far behind as before");
  config = encoder();
  config.position_embedding_type = PositionEmbedding::kRope;
  config.mtp_num_layers = 1;
  EXPECT_EQ(first_error(config),
            "mtp_num_layers with is_causal false: every token would see those that it is to predict");
  config = encoder();
  config.model_type = ModelType::kGpt;
  config.num_token_types = 2;
  EXPECT_EQ(first_error(config), "num_token_types is for model_type bert, biencoder or classifier, which is gpt");
}

}  // namespace
}  // namespace megalith
