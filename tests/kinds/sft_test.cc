// Instruction data after encoding: packs, the tensors of a sequence, the order of passes, prepared files.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "data/balance.h"
#include "data/data_fixture.h"
#include "kinds/text/sft_batches.h"
#include "kinds/text/sft_mix.h"
#include "kinds/text/sft_path.h"
#include "kinds/text/sft_row.h"
#include "kinds/text/sft_rows.h"
#include "nn/set_losses.h"
#include "planner/pipeline_simulator.h"
#include "support/sft_files.h"
#include "support/temporary_folder.h"
#include "tokenizer/chat_template.h"

namespace megalith {
namespace {

using test::random_sft_sequences;
using test::write_sft_set;

using Packs = std::vector<std::vector<SftPiece>>;

Packs packs_of(const std::vector<int64_t>& lengths, int64_t seq_length, bool splits, const SftOptions& options) {
  const SftPacks packs(
      0, std::ssize(lengths), [&](int64_t i) { return lengths[static_cast<size_t>(i)]; }, seq_length, splits, options);
  Packs all;
  for (int64_t i = 0; i < packs.num_packs(); ++i) all.push_back(packs.pack(i));
  return all;
}

std::vector<int64_t> random_lengths(size_t count, int64_t longest) {
  std::vector<int64_t> lengths;
  const uint64_t key = make_philox_key(2, "lengths");
  for (size_t i = 0; i < count; ++i) {
    lengths.push_back(1 + static_cast<int64_t>(uniform_at(key, i) * static_cast<double>(longest)));
  }
  return lengths;
}

TEST(SftPacks, FirstFitDecreasingIsThatOfAPlainSearch) {
  SftOptions options{.enable_packed_sequences = true, .sft_packing = SftPacking::kFirstFitDecreasing};
  for (const std::optional<int64_t> most : {std::optional<int64_t>(), std::optional<int64_t>(3)}) {
    options.max_samples_per_sequence = most;
    const std::vector<int64_t> lengths = random_lengths(300, 40);
    std::vector<int64_t> order(lengths.size());
    std::iota(order.begin(), order.end(), int64_t{0});
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      return lengths[static_cast<size_t>(a)] > lengths[static_cast<size_t>(b)];
    });
    Packs expected;
    for (const int64_t sample : order) {
      const int64_t length = lengths[static_cast<size_t>(sample)];
      const auto has_room = [&](const std::vector<SftPiece>& pack) {
        int64_t used = 0;
        for (const SftPiece& piece : pack) used += piece.length;
        return used + length <= 64 && std::ssize(pack) < most.value_or(INT64_MAX);
      };
      auto found = std::ranges::find_if(expected, has_room);
      if (found == expected.end()) found = expected.insert(expected.end(), std::vector<SftPiece>());
      found->push_back({sample, 0, length});
    }
    EXPECT_EQ(packs_of(lengths, 64, false, options), expected);
  }
}

TEST(SftPacks, TextsFillSequencesToTheLastToken) {
  const Packs packs = packs_of({5, 9, 1, 2}, 6, true, {.enable_packed_sequences = true});
  EXPECT_EQ(packs, (Packs{{{0, 0, 5}, {1, 0, 1}}, {{1, 1, 6}}, {{1, 7, 2}, {2, 0, 1}, {3, 0, 2}}}));
}

class SftData : public DataTest {
 protected:
  std::shared_ptr<const SftSet> open(const std::vector<test::SftSequence>& sequences, SftForm form) {
    return std::make_shared<const SftSet>(write_sft_set(path("set"), sequences, form));
  }
};

