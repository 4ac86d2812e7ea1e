// Packed answers, pairs of them and rated ones, each of two sets, over every kind of layout against one rank; and
// packed rows against rows of one sample each.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "kinds/text/dpo.h"
#include "kinds/text/sft_mix.h"
#include "layouts/rows.h"
#include "support/sft_files.h"
#include "support/temporary_folder.h"

namespace megalith {
namespace {

using namespace test;

constexpr int kSamples[] = {7, 4};  // of two sets
constexpr int64_t kSequence = 16;
constexpr SftLoss kLosses[] = {SftLoss::kNextToken, SftLoss::kDpo, SftLoss::kKto};

std::shared_ptr<SftRows> rows_of_set(size_t set, const SftOptions& options) {
  static const TemporaryFolder folder;
  const bool has_pairs = options.loss == SftLoss::kDpo, has_ratings = options.loss == SftLoss::kKto;
  const std::string prefix =
      folder.path() / fmt::format("{}{}", has_pairs ? "pairs" : has_ratings ? "ratings" : "answers", set);
  if (!std::filesystem::exists(prefix + ".json")) {
    const int longest = options.has_pairs() ? 6 : 10;
    auto sequences = random_sft_sequences((has_pairs ? 2 : 1) * kSamples[set], longest, 37, 4 + set);
    for (size_t i = 0; has_ratings && i < sequences.size(); i += 3) {
      std::ranges::replace(sequences[i].weights, uint8_t{1}, uint8_t{2});  // a bad answer
    }
    write_sft_set(prefix, sequences,
                  has_pairs     ? SftForm::kPairs
                  : has_ratings ? SftForm::kRated
                                : SftForm::kChat);
  }
  const auto stored = std::make_shared<const SftSet>(prefix);
  auto rows = make_whole_sft_rows(stored, {.sft = options}, {.sequence_length = kSequence});
  if (options.has_pairs()) rows->set_reference(random_sft_reference(*stored));
  return rows;
}

// All have the same samples: answers, pairs of them, or rated ones.
std::unique_ptr<BatchSource> source_of(SftLoss loss, bool is_packed) {
  SftOptions options{.enable_packed_sequences = is_packed, .loss = loss};
  std::vector<std::shared_ptr<SftRows>> rows;
  for (const size_t set : {0, 1}) {
    rows.push_back(rows_of_set(set, options));
    options.sets.push_back({.name = fmt::format("{}", set)});
  }
  RowMix mix = mix_of(options, rows, /*key=*/5);
  const auto mixed = std::make_shared<SftMixedRows>(std::move(rows), mix);
  auto source = std::make_unique<BatchSource>(mixed, Order(std::move(mix), mixed->name()));
  if (loss == SftLoss::kKto) {
    source->then([](Batch& batch) {
      batch.set(BatchField::of_rows(kKlEstimate, at::full({batch.num_rows()}, 0.4, at::kFloat)));
    });
  }
  return source;
}

// The row's run, on one rank or all, reading packs.
struct PackedRun {
  PackedRun(const std::string& words, SftLoss loss, bool is_packed = true)
      : row(words), source(source_of(loss, is_packed)) {
    for (Resolved* run : {&row.layout(), &row.one_rank()}) {
      run->config.data.sft.sft_data_path = {"made", "more"};
      run->config.data.sft.sft_set_names = {"made", "more"};  // their losses are compared, too
      run->config.data.sft.loss = loss;
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
  for (const SftLoss loss : kLosses) {
    for (LayoutRow& listed : rows_of("Packs")) {
      PackedRun run(listed.text(), loss);
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
  for (const SftLoss loss : kLosses) {
    PackedRun packed("untied", loss), apart("untied", loss, /*is_packed=*/false);
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
      {"samples see those before them", [](Batch& batch) { batch.at(field::kDocumentIds).zero_(); }},
      {"rows count in the other set's loss", [](Batch& batch) { batch.set(field::kSetIds, 1 - batch.at(field::kSetIds)); }}};
  PackedRun apart("untied", SftLoss::kNextToken, /*is_packed=*/false);
  apart.read_all_in_rows_of_one();
  for (const auto& [name, change] : mistakes) {
    PackedRun packed("untied", SftLoss::kNextToken);
    packed.read_all_in_rows_of_one();
    packed.hooks.change_batches = [&](std::vector<Batch>& batches, const Groups&) {
      for (Batch& batch : batches) change(batch);
    };
    EXPECT_NE(difference(packed, apart), "") << name;
  }
}

}  // namespace
}  // namespace megalith
