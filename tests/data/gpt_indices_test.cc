// The sample index by several threads against the walk that defines it, and the cache that ranks and jobs share.
#include "data/gpt_indices.h"

#include <atomic>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "core/json.h"
#include "data/gpt_dataset.h"
#include "data/index_cache.h"
#include "data_fixture.h"

namespace megalith {
namespace {

std::vector<int64_t> values_of(const IndexArray& array) {
  std::vector<int64_t> values;
  for (int64_t row = 0; row < array.rows(); ++row) {
    for (int64_t column = 0; column < array.columns(); ++column) values.push_back(array.at(row, column));
  }
  return values;
}

// Megatron's own words: take documents until a sample is full; the next begins with its last token.
std::vector<int64_t> walk(const std::vector<int32_t>& lengths, const IndexArray& documents, int64_t first,
                          int64_t num_samples, int64_t sequence_length) {
  std::vector<int64_t> rows = {0, 0};
  int64_t position = 0, offset = 0;
  for (int64_t sample = 0; sample < num_samples; ++sample) {
    int64_t remaining = sequence_length + 1;
    while (remaining > 0) {
      const int64_t size = lengths[static_cast<size_t>(documents.at(position) - first)], length = size - offset;
      remaining -= length;
      if (remaining <= 0) {
        offset += remaining + length - 1;
      } else if (position + 1 == documents.rows()) {
        offset = size - 1;
        break;
      } else {
        ++position;
        offset = 0;
      }
    }
    rows.push_back(position);
    rows.push_back(offset);
  }
  return rows;
}

using GptIndicesTest = DataTest;

TEST_F(GptIndicesTest, ThreadsAndFilesGiveTheWalk) {
  std::mt19937 rng(7);
  struct Case {
    size_t num_sequences;
    int64_t longest, sequence_length;
    int epochs;
  };
  for (const Case& c : {Case{90'000, 9, 13, 2}, Case{70'000, 3, 1, 1}, Case{300, 200, 7, 400}, Case{70'001, 40, 900, 1},
                        Case{3, 5, 4, 1}}) {
    std::vector<int32_t> lengths(c.num_sequences);
    int64_t tokens = 0;
    for (int32_t& length : lengths) tokens += length = static_cast<int32_t>(rng() % static_cast<uint32_t>(c.longest));
    lengths[0] += 2, tokens += 2;
    const ElementRange range{11, 11 + static_cast<int64_t>(c.num_sequences)};
    const EpochPlan plan = plan_epochs(tokens, c.sequence_length, (c.epochs * tokens - 1) / c.sequence_length - 1);
    ASSERT_GE(plan.num_epochs, c.epochs - 1);
    const GptIndices one = build_gpt_indices(lengths, range, plan, c.sequence_length, 99, 1);
    for (const int threads : {2, 3, 8}) {
      const GptIndices many = build_gpt_indices(lengths, range, plan, c.sequence_length, 99, threads);
      EXPECT_TRUE(values_of(many.sample_index) == values_of(one.sample_index)) << threads;
      EXPECT_TRUE(values_of(many.shuffle_index) == values_of(one.shuffle_index)) << threads;
      EXPECT_TRUE(values_of(many.document_index) == values_of(one.document_index)) << threads;
    }
    for (const int threads : {1, 8}) {
      const auto file = [&](const char* name) { return path(fmt::format("{}.npy", name)); };
      write_gpt_indices(lengths, range, plan, c.sequence_length, 99, threads,
                        {file("documents"), file("samples"), file("shuffle")});
      for (const auto& [name, array] : {std::pair{"documents", &one.document_index},
                                        {"samples", &one.sample_index},
                                        {"shuffle", &one.shuffle_index}}) {
        array->save_npy(file("held"));
        EXPECT_TRUE(read_file(file(name)) == read_file(file("held"))) << name << " " << threads;
      }
    }
    EXPECT_TRUE(values_of(one.sample_index) ==
                walk(lengths, one.document_index, range.begin, plan.num_samples, c.sequence_length))
        << c.num_sequences;
  }
}

using IndexCacheTest = DataTest;

TEST_F(IndexCacheTest, OneOfManyBuilds) {
  std::atomic<int> num_built{0};
  const auto load = [&](int) {
    const IndexCacheKey key{"GPTDataset", "train", "{\"class\": \"GPTDataset\"}", {"a"}, "", nullptr};
    const auto arrays = load_or_build_arrays(
        folder_ / "cache", key,
        [&] {
          ++num_built;
          std::this_thread::sleep_for(std::chrono::milliseconds(30));
          std::vector<IndexArray> list;
          list.push_back(IndexArray::of(std::vector<int32_t>{4, 5}));
          return list;
        },
        log_);
    EXPECT_EQ(arrays[0].at(1), 5);
  };
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 12; ++i) threads.emplace_back(load, i);
  }
  EXPECT_EQ(num_built, 1);
  // The array and its description; no lock is left.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_ / "cache"), {}), 2);
}

TEST_F(IndexCacheTest, AnotherProgramsCacheIsUsedWhenAllButTheTokenizerAgrees) {
  const auto source = std::make_shared<IndexedDataset>(write_counting("five", {5, 3, 7, 4, 6}));
  GptDatasetOptions options;
  options.sequence_length = 4;
  options.num_samples = 6;
  options.split_text = "1,0,0";
  options.cache_folder = folder_ / "own";
  const GptDataset own(source, {0, 5}, options, log_);
  OrderedJson theirs = OrderedJson::parse(own.identity());
  EXPECT_EQ(theirs.dump(),
            R"({"class":"GPTDataset","dataset_path":")" + path("five") +
                R"(","num_samples":6,"index_split":"train","random_seed":1234,"sequence_length":4,"split":"1,0,0",)"
                R"("split_matrix":[[0.0,1.0],null,null]})");
  theirs["split_matrix"][0] = {0, 1.0};
  theirs["tokenizer"] = {{"class", "_GPT2BPETokenizer"}};
  // Their arrays differ from what we would build, to see whose are used.
  const auto write_theirs = [&](const OrderedJson& description, int64_t num_shuffled) {
    remove_tree(folder_ / "theirs");
    make_directories(folder_ / "theirs");
    const std::filesystem::path stem = folder_ / "theirs" / "0123-GPTDataset-train-";
    write_file_atomic(stem.string() + "description.txt", description.dump(4));
    own.indices().document_index.save_npy(stem.string() + "document_index.npy");
    own.indices().sample_index.save_npy(stem.string() + "sample_index.npy");
    std::vector<uint32_t> order(static_cast<size_t>(num_shuffled));
    IndexArray::of(order).save_npy(stem.string() + "shuffle_index.npy");
  };
  const auto uses_theirs = [&] {
    options.cache_folder = folder_ / "theirs";
    const GptDataset data(source, {0, 5}, options, log_);
    return data.indices().shuffle_index.at(0) == 0;
  };
  write_theirs(theirs, 6);
  EXPECT_TRUE(uses_theirs());
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_ / "theirs"), {}), 4);
  write_theirs(theirs, 5);
  EXPECT_FALSE(uses_theirs());
  EXPECT_NE(logged_.find("do not fit together; not used"), std::string::npos) << logged_;
  for (const char* field : {"num_samples", "random_seed", "sequence_length", "split", "index_split", "dataset_path"}) {
    OrderedJson other = theirs;
    other[field] = 7;
    write_theirs(other, 6);
    EXPECT_FALSE(uses_theirs()) << field;
  }
}

}  // namespace
}  // namespace megalith