// Labels are the next tokens of the same sample, weights those of the labels: a mask that is off by one, or a label
// that crosses into the next sample, is another table.
TEST_F(SftData, ARowIsWhatItsSamplesSay) {
  const auto set = open({{{11, 12, 13, 14}, {0, 0, 1, 1}}, {{21, 22}, {0, 1}}}, SftForm::kChat);
  const std::vector<SftPiece> pack = {{0, 0, 4}, {1, 0, 2}};
  const Batch batch = make_batch(1, {.sequence_length = 8, .reset_attention_mask = true});
  fill_sft_row(*set, pack, batch, 0);
  const auto is = [&](std::string_view name, const at::Tensor& row) { return at::equal(batch.at(name)[0], row); };
  EXPECT_TRUE(is(field::kTokens, at::tensor({11, 12, 13, 14, 21, 22, 0, 0}, at::kLong)));
  EXPECT_TRUE(is(field::kLabels, at::tensor({12, 13, 14, 0, 22, 0, 0, 0}, at::kLong)));
  EXPECT_TRUE(is(field::kLossWeights, at::tensor({0, 1, 1, 0, 1, 0, 0, 0}, at::kFloat)));
  EXPECT_TRUE(is(field::kPositionIds, at::tensor({0, 1, 2, 3, 0, 1, 0, 1}, at::kLong)));
  EXPECT_TRUE(is(field::kDocumentIds, at::tensor({0, 0, 0, 0, 1, 1, 2, 2}, at::kInt)));
  // A piece that is cut off predicts what follows it.
  const std::vector<SftPiece> cut = {{0, 0, 2}};
  const Batch one_text = make_batch(1, {.sequence_length = 2});
  fill_sft_row(*set, cut, one_text, 0);
  EXPECT_EQ(one_text.at(field::kLabels)[0][1].item<int64_t>(), 13);
  EXPECT_EQ(one_text.at(field::kLossWeights)[0][1].item<float>(), 1);
}

TEST_F(SftData, PairsAreTwoDocumentsAndAreCutTogether) {
  const auto set = open({{{1, 2, 3, 4}, {0, 0, 1, 1}}, {{1, 2, 9, 9, 9, 9, 9, 9}, {0, 0, 1, 1, 1, 1, 1, 1}}},
                        SftForm::kPairs);
  EXPECT_EQ(set->num_samples(), 1);
  EXPECT_EQ(set->length(0), 12);
  const auto parts = [&](int64_t length) {
    const std::vector<SftPiece> pack = {{0, 0, length}};
    return sequences_of_pack(*set, pack);
  };
  EXPECT_EQ(parts(12), (std::vector<SftPiece>{{0, 0, 4}, {1, 0, 8}}));
  EXPECT_EQ(parts(10), (std::vector<SftPiece>{{0, 0, 4}, {1, 0, 6}}));
  EXPECT_EQ(parts(6), (std::vector<SftPiece>{{0, 0, 3}, {1, 0, 3}}));
  const auto rows = make_whole_sft_rows(set, {.sft = {.loss = SftLoss::kDpo}}, {.sequence_length = 14});
  rows->set_reference(test::random_sft_reference(*set));
  const Batch batch = rows->read(std::vector<int64_t>{0});
  EXPECT_EQ(batch.at(field::kNumPairs)[0].item<int64_t>(), 1);
  EXPECT_TRUE(at::equal(batch.at(field::kDocumentIds)[0],
                        at::tensor({0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2}, at::kInt)));
  // The number at a token is its label's.
  std::vector<float> expected(3);
  SftReference(sft_reference_prefix(*set, "random"), *set).read(0, 1, 3, expected.data());
  const at::Tensor given = batch.at(field::kReferenceLogProbs)[0];
  for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(given[i].item<float>(), expected[static_cast<size_t>(i)]);
  EXPECT_EQ(given[3].item<float>(), 0);
}

TEST_F(SftData, ARatedAnswerIsReadWithItsQuestionAndTheAnswerBefore) {
  const auto set =
      open({{{1, 2, 3, 4}, {0, 0, 1, 1}}, {{5, 6, 7}, {0, 2, 2}}, {{8, 9, 9, 9}, {0, 1, 1, 0}}}, SftForm::kRated);
  ASSERT_EQ(set->num_samples(), 3);
  EXPECT_TRUE(set->is_bad(1) && !set->is_bad(0) && !set->is_bad(2));
  // Each sample's own sequence, and its question with the answer of the one before; before the first is the last.
  const std::vector<std::vector<int64_t>> tokens = {{1, 2, 3, 4}, {1, 2, 9, 9, 9}, {5, 6, 7},
                                                    {5, 3, 4},    {8, 9, 9, 9},    {8, 6, 7}};
  const std::vector<std::vector<uint8_t>> weights = {{0, 0, 1, 1}, {0, 0, 1, 1, 0}, {0, 1, 1},
                                                     {0, 1, 1},    {0, 1, 1, 0},    {0, 1, 1}};
  for (size_t i = 0; i < tokens.size(); ++i) {
    for (size_t offset = 0; offset < tokens[i].size(); ++offset) {
      const size_t count = tokens[i].size() - offset;
      std::vector<int64_t> read(count);
      std::vector<uint8_t> counts(count);
      set->read(static_cast<int64_t>(i), static_cast<int64_t>(offset), static_cast<int64_t>(count), read.data(),
                counts.data());
      EXPECT_TRUE(std::equal(read.begin(), read.end(), tokens[i].begin() + static_cast<std::ptrdiff_t>(offset))) << i;
      EXPECT_TRUE(std::equal(counts.begin(), counts.end(), weights[i].begin() + static_cast<std::ptrdiff_t>(offset)))
          << i;
    }
  }
  EXPECT_EQ(set->length(0), 9);
  EXPECT_EQ(set->longest(), 9);
  const auto rows = make_whole_sft_rows(set, {.sft = {.loss = SftLoss::kKto}}, {.sequence_length = 9});
  const Batch batch = rows->read(std::vector<int64_t>{0, 1});
  EXPECT_TRUE(at::equal(batch.at(kRatingSigns), at::tensor({1, 0, 0, 0, 0, -1, 0, 0, 0, 0}, at::kFloat).view({2, 5})));
  EXPECT_THROW(open({{{1, 2}, {0, 1}}, {{3, 4}, {0, 0}}}, SftForm::kRated), UserError) << "no answer";
}

