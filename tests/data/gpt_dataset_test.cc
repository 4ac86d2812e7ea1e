// The GPT data set against vectors of megatron-core's own builder, its cache, and the errors of its data.
#include "data/gpt_dataset.h"

#include "data/index_array.h"
#include "data_fixture.h"

namespace megalith {
namespace {

class GptDatasetTest : public DataTest {
 protected:
  GptDatasetTest() : source_(std::make_shared<IndexedDataset>(write_counting("five", {5, 3, 7, 4, 6}))) {}

  GptDatasetOptions options(std::optional<int64_t> num_samples) {
    GptDatasetOptions options;
    options.sequence_length = 4;
    options.num_samples = num_samples;
    options.seed = 1234;
    return options;
  }
  GptIndices indices(std::optional<int64_t> num_samples) {
    return build_gpt_indices(*source_, {0, 5}, options(num_samples));
  }
  static std::vector<int64_t> values(const IndexArray& array) {
    std::vector<int64_t> list;
    for (int64_t row = 0; row < array.rows(); ++row) {
      for (int64_t column = 0; column < array.columns(); ++column) list.push_back(array.at(row, column));
    }
    return list;
  }
  static std::vector<int64_t> sample(const SampleSource& data, int64_t index, size_t size = 5) {
    std::vector<int64_t> tokens(size);
    data.read(index, tokens);
    return tokens;
  }
  using List = std::vector<int64_t>;

  std::shared_ptr<IndexedDataset> source_;
};

TEST_F(GptDatasetTest, OneEpochIsMegatrons) {
  const GptIndices one = indices(6);
  EXPECT_EQ(values(one.document_index), (List{4, 0, 1, 2, 3}));
  EXPECT_EQ(values(one.sample_index), (List{0, 0, 0, 4, 1, 2, 2, 1, 3, 2, 3, 6, 4, 3}));
  EXPECT_EQ(values(one.shuffle_index), (List{5, 2, 3, 1, 0, 4}));
  EXPECT_EQ(one.document_index.type(), IndexArray::Type::kInt32);
  EXPECT_EQ(one.sample_index.type(), IndexArray::Type::kInt32);
  EXPECT_EQ(one.shuffle_index.type(), IndexArray::Type::kUint32);
  EXPECT_EQ(values(indices(std::nullopt).shuffle_index), (List{5, 2, 3, 1, 0, 4}));
}

TEST_F(GptDatasetTest, TwoEpochsWithASeparateLastOneAreMegatrons) {
  const GptIndices two = indices(8);
  EXPECT_EQ(values(two.document_index), (List{4, 0, 1, 2, 3, 3, 2, 1, 0, 4}));
  EXPECT_EQ(values(two.sample_index),
            (List{0, 0, 0, 4, 1, 2, 2, 1, 3, 2, 3, 6, 4, 3, 5, 3, 6, 3, 7, 0, 8, 1, 9, 0, 9, 4}));
  EXPECT_EQ(values(two.shuffle_index), (List{0, 4, 3, 2, 5, 1, 7, 6, 9, 8, 11, 10}));
}

TEST_F(GptDatasetTest, ThreeEpochsAreMegatrons) {
  const GptIndices three = indices(13);
  EXPECT_EQ(values(three.document_index), (List{2, 2, 4, 1, 0, 3, 4, 0, 1, 3, 0, 4, 3, 2, 1}));
  EXPECT_EQ(values(three.shuffle_index), (List{7, 11, 2, 3, 1, 9, 5, 4, 0, 8, 6, 10, 17, 13, 16, 15, 12, 14}));
}

TEST_F(GptDatasetTest, TellsHowMuchOnePassReads) {
  GptDatasetOptions wanted = options(std::nullopt);
  const GptDataset all(source_, {0, 5}, wanted, log_);
  ASSERT_TRUE(all.size());
  EXPECT_EQ(all.size()->documents, 5);
  EXPECT_EQ(all.size()->tokens, 25);
  EXPECT_EQ(GptDataset(source_, {1, 3}, wanted, log_).size()->tokens, 10) << "of its split only";
  wanted.is_mock = true;
  EXPECT_FALSE(GptDataset(source_, {0, 5}, wanted, log_).size()) << "made-up data has no size";
}

TEST(IndexNotice, IsGivenOnlyForWhatTakesLong) {
  EXPECT_EQ(index_notice("wiki", 1000000, 1000000), "");
  EXPECT_EQ(index_notice("wiki", 100000000, 150000000),
            "building the sample index of wiki: 100 M documents and 150 M samples are put in order, about 15 s");
}

TEST_F(GptDatasetTest, SamplesAreReadAcrossDocuments) {
  const GptDataset data(source_, {0, 5}, options(6), log_);
  ASSERT_EQ(data.num_samples(), 6);
  EXPECT_EQ(sample(data, 0), (List{26, 30, 31, 32, 33}));
  EXPECT_EQ(sample(data, 1), (List{2, 3, 4, 10, 11}));
}

TEST_F(GptDatasetTest, EveryTokenOfAnEpochIsALabelAtMostOnce) {
  const GptDataset data(source_, {0, 5}, options(std::nullopt), log_);
  std::vector<int> seen(100, 0);
  for (int64_t i = 0; i < data.num_samples(); ++i) {
    const List tokens = sample(data, i);
    for (size_t p = 1; p < tokens.size(); ++p) ++seen[static_cast<size_t>(tokens[p])];
  }
  EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), 24);
  EXPECT_EQ(*std::max_element(seen.begin(), seen.end()), 1);
}

