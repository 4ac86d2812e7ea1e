// Packed answers, and pairs of them, over every kind of layout against a single rank; and packed rows against rows of
// one sample each.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "layouts/rows.h"
#include "support/sft_files.h"
#include "support/temporary_folder.h"

namespace megalith {
namespace {

using namespace test;

constexpr int kSamples = 11;
constexpr int64_t kSequence = 16;

// All have the same samples.
std::unique_ptr<BatchSource> source_of(bool has_pairs, bool is_packed) {
  static const TemporaryFolder folder;
  const std::string prefix = folder.path() / (has_pairs ? "pairs" : "answers");
  if (!std::filesystem::exists(prefix + ".json")) {
    write_sft_set(prefix, random_sft_sequences((has_pairs ? 2 : 1) * kSamples, has_pairs ? 6 : 10, 37, 4),
                  has_pairs ? SftForm::kPairs : SftForm::kChat);
  }
  const auto set = std::make_shared<const SftSet>(prefix);
  const SftOptions options{.enable_packed_sequences = is_packed,
                           .loss = has_pairs ? SftLoss::kDpo : SftLoss::kNextToken};
  const auto rows = make_whole_sft_rows(set, {.sft = options}, {.sequence_length = kSequence});
  if (has_pairs) rows->set_reference(random_sft_reference(*set));
  return std::make_unique<BatchSource>(rows, Order(RowOrder::kRepeated, rows->num_rows(), rows->name()));
}

// The row's run, on one rank or all, reading packs.
struct PackedRun {
  PackedRun(const std::string& words, bool has_pairs, bool is_packed = true)
      : row(words), source(source_of(has_pairs, is_packed)) {
    for (Resolved* run : {&row.layout(), &row.one_rank()}) {
      run->config.data.sft.sft_data_path = {"made"};
      if (has_pairs) run->config.data.sft.loss = SftLoss::kDpo;
    }
    hooks.read = [this](int step) {
      const int64_t rows = row.layout().derived.global_batch_size;
      return source->read({.consumed_samples = step * rows, .micro_batch_size = rows, .dp_rank = 0, .dp_size = 1});
    };
  }
  // Each sample once in a step.
  void read_all_in_rows_of_one() {
    Derived& d = row.one_rank().derived;
    d.global_batch_size = row.layout().derived.global_batch_size = d.num_microbatches = source->num_samples();
    d.micro_batch_size = 1;
  }
  RankOutcome one_rank() const { return run_as_threads(row.one_rank(), hooks)[0]; }

  mutable LayoutRow row;
  std::unique_ptr<BatchSource> source;
  CheckHooks hooks;
};

TEST(SftRows, TrainAsOneRank) {
  for (const bool has_pairs : {false, true}) {
    for (LayoutRow& listed : rows_of("Packs")) {
      PackedRun run(listed.text(), has_pairs);
      const RankOutcome expected = run.one_rank();
      const Comparison found =
          compare_with_one_rank(run_as_threads(run.row.layout(), run.hooks), 0, expected, {.relative = 1e-9});
      EXPECT_EQ(found.first_failure, "") << listed.text();
    }
  }
}

std::string difference(const PackedRun& packed, const PackedRun& apart) {
  return compare_with_one_rank({{packed.one_rank()}}, 0, apart.one_rank(), {.relative = 1e-9}).first_failure;
}

TEST(SftRows, PackedAreAsRowsOfOneSample) {
  for (const bool has_pairs : {false, true}) {
    PackedRun packed("untied", has_pairs), apart("untied", has_pairs, /*is_packed=*/false);
    packed.read_all_in_rows_of_one();
    apart.read_all_in_rows_of_one();
    EXPECT_LT(packed.source->num_samples(), apart.source->num_samples());
    EXPECT_EQ(difference(packed, apart), "");
  }
}

// Or the comparison could not fail.
TEST(SftRows, MistakesOfPacksAreSeen) {
  const std::pair<const char*, std::function<void(Batch&)>> mistakes[] = {
      {"the mask is one token late",
       [](Batch& batch) { batch.set(field::kLossWeights, batch.at(field::kLossWeights).roll(1, 1)); }},
      {"samples see those before them", [](Batch& batch) { batch.at(field::kDocumentIds).zero_(); }}};
  PackedRun apart("untied", false, /*is_packed=*/false);
  apart.read_all_in_rows_of_one();
  for (const auto& [name, change] : mistakes) {
    PackedRun packed("untied", false);
    packed.read_all_in_rows_of_one();
    packed.hooks.change_batches = [&](std::vector<Batch>& batches, const Groups&) {
      for (Batch& batch : batches) change(batch);
    };
    EXPECT_NE(difference(packed, apart), "") << name;
  }
}

}  // namespace
}  // namespace megalith