TEST_F(SftData, PassesAreNewOrdersThatKnowOfNoLayout) {
  const auto set = open(random_sft_sequences(11, 6, 30, 1), SftForm::kChat);
  Logger log({.level = LogLevel::kSilent});
  DataOptions options;
  options.split = "1,0,0";
  options.sft.sft_data_path = {set->prefix()};
  const auto sets_of = [&](uint32_t seed) {
    return make_sft_sets(options, {.sequence_length = 6, .seed = seed, .num_samples = {11, 0, 0}}, log);
  };
  const DataSets sets = sets_of(1), same = sets_of(1), of_other = sets_of(2);
  const BatchSource &one = *sets.train, &again = *same.train, &other = *of_other.train;
  const auto order = [&](const BatchSource& from, int64_t pass) {
    std::vector<int64_t> samples;
    for (int64_t i = 0; i < 11; ++i) {
      const at::Tensor tokens = from.read({.consumed_samples = 11 * pass + i}).at(field::kTokens);
      for (int64_t row = 0; row < 11; ++row) {
        if (at::equal(from.rows().read(std::vector{row}).at(field::kTokens), tokens)) samples.push_back(row);
      }
    }
    return samples;
  };
  const std::vector<int64_t> first = order(one, 0), second = order(one, 1);
  EXPECT_NE(first, second);
  EXPECT_NE(order(other, 0), first);
  EXPECT_EQ(order(again, 1), second) << "a run that begins there replays nothing";
  std::vector<int64_t> sorted = second;
  std::ranges::sort(sorted);
  std::vector<int64_t> all(11);
  std::iota(all.begin(), all.end(), int64_t{0});
  EXPECT_EQ(sorted, all);
  options.sft.sft_shuffle = false;
  const DataSets in_order = sets_of(1);
  EXPECT_EQ(order(*in_order.train, 0), all);
  EXPECT_EQ(order(*in_order.train, 1), all);
  // Two ranks with a row each read what one reads with two.
  const Batch whole = one.read({.consumed_samples = 4, .micro_batch_size = 2, .dp_rank = 0, .dp_size = 1});
  for (int rank = 0; rank < 2; ++rank) {
    const Batch part = one.read({.consumed_samples = 4, .micro_batch_size = 1, .dp_rank = rank, .dp_size = 2});
    EXPECT_TRUE(at::equal(part.at(field::kTokens)[0], whole.at(field::kTokens)[rank]));
  }
}

class SftMixture : public SftData {
 protected:
  // Three sets, whose rows' first tokens are 101, 102, …; 201, …; 301, …
  void SetUp() override {
    SftData::SetUp();
    const int sizes[] = {12, 6, 3};
    for (int32_t set = 0; set < 3; ++set) {
      std::vector<test::SftSequence> sequences;
      for (int32_t i = 1; i <= sizes[set]; ++i) sequences.push_back({{100 * (set + 1) + i, 7}, {0, 1}});
      const std::string name(1, static_cast<char>('a' + set));
      options.sft.sft_data_path.push_back(write_sft_set(path(name), sequences, SftForm::kChat));
      options.sft.sets.push_back({.name = name, .weight = set == 0 ? 2 : 1});
    }
    options.split = "1,0,0";
  }
  DataSets open() {
    return make_sft_sets(options, {.sequence_length = 4, .seed = 3, .num_samples = {9, 9, 0}}, log);
  }
  // Rows of a pass by set.
  std::vector<int64_t> counts() {
    const DataSets sets = open();
    const auto rows = static_cast<int64_t>(sets.train->data_size()->samples.value());
    EXPECT_EQ(count_sft_sequences(options, 4), rows);
    const Batch batch = sets.train->read({.consumed_samples = 0, .micro_batch_size = rows});
    std::vector<int64_t> found(3);
    for (int64_t row = 0; row < rows; ++row) {
      const auto set = batch.at(field::kSetIds)[row].item<int64_t>();
      EXPECT_EQ(batch.at(field::kTokens)[row][0].item<int64_t>() / 100, set + 1);
      ++found.at(static_cast<size_t>(set));
    }
    return found;
  }

