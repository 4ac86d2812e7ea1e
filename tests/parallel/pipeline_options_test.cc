// Which layers a pipeline's stages get, and what is said about options that do not fit.
#include "parallel/pipeline/pipeline_options.h"

#include <gtest/gtest.h>

#include "config/option.h"
#include "core/strings.h"
#include "models/transformer.h"

namespace megalith {
namespace {

std::vector<Unit> decoder(int64_t layers, int64_t modules = 0) {
  ModelConfig config;
  config.num_layers = layers;
  config.mtp_num_layers = modules;
  return transformer_units(config);
}

// "message / remedy", one a line.
std::string refusals(const PipelineOptions& options, int64_t ranks, std::span<const Unit> units) {
  std::vector<std::string> lines;
  for (const UserError& error : check_pipeline(options, ranks, units)) {
    lines.push_back(error.message() + " / " + error.remedy());
  }
  return join(lines, "\n");
}
std::string refusals(const PipelineOptions& options, int64_t ranks, int64_t layers, int64_t modules = 0) {
  return refusals(options, ranks, decoder(layers, modules));
}

// The stages in the letters of a layout.
std::string layout_of(const PipelineOptions& options, int64_t ranks, std::span<const Unit> units) {
  EXPECT_EQ(refusals(options, ranks, units), "");
  const PipelinePlan plan = make_pipeline_plan(options, ranks, units);
  EXPECT_EQ(plan.num_ranks, ranks);
  EXPECT_EQ(static_cast<int64_t>(plan.stages.size()), ranks * plan.num_chunks);
  std::vector<std::string> stages;
  int64_t next_unit = 0, next_layer = 0;
  for (const UnitRange& stage : plan.stages) {
    EXPECT_EQ(stage.first, next_unit);
    EXPECT_EQ(plan.layers_of(stage).first, next_layer);
    next_unit = stage.end();
    next_layer += plan.layers_of(stage).count;
    std::string& letters = stages.emplace_back();
    for (const Unit& unit : units_in(plan.units, stage)) {
      letters += unit.letter == UnitLetter::kNone ? '.' : static_cast<char>(unit.letter);
    }
  }
  EXPECT_EQ(next_unit, std::ssize(units));
  return join(stages, "|");
}
std::string layout_of(const PipelineOptions& options, int64_t ranks, int64_t layers, int64_t modules = 0) {
  return layout_of(options, ranks, decoder(layers, modules));
}

TEST(PipelineOptions, LayersAreSharedOutEvenly) {
  EXPECT_EQ(layout_of({}, 1, 3), "EtttL");
  EXPECT_EQ(layout_of({}, 2, 4), "Ett|ttL");
  EXPECT_EQ(layout_of({.num_virtual_stages_per_pipeline_rank = 2}, 2, 8), "Ett|tt|tt|ttL");
  EXPECT_EQ(layout_of({.num_layers_per_virtual_pipeline_stage = 1}, 2, 6), "Et|t|t|t|t|tL");
  EXPECT_EQ(layout_of({.num_layers_per_virtual_pipeline_stage = 3}, 2, 6), "Ettt|tttL");
  EXPECT_EQ(layout_of({.pp_algorithm = "zbv"}, 2, 4), "Et|t|t|tL");
  EXPECT_EQ(layout_of({}, 2, 4, 1), "Ett|ttmL");
  EXPECT_EQ(
      refusals({.num_layers_per_virtual_pipeline_stage = 3}, 2, 8).substr(0, 105),
      "num_layers 8 cannot be cut into stages of num_layers_per_virtual_pipeline_stage 3 on 2 pipeline ranks / m");
}

// The embedding and the head are a layer each, a prediction module is one, and no rank has more than it must.
TEST(PipelineOptions, LayersThatStagesDoNotDivideAreSharedByTheirWork) {
  EXPECT_EQ(layout_of({}, 4, 10), "Ett|ttt|ttt|ttL");
  EXPECT_EQ(layout_of({}, 2, 5), "Ettt|ttL");
  EXPECT_EQ(layout_of({}, 4, 9, 1), "Ett|ttt|ttt|tmL");
  EXPECT_EQ(layout_of({}, 4, 2), "E|t|t|L");
  EXPECT_EQ(layout_of({.num_virtual_stages_per_pipeline_rank = 2}, 2, 6), "Et|tt|tt|tL");
  EXPECT_EQ(layout_of({.num_virtual_stages_per_pipeline_rank = 2}, 2, 5), "Et|tt|tt|L");
  EXPECT_EQ(layout_of({.pp_algorithm = "zbv"}, 2, 7), "Ett|tt|tt|tL");
  EXPECT_TRUE(make_pipeline_plan({}, 2, decoder(5)).counts_ends);
  EXPECT_FALSE(make_pipeline_plan({}, 2, decoder(4)).counts_ends);
  EXPECT_FALSE(make_pipeline_plan({.allow_padding_num_layers = true}, 2, decoder(5)).counts_ends);
  EXPECT_EQ(refusals({.num_virtual_stages_per_pipeline_rank = 1'000'000'000'000}, 4, 20),
            "4 pipeline ranks with 1000000000000 stages each cannot share the 22 parts of this model / give every "
            "pipeline rank layers, or use fewer virtual stages");
}

TEST(PipelineOptions, LayersThatCannotBeSharedOutEvenlyMayFillTheFirstStages) {
  const PipelineOptions padded{.allow_padding_num_layers = true};
  EXPECT_EQ(layout_of(padded, 2, 4), "Ett|ttL");
  EXPECT_EQ(layout_of(padded, 4, 10), "Ettt|ttt|tt|ttL");
  EXPECT_EQ(layout_of(padded, 1, 3), "EtttL");
  EXPECT_EQ(layout_of({.pp_algorithm = "zbv", .allow_padding_num_layers = true}, 2, 5, 1), "Ett|t|t|tmL");
  EXPECT_EQ(layout_of({.num_virtual_stages_per_pipeline_rank = 2, .allow_padding_num_layers = true}, 2, 6),
            "Ett|tt|t|tL");
  EXPECT_EQ(layout_of({.num_layers_per_virtual_pipeline_stage = 3, .allow_padding_num_layers = true}, 2, 8),
            "Ett|tt|tt|ttL");
  EXPECT_EQ(layout_of({.account_for_loss_in_pipeline_split = true, .allow_padding_num_layers = true}, 4, 10),
            "Ettt|ttt|ttt|tL");
  EXPECT_EQ(refusals(padded, 4, 2).substr(0, 31), "stage 3 of 4 would hold nothing");
}

TEST(PipelineOptions, TheEmbeddingAndTheLossMayCountAsLayers) {
  EXPECT_EQ(layout_of({.account_for_embedding_in_pipeline_split = true}, 2, 5), "Ett|tttL");
  EXPECT_EQ(layout_of({.account_for_loss_in_pipeline_split = true}, 2, 5), "Ettt|ttL");
  EXPECT_EQ(layout_of({.num_virtual_stages_per_pipeline_rank = 2,
                       .account_for_embedding_in_pipeline_split = true,
                       .account_for_loss_in_pipeline_split = true},
                      2, 6),
            "Et|tt|tt|tL");
  EXPECT_EQ(layout_of({.num_layers_per_virtual_pipeline_stage = 1,
                       .account_for_embedding_in_pipeline_split = true,
                       .account_for_loss_in_pipeline_split = true},
                      2, 2),
            "E|t|t|L");
  EXPECT_EQ(
      layout_of({.account_for_embedding_in_pipeline_split = true, .account_for_loss_in_pipeline_split = true}, 4, 8),
      "Ett|ttt|tt|tL");
  EXPECT_EQ(layout_of({.account_for_loss_in_pipeline_split = true}, 4, 8), "Ettt|tt|tt|tL");
}

TEST(PipelineOptions, FirstAndLastRanksMayDiffer) {
  EXPECT_EQ(layout_of({.decoder_first_pipeline_num_layers = 1}, 3, 5), "Et|tt|ttL");
  EXPECT_EQ(layout_of({.decoder_first_pipeline_num_layers = 1, .decoder_last_pipeline_num_layers = 3}, 4, 8),
            "Et|tt|tt|tttL");
  EXPECT_EQ(layout_of({.decoder_first_pipeline_num_layers = 1, .decoder_last_pipeline_num_layers = 3}, 2, 4),
            "Et|tttL");
  // The numbers are a rank's, shared by its virtual stages.
  EXPECT_EQ(layout_of({.num_virtual_stages_per_pipeline_rank = 2, .decoder_last_pipeline_num_layers = 2}, 3, 10),
            "Ett|tt|t|tt|tt|tL");
  EXPECT_EQ(
      refusals({.decoder_first_pipeline_num_layers = 1}, 3, 6),
      "num_layers 6 less those of decoder_first_pipeline_num_layers are 5, to be shared by 2 other pipeline ranks "
      "/ leave a multiple of 2 layers");
  EXPECT_EQ(refusals({.decoder_first_pipeline_num_layers = 1, .decoder_last_pipeline_num_layers = 2}, 2, 4),
            "num_layers 4 less those of decoder_first_pipeline_num_layers and decoder_last_pipeline_num_layers are 1, "
            "to be shared by 0 other pipeline ranks / make the two add up to num_layers");
  EXPECT_EQ(refusals({.decoder_first_pipeline_num_layers = 9}, 2, 4).substr(0, 70),
            "num_layers 4 less those of decoder_first_pipeline_num_layers are -5, t");
  EXPECT_EQ(refusals({.num_virtual_stages_per_pipeline_rank = 2, .decoder_first_pipeline_num_layers = 1}, 2, 3),
            "num_virtual_stages_per_pipeline_rank 2 does not divide the 1 layers of a rank / change "
            "decoder_first/last_pipeline_num_layers, or use pipeline_model_parallel_layout");
  EXPECT_EQ(refusals({.num_virtual_stages_per_pipeline_rank = 2, .decoder_first_pipeline_num_layers = 0}, 2, 2),
            "stage 3 of 4 would hold nothing / give every pipeline rank layers, or use fewer virtual stages");
  EXPECT_EQ(refusals({.num_layers_per_virtual_pipeline_stage = 1, .decoder_first_pipeline_num_layers = 2}, 2, 4)
                .substr(0, 80),
            "num_layers_per_virtual_pipeline_stage 1 is not the same on all ranks with decode");
}

TEST(PipelineOptions, ALayoutSaysItAll) {
  EXPECT_EQ(layout_of({.pipeline_model_parallel_layout = "Et*3|(tt|)*2,tL"}, 2, 8), "Ettt|tt|tt|tL");
  EXPECT_EQ(layout_of({.pipeline_model_parallel_layout = "Et*1|t*1|t*2|t*1,L"}, 4, 5), "Et|t|tt|tL");
  EXPECT_EQ(layout_of({.pipeline_model_parallel_layout = "E|tt|t|L"}, 4, 3), "E|tt|t|L");
  EXPECT_EQ(layout_of({.pp_algorithm = "zbv-formatted", .pipeline_model_parallel_layout = "E|tt|t|L"}, 2, 3),
            "E|tt|t|L");
  EXPECT_EQ(layout_of({.pipeline_model_parallel_layout = "Ett|tmL"}, 2, 3, 1), "Ett|tmL");
  const auto refused = [](const std::string& layout, int64_t ranks, int64_t layers, int64_t modules = 0) {
    const std::string name = "pipeline_model_parallel_layout ";
    const std::string text = refusals({.pipeline_model_parallel_layout = layout}, ranks, layers, modules);
    return text.starts_with(name) ? text.substr(name.size()) : text;
  };
  EXPECT_EQ(refused("Ett|t|tL", 2, 4),
            "has 3 stages, pipeline_model_parallel_size 2 does not divide them / write 2 stages, or a multiple");
  EXPECT_EQ(refused("Ett||tt|L", 4, 4),
            "has nothing in stage 2 of 4 / take out the | that makes an empty stage, or give it a layer");
  EXPECT_EQ(refused("tt|tL", 2, 3), "has 0 E, not one / write one E, as the first letter");
  EXPECT_EQ(refused("tE|tL", 2, 2), "has 1 E, but not at its beginning / write one E, as the first letter");
  EXPECT_EQ(refused("Et|Lt", 2, 2), "has 1 L, but not at its end / write one L, as the last letter");
  EXPECT_EQ(refused("EtL|tL", 2, 2), "has 2 L, not one / write one L, as the last letter");
  EXPECT_EQ(refused("Et|tL", 2, 3), "has 2 t, num_layers is 3 / write one t a layer");
  EXPECT_EQ(refused("Et|tmL", 2, 2), "has 1 m, but the model has no prediction modules / leave m out");
  EXPECT_EQ(refused("Et|tmL", 2, 2, 2), "has 1 m, the model has 2 prediction modules / write one m a module");
  EXPECT_EQ(refused("Em|ttL", 2, 2, 1),
            "has an m in front of a t / prediction modules read the output of the last layer: write m behind all t");
  EXPECT_EQ(refused("Et|tm|L", 3, 2, 1),
            "has an m in another stage than L / prediction modules use the head: write them in its stage, as in |tmL");
  // All that is wrong at once.
  EXPECT_EQ(check_pipeline({.pipeline_model_parallel_layout = "t||t",
                            .decoder_first_pipeline_num_layers = 1,
                            .account_for_loss_in_pipeline_split = true},
                           2, decoder(3))
                .size(),
            7u);
}

// Lists that are no decoder's: what a layout does not write goes with its neighbour, layers need not be worth the same.
TEST(PipelineOptions, AnyListOfUnitsIsCut) {
  const UsedParameter table{.unit = "embed", .parameter = "shared.weight"};
  const auto layer = [](const std::string& name, int64_t worth) {
    return Unit{
        .name = name, .letter = UnitLetter::kLayer, .layers_worth = worth, .reads = {"hidden"}, .gives = {"hidden"}};
  };
  // An encoder with a norm after it, a decoder with an embedding in front.
  std::vector<Unit> t5 = {{.name = "embed", .letter = UnitLetter::kEmbedding, .gives = {"hidden"}},
                          layer("encoder.0", 1),
                          layer("encoder.1", 1),
                          {.name = "encoder.norm", .reads = {"hidden"}, .gives = {"memory"}},
                          {.name = "decoder.embed", .gives = {"hidden"}, .uses = {table}},
                          layer("decoder.0", 1),
                          layer("decoder.1", 1),
                          {.name = "head", .letter = UnitLetter::kHead, .reads = {"hidden"}, .uses = {table}}};
  t5[2].stays_with_next = true;
  t5[5].reads = t5[6].reads = {"hidden", "memory"};
  EXPECT_EQ(layout_of({}, 2, t5), "Ett.|.ttL");
  EXPECT_EQ(layout_of({}, 4, t5), "Et|t.|.t|tL");
  EXPECT_EQ(layout_of({.pipeline_model_parallel_layout = "Ett|t|tL"}, 3, t5), "Ett.|.t|tL");
  EXPECT_EQ(layout_of({.pipeline_model_parallel_layout = "E|tt|ttL"}, 3, t5), "E|tt.|.ttL");
  EXPECT_EQ(layout_of({.decoder_first_pipeline_num_layers = 1}, 2, t5), "Et|t..ttL");
  EXPECT_EQ(layout_of({.pipeline_model_parallel_split_rank = 1}, 3, t5), "Ett.|.t|tL");
  EXPECT_EQ(layout_of({.encoder_pipeline_model_parallel_size = 2}, 3, t5), "Et|t.|.ttL");
  EXPECT_EQ(layout_of({.pipeline_model_parallel_split_rank = 2, .encoder_pipeline_model_parallel_size = 2}, 4, t5),
            "Et|t.|.t|tL");
  EXPECT_EQ(boundary_before(t5, make_pipeline_plan({}, 4, t5).stages[3].first),
            (std::vector<std::string>{"hidden", "memory"}));

  const std::pair<PipelineOptions, const char*> wrong[] = {
      {{.pipeline_model_parallel_split_rank = 3},
       "pipeline_model_parallel_split_rank 3 leaves the decoder no rank: pipeline_model_parallel_size is 3 / "
       "pipeline_model_parallel_size counts the ranks of both stacks: give it more than 3, or set the other from 1 to "
       "2"},
      {{.pipeline_model_parallel_split_rank = 1, .encoder_pipeline_model_parallel_size = 2},
       "pipeline_model_parallel_split_rank 1 and encoder_pipeline_model_parallel_size 2 both say how many stages are "
       "the "
       "encoder's / keep one of them"},
      {{.num_virtual_stages_per_pipeline_rank = 2, .encoder_pipeline_model_parallel_size = 2},
       "encoder_pipeline_model_parallel_size 2 and num_virtual_stages_per_pipeline_rank both say which layers a stage "
       "gets / keep one of them"}};
  for (const auto& [options, text] : wrong) EXPECT_EQ(refusals(options, 3, t5), text);
  EXPECT_EQ(refusals({.pipeline_model_parallel_split_rank = 3}, 5, t5),
            "the 2 layers of the encoder leave some of its 3 pipeline ranks without one / move "
            "pipeline_model_parallel_split_rank, or take fewer pipeline ranks");
  EXPECT_EQ(refusals({.pipeline_model_parallel_split_rank = 1}, 1, t5),
            "pipeline_model_parallel_split_rank 1 needs pipeline_model_parallel_size above 1 / set "
            "pipeline_model_parallel_size, or leave it out");
  EXPECT_EQ(refusals({.encoder_pipeline_model_parallel_size = 1}, 2, 4),
            "encoder_pipeline_model_parallel_size 1 is for a model with an encoder beside its decoder / leave it out");
  std::vector<Unit> longer = t5;
  longer.insert(longer.begin() + 3, layer("encoder.2", 1));
  std::swap(longer[2].stays_with_next, longer[3].stays_with_next);
  EXPECT_EQ(layout_of({.pipeline_model_parallel_split_rank = 2}, 3, longer), "Et|tt.|.ttL");
  EXPECT_EQ(layout_of({.allow_padding_num_layers = true, .pipeline_model_parallel_split_rank = 2}, 3, longer),
            "Ett|t.|.ttL");

  // Who holds the table: the first rank, the one where the decoder begins, the last.
  using Holders = std::map<std::string, std::set<int>>;
  const auto holders = [](const PipelineOptions& options, int64_t ranks, const std::vector<Unit>& units) {
    return make_pipeline_plan(options, ranks, units).parameter_holders();
  };
  EXPECT_EQ(holders({}, 4, t5), (Holders{{"shared.weight", {0, 2, 3}}}));
  EXPECT_EQ(holders({}, 2, t5), (Holders{{"shared.weight", {0, 1}}}));
  EXPECT_EQ(holders({.pp_algorithm = "zbv"}, 2, t5), (Holders{{"shared.weight", {0, 1}}}));
  EXPECT_EQ(holders({}, 1, t5), (Holders{{"shared.weight", {0}}}));
  EXPECT_EQ(holders({}, 4, decoder(4)), (Holders{{"model.embed_tokens.weight", {0, 3}}}));
  EXPECT_EQ(holders({.pp_algorithm = "zbv"}, 2, decoder(4)), (Holders{{"model.embed_tokens.weight", {0}}}));
  EXPECT_EQ(holders({.num_virtual_stages_per_pipeline_rank = 2}, 2, decoder(4)),
            (Holders{{"model.embed_tokens.weight", {0, 1}}}));
  ModelConfig untied;
  untied.num_layers = 4;
  untied.untie_embeddings_and_output_weights = true;
  EXPECT_EQ(holders({}, 2, transformer_units(untied)), Holders());
  untied.mtp_num_layers = 1;  // prediction modules embed too
  EXPECT_EQ(holders({}, 2, transformer_units(untied)), (Holders{{"model.embed_tokens.weight", {0, 1}}}));

  // Two double blocks and four single ones of half their work.
  std::vector<Unit> flux = {{.name = "in", .letter = UnitLetter::kEmbedding, .gives = {"hidden"}}};
  for (int64_t i = 0; i < 6; ++i) flux.push_back(layer(std::to_string(i), i < 2 ? 2 : 1));
  flux.push_back({.name = "out", .letter = UnitLetter::kHead, .reads = {"hidden"}});
  EXPECT_EQ(layout_of({}, 2, flux), "Ett|ttttL");
  EXPECT_EQ(layout_of({}, 4, flux), "Et|t|tt|ttL");
  EXPECT_EQ(layout_of({.num_virtual_stages_per_pipeline_rank = 2}, 2, flux), "Et|t|tt|ttL");
  EXPECT_EQ(layout_of({}, 3, flux), "Et|ttt|ttL");
  // An eighth is half a double block.
  EXPECT_EQ(refusals({}, 8, flux).substr(0, 31), "stage 3 of 8 would hold nothing");
}

TEST(PipelineLayout, TheParserRepeatsAndPointsAtMistakes) {
  using Stages = std::vector<std::string>;
  EXPECT_EQ(parse_pipeline_layout("Et*3|(tt|)*2,m|L"), (Stages{"Ettt", "tt", "tt", "m", "L"}));
  EXPECT_EQ(parse_pipeline_layout(" E , t * 2 \n| L "), (Stages{"Ett", "L"}));
  EXPECT_EQ(parse_pipeline_layout("E((t|)*2t|)*2L"), (Stages{"Et", "t", "t", "t", "t", "t", "L"}));
  EXPECT_EQ(parse_pipeline_layout("E|*3L"), (Stages{"E", "", "", "L"}));
  EXPECT_EQ(parse_pipeline_layout("Et*0L"), (Stages{"EL"}));
  EXPECT_EQ(parse_pipeline_layout(""), (Stages{""}));
  EXPECT_EQ(parse_pipeline_layout("(|t)*61").size(), 62u);
  const auto refused = [](const std::string& text) -> std::string {
    try {
      parse_pipeline_layout(text);
    } catch (const UserError& error) {
      const std::string message = error.message();
      return message.substr(message.find("character"));
    }
    return "";
  };
  EXPECT_EQ(refused("Et*2...|tL"), "character 5: '.' is no letter of a layout");
  EXPECT_EQ(refused("ET|tL"), "character 2: 'T' is no letter of a layout");
  EXPECT_EQ(refused("E(t|(t)L"), "character 2: the '(' is never closed");
  EXPECT_EQ(refused("Et)L"), "character 3: the ')' closes nothing");
  EXPECT_EQ(refused("Et*|L"), "character 4: '*' needs a number behind it");
  EXPECT_EQ(refused("*3L"), "character 1: '*' is no letter of a layout");
  EXPECT_EQ(refused("t*99999999999999999999L"), "character 8: it has more than 100000 letters");
  EXPECT_EQ(refused("((t*1000)*1000)*1000"), "character 15: it has more than 100000 letters");
  EXPECT_EQ(refused("E" + std::string(1'000'000, '(')), "character 103: more than 100 parentheses in one another");
}

TEST(PipelineOptions, AlgorithmsHaveTheirNamesAndTheirNumbersOfStages) {
  const auto plan = [](const PipelineOptions& options) { return make_pipeline_plan(options, 2, decoder(8)); };
  EXPECT_EQ(plan({}).algorithm, PipelineAlgorithm::k1f1b);
  EXPECT_EQ(plan({.pp_algorithm = "GPipe"}).algorithm, PipelineAlgorithm::kGpipe);
  EXPECT_EQ(plan({.pp_algorithm = "zero_bubble"}).algorithm, PipelineAlgorithm::kZeroBubble);
  EXPECT_EQ(plan({.enable_zero_bubble = true}).algorithm, PipelineAlgorithm::kZeroBubble);
  for (const PipelineOptions& options : {PipelineOptions{.pp_algorithm = "zbv"},
                                         {.pp_algorithm = "zbv-formatted"},
                                         {.pp_algorithm = "zbv", .num_virtual_stages_per_pipeline_rank = 2},
                                         {.zero_bubble_v_schedule = true},
                                         {.enable_zero_bubble = true, .zero_bubble_v_schedule = true},
                                         {.pp_algorithm = "zbv", .zero_bubble_v_schedule = true}}) {
    EXPECT_EQ(plan(options).algorithm, PipelineAlgorithm::kZeroBubbleV);
    EXPECT_EQ(plan(options).order, StageOrder::kVee);
    EXPECT_EQ(plan(options).num_chunks, 2);
  }
  EXPECT_EQ(plan({.pp_algorithm = "1f1b-interleaved", .num_virtual_stages_per_pipeline_rank = 4}).shape(4).num_stages(),
            8);
  // One rank needs no order.
  EXPECT_EQ(make_pipeline_plan({.pp_algorithm = "zbv"}, 1, decoder(3)).schedule(3).name, "1f1b");

  const auto refused = [](const PipelineOptions& options) { return refusals(options, 2, 8); };
  EXPECT_EQ(refused({.pp_algorithm = "zero-bubble-heuristic"}),
            "pp_algorithm zero-bubble-heuristic is not supported / the nearest is zero-bubble");
  EXPECT_EQ(refused({.pp_algorithm = "v-half"}), "pp_algorithm v-half is not supported / the nearest is zbv-formatted");
  EXPECT_EQ(refused({.pp_algorithm = "v_min"}), "pp_algorithm v_min is not supported / the nearest is zbv-formatted");
  EXPECT_EQ(refused({.pp_algorithm = "1f1"}),
            "pp_algorithm 1f1 is no schedule that is known here. Did you mean '1f1b'? / use one of gpipe, 1f1b, "
            "1f1b-interleaved, zero-bubble, zbv-formatted, zbv");
  EXPECT_EQ(refused({.pp_algorithm = "1f1b", .enable_zero_bubble = true}),
            "enable_zero_bubble and pp_algorithm 1f1b ask for different schedules / leave enable_zero_bubble out: "
            "pp_algorithm says it all");
  EXPECT_EQ(refused({.pp_algorithm = "1f1b-interleaved"}),
            "pp_algorithm 1f1b-interleaved needs virtual stages / set num_virtual_stages_per_pipeline_rank to 2 or "
            "more, or use pp_algorithm 1f1b");
  EXPECT_EQ(refused({.pp_algorithm = "zero-bubble", .num_virtual_stages_per_pipeline_rank = 2}),
            "pp_algorithm zero-bubble takes one stage a rank, there are 2 / leave virtual stages out, or use "
            "pp_algorithm 1f1b-interleaved");
  EXPECT_EQ(refused({.zero_bubble_v_schedule = true, .num_virtual_stages_per_pipeline_rank = 1}),
            "zero_bubble_v_schedule takes two virtual stages a rank, there is 1 / set "
            "num_virtual_stages_per_pipeline_rank to 2, or leave it out");
  EXPECT_EQ(refused({.pp_algorithm = "zbv", .decoder_first_pipeline_num_layers = 2}),
            "pp_algorithm zbv has the first and the last stage on one rank, which decoder_first_pipeline_num_layers "
            "cannot describe / use account_for_embedding/loss_in_pipeline_split or pipeline_model_parallel_layout");
}

TEST(PipelineOptions, OptionsThatContradictEachOtherAreRefusedTogether) {
  const auto refused = [](const PipelineOptions& options) { return refusals(options, 2, 8); };
  EXPECT_EQ(refused({.num_layers_per_virtual_pipeline_stage = 2, .num_virtual_stages_per_pipeline_rank = 2}),
            "num_layers_per_virtual_pipeline_stage and num_virtual_stages_per_pipeline_rank each say how many stages "
            "there are / keep one of them");
  EXPECT_EQ(
      refused({.num_virtual_stages_per_pipeline_rank = 2, .pipeline_model_parallel_layout = "Et*4|t*4L"}),
      "num_virtual_stages_per_pipeline_rank and pipeline_model_parallel_layout each say how many stages there are "
      "/ keep one of them");
  EXPECT_EQ(refused({.num_virtual_stages_per_pipeline_rank = 1, .pipeline_model_parallel_layout = "Et*4|t*4L"}), "");
  EXPECT_EQ(refused({.pipeline_model_parallel_layout = "Et*4|t*4L", .decoder_last_pipeline_num_layers = 4}),
            "pipeline_model_parallel_layout and decoder_last_pipeline_num_layers both say which layers a stage gets / "
            "keep the layout, leave decoder_last_pipeline_num_layers out");
  EXPECT_EQ(refused({.decoder_first_pipeline_num_layers = 4, .account_for_embedding_in_pipeline_split = true}),
            "decoder_first_pipeline_num_layers and account_for_embedding_in_pipeline_split all shift layers between "
            "stages / use decoder_first/last_pipeline_num_layers or account_for_embedding/loss_in_pipeline_split, not "
            "both");
  const PipelineOptions many{.pp_algorithm = "v-min",
                             .num_layers_per_virtual_pipeline_stage = 2,
                             .num_virtual_stages_per_pipeline_rank = 2,
                             .decoder_first_pipeline_num_layers = 3,
                             .account_for_loss_in_pipeline_split = true};
  EXPECT_EQ(check_pipeline(many, 2, decoder(8)).size(), 4u);
}

TEST(PipelineOptions, OneRankHasNoStagesToCut) {
  const auto refused = [](const PipelineOptions& options) { return refusals(options, 1, 4); };
  const std::string rest =
      " needs pipeline_model_parallel_size above 1 / set pipeline_model_parallel_size, or leave it out";
  EXPECT_EQ(refused({.num_virtual_stages_per_pipeline_rank = 2}), "num_virtual_stages_per_pipeline_rank 2" + rest);
  EXPECT_EQ(refused({.num_layers_per_virtual_pipeline_stage = 2}), "num_layers_per_virtual_pipeline_stage 2" + rest);
  EXPECT_EQ(refused({.pp_algorithm = "1f1b-interleaved"}), "pp_algorithm 1f1b-interleaved" + rest);
  EXPECT_EQ(refused({.pipeline_model_parallel_layout = "Et*4L"}), "pipeline_model_parallel_layout" + rest);
  EXPECT_EQ(refused({.microbatch_group_size_per_virtual_pipeline_stage = 2}),
            "microbatch_group_size_per_virtual_pipeline_stage" + rest);
  EXPECT_EQ(refused({.account_for_loss_in_pipeline_split = true}), "account_for_loss_in_pipeline_split" + rest);
  EXPECT_EQ(refused({.num_layers_per_virtual_pipeline_stage = 4, .num_virtual_stages_per_pipeline_rank = 1}), "");
}

TEST(PipelineOptions, MicrobatchesComeInGroups) {
  const auto plan = [](std::optional<int64_t> group) {
    return make_pipeline_plan(
        {.num_virtual_stages_per_pipeline_rank = 2, .microbatch_group_size_per_virtual_pipeline_stage = group}, 4,
        decoder(8));
  };
  EXPECT_EQ(plan({}).microbatch_group, 0);
  EXPECT_EQ(plan(6).microbatch_group, 6);
  const auto works = [](const PipelinePlan& p, int64_t microbatches) {
    const bool is_said = check_microbatches(p, microbatches).empty();
    bool is_so = true;
    try {
      p.schedule(static_cast<int>(microbatches));
    } catch (const InternalError&) {
      is_so = false;
    }
    EXPECT_EQ(is_said, is_so) << microbatches;
    return is_said;
  };
  for (int64_t m = 1; m <= 24; ++m) {
    EXPECT_EQ(works(plan({}), m), m % 4 == 0) << m;
    EXPECT_EQ(works(plan(6), m), m % 6 == 0 || m % 6 >= 4) << m;
    for (const PipelineOptions& options : {PipelineOptions{},
                                           {.pp_algorithm = "gpipe"},
                                           {.pp_algorithm = "gpipe", .num_virtual_stages_per_pipeline_rank = 2},
                                           {.pp_algorithm = "zero-bubble"},
                                           {.pp_algorithm = "zbv"}}) {
      EXPECT_TRUE(works(make_pipeline_plan(options, 4, decoder(8)), m)) << m;
    }
  }
  EXPECT_EQ(check_microbatches(plan({}), 6).at(0).message(),
            "6 microbatches a step cannot be taken in groups of pipeline_model_parallel_size 4 by interleaved virtual "
            "stages");
  EXPECT_EQ(check_microbatches(plan(6), 8).at(0).remedy(),
            "make global_batch_size a multiple of 6 × micro_batch_size × data-parallel ranks, or leave virtual stages "
            "out");
  EXPECT_EQ(refusals({.num_virtual_stages_per_pipeline_rank = 2, .microbatch_group_size_per_virtual_pipeline_stage = 3},
                     4, 8),
            "microbatch_group_size_per_virtual_pipeline_stage 3 is below pipeline_model_parallel_size 4 / use at least "
            "4, or leave it out");
  EXPECT_EQ(refusals({.microbatch_group_size_per_virtual_pipeline_stage = 4}, 4, 8),
            "microbatch_group_size_per_virtual_pipeline_stage 4 is for interleaved virtual stages, of which there are "
            "none / leave it out, or set num_virtual_stages_per_pipeline_rank");
}

TEST(PipelineOptions, NamesOfMegatronAndPrimusAreRead) {
  PipelineOptions options;
  OptionSet set(options);
  const OptionSource source{OptionLayer::kCommandLine, "command line"};
  const auto give = [&](const char* name, const char* value) {
    Option* option = set.find(name);
    ASSERT_NE(option, nullptr) << name;
    option->set(value, source);
  };
  give("pp-algorithm", "zbv-formatted");
  give("enable_zero_bubble", "true");
  give("zero_bubble_v_schedule", "true");
  give("virtual_pipeline_model_parallel_size", "2");
  give("num-layers-per-virtual-pipeline-stage", "4");
  give("pipeline-model-parallel-layout", "Et|tL");
  give("microbatch-group-size-per-vp-stage", "8");
  give("decoder-first-pipeline-num-layers", "3");
  give("decoder-last-pipeline-num-layers", "0");
  give("account-for-embedding-in-pipeline-split", "true");
  give("account-for-loss-in-pipeline-split", "true");
  EXPECT_EQ(options.pp_algorithm, "zbv-formatted");
  EXPECT_TRUE(options.enable_zero_bubble && options.zero_bubble_v_schedule);
  EXPECT_EQ(options.num_virtual_stages_per_pipeline_rank, 2);
  EXPECT_EQ(options.num_layers_per_virtual_pipeline_stage, 4);
  EXPECT_EQ(options.pipeline_model_parallel_layout, "Et|tL");
  EXPECT_EQ(options.microbatch_group_size_per_virtual_pipeline_stage, 8);
  EXPECT_EQ(options.decoder_first_pipeline_num_layers, 3);
  EXPECT_EQ(options.decoder_last_pipeline_num_layers, 0);
  EXPECT_TRUE(options.account_for_embedding_in_pipeline_split && options.account_for_loss_in_pipeline_split);
  EXPECT_THROW(set.find("num_virtual_stages_per_pipeline_rank")->set("0", source), UserError);
}

}  // namespace
}  // namespace megalith