TEST_F(GptDatasetTest, EmptyDocumentsAreStepped0ver) {
  auto gaps = std::make_shared<IndexedDataset>(write_counting("gaps", {0, 5, 0, 0, 4, 0}));
  const GptDataset data(gaps, {0, 6}, options(std::nullopt), log_);
  ASSERT_EQ(data.num_samples(), 2);
  for (int64_t i = 0; i < 2; ++i) {
    for (const int64_t token : sample(data, i)) EXPECT_TRUE((token >= 10 && token < 15) || (token >= 40 && token < 44));
  }
}

TEST_F(GptDatasetTest, EmptyAndTooSmallSplitsAreExplained) {
  GptDatasetOptions some = options(3);
  some.split = Split::kValid;
  some.split_text = "99,1,0";
  EXPECT_EQ(message_of([&] {
              build_gpt_indices(*source_, {5, 5}, some);
            }),
            fmt::format("the valid split of {} is empty (sequences 5 to 5 of 5, split \"99,1,0\")", path("five")));
  some.num_samples.reset();
  some.sequence_length = 100;
  EXPECT_EQ(
      message_of([&] {
        build_gpt_indices(*source_, {0, 5}, some);
      }),
      fmt::format("the valid split of {} has 25 tokens, too few for one sample of seq_length 100 + 1", path("five")));
}

TEST_F(GptDatasetTest, TokensOutsideTheVocabularyNameTheDocument) {
  GptDatasetOptions small = options(6);
  small.vocab_size = 46;
  const GptDataset inside(source_, {0, 5}, small, log_);
  for (int64_t i = 0; i < 6; ++i) sample(inside, i);
  small.vocab_size = 45;
  const GptDataset data(source_, {0, 5}, small, log_);
  EXPECT_EQ(message_of([&] {
              for (int64_t i = 0; i < 6; ++i) sample(data, i);
            }),
            path("five.bin") + ", document 4 holds the token id 45, but the vocabulary has 45 ids");
}

TEST_F(GptDatasetTest, CacheIsWrittenOnceAndReadBack) {
  GptDatasetOptions cached = options(8);
  cached.cache_folder = folder_ / "cache";
  const GptDataset built(source_, {0, 5}, cached, log_);
  std::map<std::string, std::filesystem::file_time_type> times;
  for (const auto& entry : std::filesystem::directory_iterator(folder_ / "cache")) {
    const std::string name = entry.path().filename().string();
    times[name] = entry.last_write_time();
    EXPECT_NE(name.find("-GPTDataset-train-"), std::string::npos) << name;
  }
  ASSERT_EQ(times.size(), 4u);
  const GptDataset loaded(source_, {0, 5}, cached, log_);
  for (int64_t i = 0; i < built.num_samples(); ++i) EXPECT_EQ(sample(loaded, i), sample(built, i)) << i;
  for (const auto& [name, time] : times) EXPECT_EQ(std::filesystem::last_write_time(folder_ / "cache" / name), time);
  cached.seed = 7;
  const GptDataset other(source_, {0, 5}, cached, log_);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_ / "cache"), {}), 8);
  EXPECT_EQ(logged_, "");
}

TEST_F(GptDatasetTest, DamagedCacheIsBuiltAnew) {
  GptDatasetOptions cached = options(6);
  cached.cache_folder = folder_ / "cache";
  const GptDataset built(source_, {0, 5}, cached, log_);
  for (const auto& entry : std::filesystem::directory_iterator(folder_ / "cache")) {
    if (entry.path().extension() == ".npy") write_file_atomic(entry.path(), read_file(entry.path()).substr(0, 100));
  }
  const GptDataset again(source_, {0, 5}, cached, log_);
  EXPECT_EQ(sample(again, 0), (List{26, 30, 31, 32, 33}));
  EXPECT_NE(logged_.find("building it anew"), std::string::npos) << logged_;
}

TEST_F(GptDatasetTest, UnwritableCacheIsSaidAndDoneWithout) {
  write_file_atomic(path("file"), std::string_view("x"));
  GptDatasetOptions cached = options(6);
  cached.cache_folder = folder_ / "file" / "cache";
  const GptDataset data(source_, {0, 5}, cached, log_);
  EXPECT_EQ(sample(data, 0), (List{26, 30, 31, 32, 33}));
  EXPECT_NE(logged_.find("stays in memory"), std::string::npos) << logged_;
}

// Bytes of numpy.save for numpy.array([[1, 2], [3, 4]], dtype=int32): 128 bytes of header, then the values.
TEST_F(GptDatasetTest, NpyFilesAreNumpys) {
  IndexArray::of(std::vector<int32_t>{1, 2, 3, 4}, 2).save_npy(path("a.npy"));
  const std::string bytes = read_file(path("a.npy"));
  std::string expected("\x93NUMPY\x01\x00\x76\x00", 10);
  expected += "{'descr': '<i4', 'fortran_order': False, 'shape': (2, 2), }";
  expected.resize(127, ' ');
  expected += '\n';
  const int32_t numbers[] = {1, 2, 3, 4};
  expected.append(reinterpret_cast<const char*>(numbers), sizeof(numbers));
  EXPECT_EQ(bytes, expected);
  const IndexArray loaded = IndexArray::load_npy(path("a.npy"));
  EXPECT_EQ(loaded.rows(), 2);
  EXPECT_EQ(loaded.at(1, 0), 3);
  IndexArray::of(std::vector<int64_t>{}).save_npy(path("b.npy"));
  EXPECT_EQ(IndexArray::load_npy(path("b.npy")).rows(), 0);
  for (size_t size = 0; size < bytes.size(); ++size) {
    write_file_atomic(path("a.npy"), std::string_view(bytes).substr(0, size));
    EXPECT_THROW(IndexArray::load_npy(path("a.npy")), UserError) << size;
  }
}

}  // namespace
}  // namespace megalith