  DataOptions options;
  Logger log{{.level = LogLevel::kSilent}};
};

TEST_F(SftMixture, SetsComeInTheirShares) {
  using Counts = std::vector<int64_t>;
  EXPECT_EQ(counts(), (Counts{6, 3, 3})) << "weights, until the first set was read whole";
  options.sft.sft_mix = SftMix::kInterleaveOver;
  EXPECT_EQ(counts(), (Counts{12, 6, 6}));
  for (TrainingSet& set : options.sft.sets) set.weight.reset();
  EXPECT_EQ(counts(), (Counts{12, 12, 12})) << "equal shares";
  options.sft.sft_mix = SftMix::kAuto;
  EXPECT_EQ(counts(), (Counts{12, 6, 3})) << "only names";
  options.sft.sft_mix_temperature = 2;
  EXPECT_EQ(counts(), (Counts{6, 4, 3})) << "square roots of 12, 6 and 3";
  // Shares are of samples: a sequence has two of them.
  options.sft = {.sft_data_path = options.sft.sft_data_path, .sets = options.sft.sets, .enable_packed_sequences = true};
  const double weights[] = {4, 2, 3};
  for (size_t i = 0; i < 3; ++i) options.sft.sets[i].weight = weights[i];
  EXPECT_EQ(counts(), (Counts{2, 1, 2}));
  EXPECT_EQ(open().train->data_size()->documents, 9) << "c has a sequence of one sample";
}

TEST_F(SftMixture, BatchesDependOnThePlaceOnly) {
  const DataSets sets = open(), same = open();
  const Batch whole = sets.train->read({.consumed_samples = 22, .micro_batch_size = 4});
  for (int rank = 0; rank < 2; ++rank) {
    const Batch part = same.train->read({.consumed_samples = 22, .micro_batch_size = 2, .dp_rank = rank, .dp_size = 2});
    for (const std::string_view name : {field::kTokens, field::kLossWeights, field::kSampleIndex, field::kSetIds}) {
      EXPECT_TRUE(at::equal(part.at(name), whole.at(name).narrow(0, 2 * rank, 2))) << name;
    }
  }
}

TEST_F(SftMixture, HeldOutRowsAreOfAllSetsAndTheSameInEachPass) {
  options.split = "2,1,0";
  const DataSets sets = open();
  EXPECT_EQ(sets.valid->num_samples(), 4 + 2 + 1);
  const auto pass = [&](int64_t number) {
    return sets.valid->read({.consumed_samples = 7 * number, .micro_batch_size = 7}).at(field::kTokens);
  };
  EXPECT_TRUE(at::equal(pass(0), pass(1)));
  EXPECT_EQ(std::get<0>(at::_unique2(pass(0).select(1, 0))).numel(), 7);
}

TEST(SftOptions, PathsAreSetsWithNamesAndWeightsWhereAskedFor) {
  SftOptions options{.sft_data_path = {"data/code.jsonl.gz[:100]", "org/math[train]"}};
  EXPECT_TRUE(options.training_sets().empty());
  options.sft_data_path = {"0.7", "data/code.jsonl.gz[:100]", "3", "org/math[train]"};
  const std::vector<TrainingSet> sets = options.training_sets();
  ASSERT_EQ(sets.size(), 2u);
  EXPECT_EQ(sets[0].name + " " + sets[1].name, "code math");
  EXPECT_EQ(sets[0].path, "data/code.jsonl.gz[:100]");
  EXPECT_EQ(sets[0].weight, 0.7);
  EXPECT_EQ(options.training_paths(), (std::vector<std::string>{"data/code.jsonl.gz[:100]", "org/math[train]"}));
  options.sft_data_path = {"1", "a/train.jsonl", "1", "b/train.jsonl"};
  EXPECT_EQ(options.training_sets()[1].name, "2") << "two of one name";
}

