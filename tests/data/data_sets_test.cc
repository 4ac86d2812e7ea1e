// From options to batches: fields of a batch, blends of files, resuming, and the messages of bad input.
#include "data/data_sets.h"

#include <ATen/ops/cat.h>

#include <set>

#include "data/blend.h"
#include "data_fixture.h"

namespace megalith {
namespace {

class DataSetsTest : public DataTest {
 protected:
  DataSetup setup(int64_t train = 0, int64_t valid = 0, int64_t test = 0) {
    DataSetup setup;
    setup.sequence_length = 4;
    setup.vocab_size = 1000;
    setup.eod = 999;
    setup.num_samples = {train, valid, test};
    return setup;
  }
  static std::vector<int64_t> list(const at::Tensor& tensor) {
    const at::Tensor flat = tensor.to(at::kLong).contiguous().view(-1);
    return {flat.const_data_ptr<int64_t>(), flat.const_data_ptr<int64_t>() + flat.numel()};
  }
  using List = std::vector<int64_t>;
};

TEST_F(DataSetsTest, BatchHoldsShiftedLabelsAndGlobalPositions) {
  DataOptions options;
  options.data_path = {write_counting("five", {5, 3, 7, 4, 6})};
  options.split = "1,0,0";
  const DataSets sets = make_data_sets(options, setup(6), log_);
  ASSERT_TRUE(sets.train);
  EXPECT_FALSE(sets.valid);
  const Batch batch = sets.train->read({.consumed_samples = 0, .micro_batch_size = 1, .dp_rank = 1, .dp_size = 2});
  EXPECT_EQ(list(batch.at(field::kTokens)), (List{2, 3, 4, 10}));
  EXPECT_EQ(list(batch.at(field::kLabels)), (List{3, 4, 10, 11}));
  EXPECT_EQ(list(batch.at(field::kPositionIds)), (List{0, 1, 2, 3}));
  EXPECT_EQ(list(batch.at(field::kLossWeights)), (List{1, 1, 1, 1}));
  EXPECT_EQ(list(batch.at(field::kSampleIndex)), List{1});
  EXPECT_FALSE(batch.has(field::kDocumentIds));
  EXPECT_EQ(batch.at(field::kTokens).scalar_type(), at::kLong);
  EXPECT_EQ(batch.at(field::kLossWeights).scalar_type(), at::kFloat);
}

TEST_F(DataSetsTest, LayoutsReadTheSameGlobalBatch) {
  DataOptions options;
  options.data_path = {write_counting("many", std::vector<int>(40, 6))};
  options.split = "1";
  const DataSets sets = make_data_sets(options, setup(24), log_);
  const auto global_batch = [&](int64_t micro, int64_t dp) {
    std::map<int64_t, List> rows;
    for (int64_t consumed = 8; consumed < 16; consumed += micro * dp) {
      for (int64_t rank = 0; rank < dp; ++rank) {
        const Batch batch = sets.train->read({consumed, micro, rank, dp});
        const List index = list(batch.at(field::kSampleIndex));
        const at::Tensor tokens = batch.at(field::kTokens);
        for (int64_t row = 0; row < micro; ++row) rows[index[static_cast<size_t>(row)]] = list(tokens[row]);
      }
    }
    return rows;
  };
  const auto whole = global_batch(8, 1);
  EXPECT_EQ(whole.size(), 8u);
  EXPECT_EQ(global_batch(1, 1), whole);
  EXPECT_EQ(global_batch(2, 4), whole);
  EXPECT_EQ(global_batch(1, 2), whole);
}

TEST_F(DataSetsTest, ValidationSetsByNameAreThoseThatStandAlone) {
  const std::string a = write_counting("first", {9, 9, 9}), b = write_counting("second", {20, 7});
  DataOptions options;
  options.train_data_path = {a};
  options.valid_data_path = {a, b};
  options.validation_set_names = {"one", "two"};
  const DataSets sets = make_data_sets(options, setup(2, 3), log_);
  const std::vector<NamedSource> found = sets.evaluated(Split::kValid);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_FALSE(sets.valid);
  EXPECT_EQ(sets.all().size(), 3u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(found[i].name, i == 0 ? "validation-one" : "validation-two");
    DataOptions alone;
    alone.valid_data_path = {i == 0 ? a : b};
    const DataSets expected = make_data_sets(alone, setup(0, 3), log_);
    const auto tokens = [](BatchSource& from) {
      return list(from.read({.consumed_samples = 1, .micro_batch_size = 2}).at(field::kTokens));
    };
    EXPECT_EQ(tokens(*found[i].source), tokens(*expected.valid));
  }
  options.validation_set_names = {"one"};
  EXPECT_THROW(make_data_sets(options, setup(2, 3), log_), UserError);
  for (const char* name : {"one", "", "a/b", "a\nb"}) {
    options.validation_set_names = {"one", name};
    EXPECT_THROW(make_data_sets(options, setup(2, 3), log_), UserError) << name;
  }
  options.validation_set_names = {"a b", "a_b"};
  EXPECT_THROW(make_data_sets(options, setup(2, 3), log_), UserError);
  options.validation_set_names = {};
  options.multiple_validation_sets = true;
  EXPECT_EQ(make_data_sets(options, setup(2, 3), log_).evaluated(Split::kValid)[1].name, "validation-2");
  options.valid_data_path = {"0.5", a, "0.5", b};
  EXPECT_THROW(make_data_sets(options, setup(2, 3), log_), UserError);
}

TEST_F(DataSetsTest, MasksAndPositionsAreMegatrons) {
  BatchOptions options;
  options.sequence_length = 8;
  options.eod = 9;
  const List sample = {1, 9, 2, 3, 9, 9, 4, -1, -1};
  const Batch plain = make_batch(1, options);
  fill_batch_row(plain, 0, sample, options);
  EXPECT_EQ(list(plain.at(field::kTokens)), (List{1, 9, 2, 3, 9, 9, 4, 0}));
  EXPECT_EQ(list(plain.at(field::kLabels)), (List{9, 2, 3, 9, 9, 4, 0, 0}));
  EXPECT_EQ(list(plain.at(field::kLossWeights)), (List{1, 1, 1, 1, 1, 1, 0, 0}));
  EXPECT_EQ(list(plain.at(field::kPositionIds)), (List{0, 1, 2, 3, 4, 5, 6, 7}));
  options.reset_position_ids = options.reset_attention_mask = options.eod_mask_loss = true;
  const Batch masked = make_batch(1, options);
  fill_batch_row(masked, 0, sample, options);
  EXPECT_EQ(list(masked.at(field::kLossWeights)), (List{1, 0, 1, 1, 0, 0, 0, 0}));
  EXPECT_EQ(list(masked.at(field::kPositionIds)), (List{0, 1, 0, 1, 2, 0, 0, 1}));
  EXPECT_EQ(list(masked.at(field::kDocumentIds)), (List{0, 0, 1, 1, 1, 2, 3, 3}));
}

TEST_F(DataSetsTest, WeightedBlendKeepsItsProportions) {
  DataOptions options;
  options.data_path = {"3", write_counting("a", std::vector<int>(30, 9)), "1",
                       write_counting("b", std::vector<int>(30, 9)) + ".bin"};
  options.split = "1,0,0";
  options.data_cache_path = path("cache");
  const DataSets sets = make_data_sets(options, setup(40), log_);
  EXPECT_EQ(sets.train->num_samples(), 40);
  // Both hold the same tokens, so count by what the blend says.
  std::map<std::string, int> files;
  for (const auto& entry : std::filesystem::directory_iterator(path("cache"))) {
    const std::string name = entry.path().filename().string();
    ++files[name.substr(33)];
  }
  EXPECT_EQ(files["BlendedDataset-train-dataset_index.npy"], 1);
  EXPECT_EQ(files["BlendedDataset-train-dataset_sample_index.npy"], 1);
  EXPECT_EQ(files["GPTDataset-train-shuffle_index.npy"], 2);
  const DataSets again = make_data_sets(options, setup(40), log_);
  for (int64_t consumed = 0; consumed < 40; ++consumed) {
    EXPECT_EQ(list(again.train->read({consumed}).at(field::kTokens)),
              list(sets.train->read({consumed}).at(field::kTokens)));
  }
}

TEST_F(DataSetsTest, UnweightedBlendIsOnePassOfEach) {
  DataOptions options;
  options.data_path = {write_counting("a", {9}), write_counting("b", {9, 8}), write_counting("c", {5})};
  options.split = "1,0,0";
  const DataSets sets = make_data_sets(options, setup(1000), log_);
  EXPECT_EQ(sets.train->num_samples(), 2 + 4 + 1);
}

TEST_F(DataSetsTest, PathsForEachSplitAreUsedWhole) {
  DataOptions options;
  options.train_data_path = {write_counting("a", {9, 9})};
  options.test_data_path = {write_counting("b", {9})};
  const DataSets sets = make_data_sets(options, setup(2, 2, 2), log_);
  ASSERT_TRUE(sets.train && sets.test);
  EXPECT_FALSE(sets.valid);
  EXPECT_EQ(sets.of(Split::kTest), sets.test.get());
  EXPECT_EQ(sets.test->num_samples(), 2);
}

TEST_F(DataSetsTest, MockDataNeedsNoFileAndNoCache) {
  DataOptions options;
  options.mock_data = true;
  DataSetup longer = setup(10, 10, 0);
  longer.sequence_length = 512;  // a mock epoch has 68 million tokens
  const DataSets sets = make_data_sets(options, longer, log_);
  ASSERT_TRUE(sets.train && sets.valid);
  const Batch batch = sets.train->read({.consumed_samples = 0, .micro_batch_size = 3});
  EXPECT_EQ(batch.at(field::kTokens).sizes(), (std::vector<int64_t>{3, 512}));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 0);
}

TEST_F(DataSetsTest, BadInputIsExplained) {
  const std::string five = write_counting("five", {5, 3, 7, 4, 6});
  const auto message = [&](const std::function<void(DataOptions&, DataSetup&)>& change) {
    DataOptions options;
    options.data_path = {five};
    options.split = "1,0,0";
    DataSetup at = setup(6);
    change(options, at);
    return message_of([&] { make_data_sets(options, at, log_); });
  };
  EXPECT_EQ(message([](auto&, auto&) {}), "no error");
  EXPECT_EQ(message([&](auto& o, auto&) { o.data_path = {path("gone")}; }),
            fmt::format("data set {0}: {0}.idx does not exist", path("gone")));
  EXPECT_EQ(message([](auto& o, auto&) { o.split = "1,2,3,4"; }), "split \"1,2,3,4\" holds 4 numbers");
  EXPECT_EQ(message([](auto& o, auto& s) { o.split = "99,1,0", s.num_samples[1] = 4; }),
            fmt::format("the valid split of {} is empty (sequences 5 to 5 of 5, split \"99,1,0\")", five));
  EXPECT_EQ(message([](auto& o, auto&) { o.mock_data = true; }), "mock_data and a data path are given together");
  EXPECT_EQ(message([](auto& o, auto&) { o.train_data_path = {"x"}, o.split.reset(); }),
            "data_path and train_data_path, valid_data_path or test_data_path are given together");
  EXPECT_EQ(message([](auto& o, auto&) { o.data_path.clear(), o.train_data_path = {"x"}; }),
            "split is given together with train_data_path, valid_data_path or test_data_path");
  EXPECT_EQ(message([](auto& o, auto& s) { o.eod_mask_loss = true, s.eod.reset(); }),
            "reset_position_ids, reset_attention_mask and eod_mask_loss need the end-of-document id");
  EXPECT_EQ(message([](auto& o, auto& s) { o.data_path.clear(), o.split.reset(), o.mock_data = true, s.eod.reset(); }),
            "mock_data needs the vocabulary size and the end-of-document id");
  EXPECT_EQ(message([](auto& o, auto&) { o.data_path.clear(), o.split.reset(); }), "no data is given");
}

TEST_F(DataSetsTest, RunningPastTheDataNamesTheSplit) {
  DataOptions options;
  options.data_path = {write_counting("five", {5, 3, 7, 4, 6})};
  options.split = "1,0,0";
  const DataSets sets = make_data_sets(options, setup(6), log_);
  EXPECT_EQ(message_of([&] { sets.train->read({.consumed_samples = 5, .micro_batch_size = 2}); }),
            fmt::format("the train split of {} has 6 samples, but the run asks for samples 5 to 7", path("five")));
}

TEST_F(DataSetsTest, PathsMayBeListedInFiles) {
  const std::string a = write_counting("a", std::vector<int>(30, 9)), b = write_counting("b", std::vector<int>(20, 9));
  DataOptions given;
  given.data_path = {"3", a, "1", b};
  given.split = "1,0,0";
  DataOptions listed;
  write_file_atomic(path("blend.txt"), fmt::format("3 {}\n1\t{}\n", a, b));
  listed.data_args_path = path("blend.txt");
  listed.split = "1,0,0";
  const DataSets expected = make_data_sets(given, setup(40), log_), found = make_data_sets(listed, setup(40), log_);
  for (int64_t i = 0; i < 40; ++i) {
    EXPECT_EQ(list(found.train->read({i}).at(field::kTokens)), list(expected.train->read({i}).at(field::kTokens))) << i;
  }
  DataOptions splits;
  write_file_atomic(path("splits.json"),
                    fmt::format("{{\"train\": [0.25, \"{}\", 0.75, \"{}\"], \"valid\": [\"{}\"]}}", a, b, b));
  splits.per_split_data_args_path = path("splits.json");
  const DataSets each = make_data_sets(splits, setup(8, 8, 8), log_);
  ASSERT_TRUE(each.train && each.valid);
  EXPECT_FALSE(each.test);
  EXPECT_EQ(each.train->num_samples(), 8);
  EXPECT_EQ(each.valid->name(), b);
  // The only data set of a split needs no blend, whatever its weight.
  DataOptions single;
  single.train_data_path = {"1", a};
  EXPECT_EQ(make_data_sets(single, setup(8), log_).train->name(), a);

  write_file_atomic(path("splits.json"), std::string_view("{\"training\": [\"a\"]}"));
  DataOptions misspelled;
  misspelled.per_split_data_args_path = path("splits.json");
  EXPECT_EQ(message_of([&] { make_data_sets(misspelled, setup(4), log_); }),
            path("splits.json") + " lists nothing under train, valid or test");
  write_file_atomic(path("blend.txt"), std::string_view(" \n"));
  EXPECT_EQ(message_of([&] { make_data_sets(listed, setup(4), log_); }),
            fmt::format("data_args_path {} is empty", path("blend.txt")));
  write_file_atomic(path("splits.json"), std::string_view("{\"train\": \"x\"}"));
  EXPECT_EQ(message_of([&] { make_data_sets(splits, setup(4), log_); }),
            fmt::format("{}: train is not a list of paths", path("splits.json")));
  listed.data_path = {a};
  EXPECT_EQ(message_of([&] { make_data_sets(listed, setup(4), log_); }),
            "data_path and data_args_path are given together");
}

TEST_F(DataSetsTest, OnePassOverABlendTakesEverySampleOnce) {
  DataOptions options;
  options.data_path = {write_counting("a", {9}), write_counting("b", std::vector<int>(30, 9))};
  options.split = "1,0,0";
  DataSetup whole = setup();
  whole.num_samples[0] = std::nullopt;
  EXPECT_EQ(make_data_sets(options, whole, log_).train->num_samples(), 2 + 67);
  const auto [datasets, samples] = build_exhaustive_blend_indices({2, 67});
  std::set<std::pair<int64_t, int64_t>> taken;
  for (int64_t i = 0; i < datasets.rows(); ++i) taken.emplace(datasets.at(i), samples.at(i));
  EXPECT_EQ(taken.size(), 69u);
  EXPECT_EQ(taken.count({0, 1}), 1u);
  EXPECT_EQ(taken.count({1, 66}), 1u);
}

TEST_F(DataSetsTest, ABlendThatTakesTooMuchIsRefusedBeforeTraining) {
  class Few : public SampleSource {
   public:
    int64_t num_samples() const override { return 5; }
    void read(int64_t, std::span<int64_t>) const override {}
    std::string name() const override { return "few"; }
  };
  const auto blend = [&](int64_t size) {
    std::vector<std::unique_ptr<SampleSource>> parts;
    parts.push_back(std::make_unique<Few>());
    parts.push_back(std::make_unique<Few>());
    return BlendedDataset(std::move(parts), {3, 1}, size, Split::kTrain, std::nullopt, log_).num_samples();
  };
  EXPECT_EQ(blend(6), 6);
  EXPECT_EQ(message_of([&] { blend(8); }), "the blend takes sample 5 of few, which has 5");
}

}  // namespace
}  // namespace megalith
