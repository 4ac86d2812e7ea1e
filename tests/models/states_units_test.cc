// A model without what predicts: its states are those that the whole model's head reads.
#include "models/states_units.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <set>

#include "models/tiny_models.h"

namespace megalith {
namespace {

using namespace test;

std::unique_ptr<Model> build_states(const ModelConfig& config, const LayerContext& context, bool has_pooler) {
  return family_for(config).build(config, context, ModelPart::whole(states_units(config, has_pooler)));
}

std::set<std::string> names_of(Model& model) {
  std::set<std::string> names;
  for (const Parameter* parameter : model.parameters()) names.insert(parameter->name());
  return names;
}

TEST(StatesUnits, ADecodersStatesAreWhatItsHeadReads) {
  const Groups groups = Groups::single();
  ModelConfig config = tiny_config();
  config.mtp_num_layers = 1;
  const auto whole = build_model(config, tiny_context(groups));
  const auto states = build_states(config, tiny_context(groups), /*has_pooler=*/false);
  for (Model* model : {whole.get(), states.get()}) {
    model->for_each_parameter([](Parameter& parameter) { parameter.initialise(5); });
  }
  const std::set<std::string> names = names_of(*whole);
  for (const std::string& name : names_of(*states)) EXPECT_TRUE(names.contains(name)) << name;
  EXPECT_LT(names_of(*states).size(), names.size());
  const NaiveInput batch = tiny_batch(config, 2, 9, false);
  const Bundle given = states->forward(model_input(batch), {}, HeadOutput::kLogits).boundary;
  EXPECT_EQ(given.find("pooled"), nullptr);
  at::Tensor head;
  for (Parameter* parameter : whole->parameters()) {
    if (parameter->name() == "lm_head.weight") head = parameter->data().narrow(0, 0, *config.vocab_size);
  }
  const at::Tensor logits = whole->forward(model_input(batch), {}, HeadOutput::kLogits).logits;
  const at::Tensor ours = at::mm(given.at("states"), head.t()).view_as(logits);
  EXPECT_LT((ours - logits).abs().max().item<double>(), 1e-12);
}

TEST(StatesUnits, AnEncoderNeedsNothingOfItsDecoder) {
  ModelConfig config = tiny_config();
  config.model_type = ModelType::kT5;
  config.decoder_num_layers = 3;
  const std::vector<Unit> all = model_units(config), own = states_units(config, /*has_pooler=*/false);
  check_units(own);
  ASSERT_LT(own.size(), all.size());
  EXPECT_EQ(own.back().gives, std::vector<std::string>{"memory"});
  for (size_t i = 0; i < own.size(); ++i) EXPECT_EQ(own[i].name, all[i].name);
}

TEST(StatesUnits, OnlyABertHasAPooler) {
  EXPECT_THROW(states_units(tiny_config(), /*has_pooler=*/true), InternalError);
}

}  // namespace
}  // namespace megalith