TEST_F(SftData, PacksAreKeptForTheNextStartAndCheckedWhenRead) {
  const auto set = open(random_sft_sequences(40, 9, 30, 3), SftForm::kChat);
  DataOptions options;
  options.data_cache_path = path("cache");
  options.split = "1,0,0";
  options.sft = {.sft_data_path = {set->prefix()}, .enable_packed_sequences = true};
  Logger log({.level = LogLevel::kSilent});
  const auto rows_of_a_start = [&](int64_t sequence_length) {
    const DataSets sets = make_sft_sets(options, {.sequence_length = sequence_length, .num_samples = {4, 0, 0}}, log);
    const auto& packs = dynamic_cast<const SftRows&>(sets.train->rows());
    Packs rows;
    for (int64_t i = 0; i < packs.num_rows(); ++i) rows.push_back(packs.sequences(i));
    EXPECT_EQ(sets.train->data_size()->documents, 40);
    return rows;
  };
  const auto files = [&] {
    std::vector<std::pair<std::filesystem::path, std::filesystem::file_time_type>> found;
    for (const auto& entry : std::filesystem::directory_iterator(path("cache"))) {
      if (entry.path().extension() == ".npy") found.emplace_back(entry.path(), entry.last_write_time());
    }
    std::ranges::sort(found);
    return found;
  };
  const Packs first = rows_of_a_start(16);
  const auto written = files();
  EXPECT_EQ(written.size(), 3u);
  EXPECT_EQ(rows_of_a_start(16), first);
  EXPECT_EQ(files(), written) << "the second start writes nothing";
  EXPECT_NE(rows_of_a_start(17), first);
  EXPECT_EQ(files().size(), 6u);
  // A start reads the files it finds: a piece past the end of its sample is noticed.
  const auto& damaged = std::ranges::find_if(written, [](const auto& file) {
                          return file.first.string().find("piece_index") != std::string::npos;
                        })->first;
  std::vector<int64_t> pieces(3 * static_cast<size_t>(IndexArray::load_npy(damaged).rows()), 8);
  IndexArray::of(std::move(pieces), 3).save_npy(damaged);
  EXPECT_NE(message_of([&] { rows_of_a_start(16); }).find("index of packs is damaged"), std::string::npos);
}

TEST_F(SftData, FilesThatDoNotBelongTogetherAreRefused) {
  const auto sequences = random_sft_sequences(4, 6, 30, 1);
  write_sft_set(path("set"), sequences, SftForm::kChat);
  write_sft_set(path("other"), random_sft_sequences(4, 6, 30, 2), SftForm::kChat);
  for (const char* ending : {"_mask.idx", "_mask.bin", ".json"}) {
    write_sft_set(path("set"), sequences, SftForm::kChat);
    std::filesystem::copy_file(path(std::string("other") + ending), path(std::string("set") + ending),
                               std::filesystem::copy_options::overwrite_existing);
    if (std::string_view(ending) == "_mask.bin") std::filesystem::resize_file(path("set_mask.bin"), 3);
    if (std::string_view(ending) == ".json") write_file_atomic(path("set.json"), R"({"form": 4})");
    EXPECT_NE(message_of([&] { SftSet set(path("set")); }), "no error") << ending;
  }
}

// ---- balance_sequences ----

TEST(BalancedShares, DealEverySampleOnceAndEvenly) {
  const std::vector<int64_t> lengths = random_lengths(48, 1000);
  const std::vector<double> work(lengths.begin(), lengths.end());
  for (const int64_t ranks : {1, 2, 3, 8}) {
    for (const int64_t micro : {1, 2}) {
      std::vector<int64_t> shares = balanced_shares(work, ranks, micro);
      std::vector<double> sums(static_cast<size_t>(ranks), 0);
      for (size_t i = 0; i < shares.size(); ++i) {
        sums[i * static_cast<size_t>(ranks) / shares.size()] += work[static_cast<size_t>(shares[i])];
      }
      const auto [least, most] = std::ranges::minmax(sums);
      EXPECT_LE(most - least, 0.02 * most * static_cast<double>(ranks)) << ranks << " ranks, " << micro;
      std::ranges::sort(shares);
      std::vector<int64_t> all(work.size());
      std::iota(all.begin(), all.end(), int64_t{0});
      EXPECT_EQ(shares, all);
    }
  }
}

