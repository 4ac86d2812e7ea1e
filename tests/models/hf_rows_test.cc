// Rows between config.json and a configuration: what each kind reads, writes and refuses.
#include "models/hf_rows.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace megalith {
namespace {

ModelConfig read_by(const HfRows& rows, const Json& file) {
  ModelConfig config;
  rows.read(file, "config.json", config);
  return config;
}

std::string refusal_by(const HfRows& rows, const Json& file) {
  try {
    read_by(rows, file);
  } catch (const UserError& error) {
    return error.message();
  }
  return "";
}

Json written_by(const HfRows& rows, const ModelConfig& config) {
  Json json = Json::object();
  rows.write(config, json);
  return json;
}

TEST(HfRows, AFieldIsReadBoundedAndWritten) {
  const HfRows rows = HfRows()
                          .required("width", &ModelConfig::hidden_size)
                          .field("experts", &ModelConfig::num_experts, 128, &ModelConfig::expert_count)
                          .field("inner", &ModelConfig::ffn_hidden_size, nullptr)
                          .field("kv", &ModelConfig::num_query_groups, &ModelConfig::hidden_size);
  const ModelConfig config = read_by(rows, {{"width", 8}, {"experts", nullptr}});
  EXPECT_EQ(config.num_experts, 128);
  EXPECT_EQ(config.ffn_hidden_size, std::nullopt);
  EXPECT_EQ(config.num_query_groups, 8);
  EXPECT_EQ(written_by(rows, config), Json({{"width", 8}, {"experts", 128}, {"inner", nullptr}, {"kv", 8}}));
  EXPECT_EQ(refusal_by(rows, Json::object()), "config.json: \"width\" is missing");
  EXPECT_EQ(refusal_by(rows, {{"width", 0}}), "config.json: width is 0, expected at least 1");
  EXPECT_EQ(refusal_by(rows, {{"width", 1 << 21}}), "config.json: width is 2097152, expected at most 1048576");
  EXPECT_EQ(refusal_by(rows, {{"width", 8}, {"inner", "x"}}), "config.json: inner is \"x\", expected a whole number");
}

TEST(HfRows, NullMayDifferFromAMissingKey) {
  const HfRows rows = HfRows().nullable("cap", &ModelConfig::final_logit_softcapping, 30.0, 0.0);
  EXPECT_EQ(read_by(rows, Json::object()).final_logit_softcapping, 30);
  const ModelConfig none = read_by(rows, {{"cap", nullptr}});
  EXPECT_EQ(none.final_logit_softcapping, 0);
  EXPECT_EQ(written_by(rows, none), Json({{"cap", nullptr}}));
}

TEST(HfRows, ARowReplacesTheOneOfItsKeyInItsPlace) {
  const HfRows shared = HfRows()
                            .field("a", &ModelConfig::num_layers, 2)
                            .field("b", &ModelConfig::num_attention_heads, &ModelConfig::num_layers);
  const HfRows rows = HfRows(shared).field("a", &ModelConfig::num_layers, 3);
  EXPECT_EQ(read_by(rows, Json::object()).num_attention_heads, 3);
  EXPECT_EQ(read_by(HfRows(rows).join(shared), Json::object()).num_attention_heads, 2);
}

TEST(HfRows, WhatCannotBeHonouredIsRefusedBeforeAnythingIsRead) {
  const HfRows rows = HfRows()
                          .required("width", &ModelConfig::hidden_size)
                          .fixed("bias", false, "there is none")
                          .only("cross", false, "nor this");
  EXPECT_EQ(refusal_by(rows, {{"bias", true}}), "config.json: bias is true, and only false can be honoured");
  EXPECT_EQ(refusal_by(rows, {{"cross", true}}), "config.json: cross is true, and only false can be honoured");
  EXPECT_EQ(written_by(rows, read_by(rows, {{"width", 4}, {"bias", nullptr}})), Json({{"width", 4}, {"bias", false}}));
}

TEST(HfRows, WordsSetSwitches) {
  const HfRows rows = HfRows().words(
      "act", {{"gelu", nullptr}, {"gelu_new", &ModelConfig::openai_gelu}, {"relu", &ModelConfig::relu}}, "no other");
  EXPECT_EQ(written_by(rows, read_by(rows, Json::object())), Json({{"act", "gelu"}}));
  const ModelConfig tanh = read_by(rows, {{"act", "gelu_new"}});
  EXPECT_TRUE(tanh.openai_gelu && !tanh.relu);
  EXPECT_EQ(written_by(rows, tanh), Json({{"act", "gelu_new"}}));
  EXPECT_EQ(refusal_by(rows, {{"act", "silu"}}),
            "config.json: act is \"silu\", and only \"gelu\" and \"gelu_new\" and \"relu\" can be honoured");
}

}  // namespace
}  // namespace megalith
