// `megalith doctor --types` over the rows of rows.txt: all are well typed, and mistakes that change a distribution are
// found without a number.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <set>

#include "layouts/mistakes.h"
#include "layouts/rows.h"
#include "verify/type_check.h"

namespace megalith {
namespace {

using namespace test;

std::string text_of_findings(const TypeReport& report) {
  std::string text;
  for (const TypeFinding& finding : report.findings) text += "\n" + finding.text();
  return text;
}

void expect_rows_are_well_typed(std::string_view section) {
  for (LayoutRow& row : rows_of(section)) {
    const TypeReport report = check_types(row.layout());
    EXPECT_TRUE(report.is_ok()) << row.text() << text_of_findings(report);
    if (report.axes.empty() || report.axes[0].starts_with("pp")) continue;  // only parameters of several stages
    // Else nothing would have been looked at.
    EXPECT_GE(report.counts.parameters, 2) << row.text();
    EXPECT_GE(report.counts.gradients, report.num_units) << row.text();
  }
}

TEST(Types, OfDenseRowsFit) { expect_rows_are_well_typed("Dense"); }
TEST(Types, OfContextRowsFit) { expect_rows_are_well_typed("Context"); }
TEST(Types, OfPipelineRowsFit) { expect_rows_are_well_typed("Pipeline"); }
TEST(Types, OfExpertRowsFit) { expect_rows_are_well_typed("Experts"); }
TEST(Types, OfEncoderRowsFit) { expect_rows_are_well_typed("Encoders"); }
TEST(Types, OfT5RowsFit) { expect_rows_are_well_typed("T5"); }
TEST(Types, OfFluxRowsFit) { expect_rows_are_well_typed("Flux"); }
TEST(Types, OfAdapterRowsFit) { expect_rows_are_well_typed("Adapters"); }

// The mistakes of hooks that change what ranks hold of a tensor: a sum or a gathering that is left out, made twice or a
// mean, and what a Placement says. The others are of order, index or scale, or of what is done between the passes.
const std::set<std::string> kOfDistributions = {
    "column linear: dx not summed over tp",
    "column linear, sequence parallel: dx not summed",
    "column linear, sequence parallel: own tokens in place of the others'",
    "row linear: y not summed over tp",
    "row linear, sequence parallel: y not summed",
    "row linear: y summed twice",
    "embedding: rows of the other ranks missing",
    "loss: sums of the softmax not summed over tp",
    "loss: dx not summed over tp",
    "norm weights not summed over tp",
    "norm weights summed twice",
    "gradients not summed over dp",
    "one gradient bucket not summed over dp",
    "gradients averaged over dp",
    "distributed optimizer: gradients not summed",
    "distributed optimizer: own parameters in place of the others'",
    "FSDP: gradients not summed",
    "all-gather: gradients of keys not summed",
    "eight bits: a scale of each rank's part of a tensor",
    "modulation, sequence parallel: gradients of a rank's own tokens",
    "pictures, sequence parallel: the loss of a rank's own tokens",
    "norm: every tp replica counted in the gradient norm",
    "norm: every dp replica counted in the gradient norm",
    "norm: slices taken for replicas in the gradient norm",
    "slices of a column linear summed over tp",
    "tied embedding: the gradients of the two ends not summed",
    "tied embedding: counted twice in the gradient norm",
    "the memory's gradient not summed over tp",
    "the memory's gradient not summed and scattered",
    "own memory in place of the others'",
    "positions not summed over the stages of a stack",
    "positions counted in the norm by each stage",
    "positions not summed over the ranks",
    "the vocabulary's table not summed over both stacks",
    "own texts in the places of the others'",
    "only the own slice of the texts' gradient",
    "a mean of the ranks' gradients of a text",
    "all-gather of tokens: own tokens in place of the others'",
    "all-gather of tokens: results of the other experts forgotten",
    "all-gather of tokens: gradients not summed",
    "all-gather of tokens: gradients of the weights not summed",
    "balance of experts: statistics of only this rank's tokens",
    "balance of experts: statistics averaged over the ranks",
    "capacity: own choices in place of the others'",
    "latent attention: gradient of the shared key not summed over tp",
    "latent attention, sequence parallel: gradient of the shared key not summed",
    "experts: gradients not reduced over edp",
    "experts: gradients reduced as those of dense layers",
    "experts: every replica counted in the gradient norm",
    "experts: those of other ranks taken for replicas in the norm",
    "experts: parts of other ranks taken for replicas in the norm",
    "router: weight not summed over cp",
};

// Types see nothing of a scale, nor of an exchange of what is no parameter's or of runs of one flat buffer.
const std::set<std::string> kNotByTypes = {
    "eight bits: a scale of each rank's part of a tensor",
    "modulation, sequence parallel: gradients of a rank's own tokens",
    "capacity: own choices in place of the others'",
    "FSDP: own run of the weights in place of the others'",
};

// Each mistake is printed with the first row that shows it.
void expect_found(const std::vector<Mistake>& mistakes) {
  std::vector<LayoutRow> rows = rows_of("!");
  for (const Mistake& mistake : mistakes) {
    const TypeHooks hooks{.change_groups = mistake.hooks.change_groups, .change_model = mistake.hooks.change_model};
    const std::string found = found_by_types(rows, hooks, mistake.is_of_experts);
    EXPECT_EQ(found.empty(), kNotByTypes.contains(mistake.name)) << mistake.name;
    std::printf("  %s\n    %s\n", mistake.name.c_str(), found.empty() ? "not by types" : found.c_str());
  }
}

TEST(Types, FindMistakesThatChangeADistribution) {
  std::vector<Mistake> mistakes = seeded_mistakes();
  std::erase_if(mistakes, [](const Mistake& mistake) { return !kOfDistributions.contains(mistake.name); });
  ASSERT_EQ(mistakes.size(), kOfDistributions.size());
  expect_found(mistakes);
}

TEST(Types, EndARunThatAsksForThem) {
  std::vector<Mistake> mistakes = seeded_mistakes();
  std::erase_if(mistakes, [](const Mistake& mistake) { return mistake.name != "norm weights not summed over tp"; });
  ASSERT_EQ(mistakes.size(), 1U);
  bool is_seen = false;
  for (LayoutRow& row : rows_of("!")) {
    EXPECT_TRUE(type_errors(row.layout()).empty()) << row.text();
    const auto errors = type_errors(row.layout(), {.change_groups = mistakes[0].hooks.change_groups});
    is_seen |= !errors.empty() && std::string(errors[0].what()).starts_with("check_types: distributions do not fit\ntp");
  }
  EXPECT_TRUE(is_seen);
}

TEST(Types, FindMistakesPlantedAfterTheirCheck) { expect_found(mistakes_for_types()); }

}  // namespace
}  // namespace megalith