TEST(BalancedShares, CountPairsUnderTheZigzag) {
  // Two documents of 4 and a padding of 8 in chunks of 4: rank 0 has the first and the last one.
  EXPECT_EQ(pairs_of_context_ranks(std::vector<int64_t>{4, 4}, 16, 2), (std::vector<double>{10 + 26, 10 + 10}));
  EXPECT_EQ(pairs_of_context_ranks(std::vector<int64_t>{16}, 16, 1), (std::vector<double>{136}));
  // One long document and a short one: the long one's end, which sees most, belongs with the sequence's beginning.
  EXPECT_EQ(balanced_order(std::vector<int64_t>{40, 8}, 48), (std::vector<size_t>{1, 0}));
}

// 64 sequences a step of Llama 3.1 8B on 128 GPUs: 8 data-parallel ranks, each a pipeline of 4 stages of 4
// context-parallel ranks.
class LongMix : public ::testing::Test {
 protected:
  static constexpr int64_t kLength = 131072, kRanks = 8, kContext = 4, kStep = 64, kStages = 4;

  // Log-normal, up to the sequence.
  static std::vector<int64_t> mixed_lengths(size_t count) {
    const uint64_t key = make_philox_key(5, "mix");
    std::vector<int64_t> lengths;
    for (size_t i = 0; lengths.size() < count; i += 2) {
      const double angle = 2 * M_PI * uniform_at(key, i + 1);
      const double normal = std::sqrt(-2 * std::log(1 - uniform_at(key, i))) * std::cos(angle);
      const double length = 8000 * std::exp(1.3 * normal);
      if (length >= 16 && length <= kLength) lengths.push_back(static_cast<int64_t>(length));
    }
    return lengths;
  }

  struct Costs {
    double counted = 0, counted_apart = 0, simulated = 0;  // pairs; pairs; full sequences' attention
  };

  // A step's sequences, by rank, then microbatch; each is its context ranks' pairs.
  static void add_step(const std::vector<std::vector<double>>& step, Costs& costs) {
    constexpr size_t kMicrobatches = kStep / kRanks;
    std::vector<double> slowest(kMicrobatches, 0);
    double longest = 0, longest_simulated = 0;
    for (size_t rank = 0; rank < kRanks; ++rank) {
      double sum = 0;
      // The other products of a token cost as much as attention to 0.41 of a full sequence's pairs.
      PipelineCosts pipeline{.stages = std::vector<StageTimes>(kStages, {1, 1, 1}), .microbatches = {}};
      for (size_t m = 0; m < kMicrobatches; ++m) {
        const double most = std::ranges::max(step[rank * kMicrobatches + m]);
        slowest[m] = std::max(slowest[m], most);
        sum += most;
        pipeline.microbatches.push_back(0.41 + most * kContext * 2 / (double{kLength} * kLength));
      }
      longest = std::max(longest, sum);
      const PipelineShape shape{.num_ranks = kStages, .num_microbatches = kMicrobatches};
      const auto schedule = with_communication(make_pipeline_schedule(PipelineAlgorithm::k1f1b, shape));
      longest_simulated = std::max(longest_simulated, simulate_pipeline(schedule, pipeline).makespan);
    }
    costs.counted += std::accumulate(slowest.begin(), slowest.end(), 0.0);
    costs.counted_apart += longest;
    costs.simulated += longest_simulated;
  }

  static Costs costs_of(bool is_balanced) {
    const std::vector<int64_t> lengths = mixed_lengths(6000);
    const SftOptions options{.enable_packed_sequences = true, .balance_sequences = is_balanced};
    const Packs packs = packs_of(lengths, kLength, false, options);
    std::vector<std::vector<double>> pairs;
    std::vector<double> work;
    for (const std::vector<SftPiece>& pack : packs) {
      std::vector<int64_t> documents;
      for (const SftPiece& piece : pack) documents.push_back(piece.length);
      pairs.push_back(pairs_of_context_ranks(documents, kLength, kContext));
      work.push_back(std::accumulate(pairs.back().begin(), pairs.back().end(), 0.0));
    }
    Costs costs;
    for (size_t first = 0; first + kStep <= pairs.size(); first += kStep) {
      std::vector<std::vector<double>> step;
      const auto shares = balanced_shares(std::span(work).subspan(first, kStep), kRanks, 1);
      for (size_t i = 0; i < kStep; ++i) {
        // By places microbatches come one after another, each with all ranks.
        const size_t by_place = i % (kStep / kRanks) * kRanks + i / (kStep / kRanks);
        step.push_back(pairs[first + (is_balanced ? static_cast<size_t>(shares[i]) : by_place)]);
      }
      add_step(step, costs);
    }
    return costs;
  }
};

TEST_F(LongMix, BalancedSequencesWaitLess) {
  const Costs by_place = costs_of(false), balanced = costs_of(true);
  // Ranks that meet in every microbatch, and ranks that meet at its end.
  EXPECT_GT(by_place.counted / balanced.counted, 1.3);
  EXPECT_GT(by_place.counted_apart / balanced.counted_apart, 1.3);
  EXPECT_GT(by_place.simulated / balanced.simulated, 1.3);
}

TEST_F(SftData, BalancedStepsHaveTheRowsOfTheOrder) {
  const auto set = open(random_sft_sequences(60, 14, 30, 3), SftForm::kChat);
  DataOptions options;
  options.data_cache_path = path("cache");
  options.split = "1,0,0";
  options.sft = {.sft_data_path = {set->prefix()}, .enable_packed_sequences = true, .balance_sequences = true};
  Logger log({.level = LogLevel::kSilent});
  const DataSets sets = make_sft_sets(options, {.sequence_length = 16, .num_samples = {16, 0, 0}}, log);
  const BatchSource& train = *sets.train;
  const auto rows_of = [&](int64_t ranks, int64_t first) {
    std::vector<PlacedRow> rows;
    double slowest = 0;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      double sum = 0;
      for (int64_t place = first; place < first + 8; place += ranks) {
        for (const PlacedRow& row : train.placed_rows({place, 1, rank, ranks, first, 8})) {
          rows.push_back(row);
          sum += train.rows().work(row.row);
        }
      }
      slowest = std::max(slowest, sum);
    }
    std::ranges::sort(rows, {}, &PlacedRow::place);
    return std::pair(rows, slowest);
  };
  for (const int64_t first : {0, 8}) {
    const std::vector<PlacedRow> plain = train.placed_rows({.consumed_samples = first, .micro_batch_size = 8});
    const auto [all, of_one] = rows_of(1, first);
    for (const int64_t ranks : {1, 2, 4}) {
      const auto [rows, slowest] = rows_of(ranks, first);
      EXPECT_EQ(rows, plain);
      EXPECT_LT(slowest, 1.25 * of_one / static_cast<double>(ranks));
    }
  }
  // A row's work is the pairs of its documents.
  const Batch batch = train.rows().read(std::vector<int64_t>{0});
  const at::Tensor documents = batch.at(field::kDocumentIds)[0];
  const at::Tensor sees = documents.unsqueeze(0).eq(documents.unsqueeze(1)).tril();
  EXPECT_EQ(train.rows().work(0), sees.sum().item<double>());
}

TEST(SftRows, FormsAreFoundByTheKeys) {
  const auto form = [](const char* text) { return sft_form_of(parse_ordered_json(text, "row"), std::nullopt, "row"); };
  EXPECT_EQ(form(R"({"text": "a"})"), SftForm::kText);
  EXPECT_EQ(form(R"({"question": "a", "answer": "b", "text": "c"})"), SftForm::kAlpaca);
  EXPECT_EQ(form(R"({"prompt": "a", "completion": "b"})"), SftForm::kPrompt);
  EXPECT_EQ(form(R"({"conversations": [], "instruction": null, "output": "b"})"), SftForm::kChat);
  EXPECT_EQ(form(R"({"prompt": "a", "chosen": "b", "rejected": "c", "messages": []})"), SftForm::kPairs);
}

TEST(SftRows, KeysAreRenamedAndSystemsLeftOutBeforeRowsAreRead) {
  SftOptions options;
  options.sft_rename_keys = {"talk=messages", "message.speaker=role", "message.learn=train"};
  options.sft_drop_system = true;
  const OrderedJson row = parse_ordered_json(R"({"talk": [{"speaker": "system", "content": "s"},
      {"speaker": "user", "content": "q"}, {"speaker": "assistant", "content": "a", "learn": false},
      {"speaker": "user", "content": "r"}, {"speaker": "assistant", "content": "b", "learn": true}]})", "row");
  const SftRow read = read_sft_row(row, options, "row");
  EXPECT_EQ(read.form, SftForm::kChat);
  EXPECT_EQ(read.chats.at(0).list.size(), 4u);
  EXPECT_EQ(read.chats[0].list[0], (OrderedJson{{"role", "user"}, {"content", "q"}}));
  EXPECT_EQ(read.chats[0].counts, (std::vector<bool>{false, false, false, true}));
  options.sft_rename_keys = {"b=a", "talk="};
  EXPECT_THROW(read_sft_row(row, options, "row"), UserError);
  options.sft_rename_keys = {"text=talk"};
  EXPECT_THROW(read_sft_row(parse_ordered_json(R"({"text": "a", "talk": "b"})", "row"), options, "row"), UserError);
}

SftRow row_of(const char* text, const SftOptions& options = {}) {
  return read_sft_row(parse_ordered_json(text, "row"), options, "row");
}

TEST(SftRows, KeysThatArePassedOverAreReadNowhere) {
  const char* const rated = R"({"prompt": "q", "completion": "a", "label": 0, "kto_tag": true})";
  EXPECT_TRUE(row_of(R"({"prompt": "q", "completion": "a", "label": 0})").is_bad);
  EXPECT_FALSE(row_of(rated, {.sft_ignore_keys = {"label"}}).is_bad);
  EXPECT_EQ(row_of(rated, {.sft_ignore_keys = {"label", "kto_tag"}}).form, SftForm::kPrompt);
  // One of two keys of a meaning.
  const SftOptions renamed{.sft_ignore_keys = {"completion"}, .sft_rename_keys = {"best=completion"}};
  EXPECT_EQ(row_of(R"({"prompt": "q", "completion": "a", "best": "b"})", renamed).texts.at(0).answer, "b");
  // A row's key does not take a message's speaker and words.
  const char* const chat = R"({"content": 3, "tools": [{}], "conversations": [{"role": "user", "content": "q"},
      {"from": "gpt", "value": "a", "tools": 1}]})";
  const SftRow read = row_of(chat, {.sft_ignore_keys = {"content", "tools"}});
  EXPECT_EQ(read.chats.at(0).list[1], (OrderedJson{{"role", "assistant"}, {"content", "a"}}));
  EXPECT_TRUE(read.tools.is_null());
  EXPECT_THROW(row_of(chat, {.sft_rename_keys = {"message.=a"}}), UserError);
}

TEST(SftRows, OnlyTheLastAnswerOfAPairOrARatingIsLearned) {
  const auto counts = [](const char* answer) {
    const std::string row = fmt::format(R"({{"prompt": "r", "history": [["q", "a"]], {}}})", answer);
    return messages_of_texts(row_of(row.c_str()).texts.at(0)).counts;
  };
  const std::vector<bool> last = {false, false, false, true};
  EXPECT_EQ(counts(R"("completion": "b")"), (std::vector<bool>{false, true, false, true}));
  EXPECT_EQ(counts(R"("completion": "b", "label": true)"), last);
  EXPECT_EQ(counts(R"("chosen": "b", "rejected": "c")"), last);
}

TEST(SftRows, RepeatedRowsAreReadOnce) {
  const test::TemporaryFolder folder;
  folder.write("rows.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b\"}\n{\"text\": \"a\"}\n");
  const std::string path = (folder.path() / "rows.jsonl").string();
  SftReader reader({path, path}, std::nullopt, std::nullopt, /*deduplicates=*/true);
  EXPECT_EQ(reader.next().value().number, 1);
  EXPECT_EQ(reader.next().value().number, 2);
  EXPECT_FALSE(reader.next().has_value());
  EXPECT_EQ(reader.num_repeated(), 4);
}

TEST(SftRows, OnlyTheLastBracketsNameAPart) {
  const SftPath path = parse_sft_path("shard[1].jsonl[2:5]");
  EXPECT_EQ(path.path, "shard[1].jsonl");
  ASSERT_TRUE(path.rows.has_value());
  EXPECT_EQ(path.rows->begin.value, 2);
  EXPECT_EQ(path.rows->end.value, 5);
  EXPECT_EQ(parse_sft_path("shard[ab]").path, "shard[ab]");
  EXPECT_EQ(parse_sft_path("org/name[train[95%:]]").path, "org/name");
}

TEST(SftRows, PartsTellWhichInputTheyAreOf) {
  const test::TemporaryFolder folder;
  const std::string a = folder.write("a.jsonl", "{}\n").string(), b = folder.write("b.jsonl", "{}\n").string();
  const auto parts = [](const std::vector<std::string>& paths) {
    return SftReader(paths, std::nullopt, std::nullopt).parts();
  };
  EXPECT_EQ(parts({a, b}), "");
  EXPECT_EQ(parts({a + "[0:5]", b}), "[0:5][:]");
  EXPECT_EQ(parts({a, b + "[0:5]"}), "[:][0:5]");
}

}  // namespace
}  // namespace megalith
