// ICT's samples: which sentences make a block, what a question and its text hold, and titles that do not fit.
// tests/oracle/ict_data_test.py compares every field with a reading in NumPy.
#include "kinds/retrieval/ict_samples.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "data/data_fixture.h"
#include "data/data_sets.h"
#include "data/sorted_rows.h"
#include "kinds/encoder/sentence_mapping.h"

namespace megalith {
namespace {

// Documents of 6, 1, 2 and 1 sentences; the third has one that is too long, and so has the fourth.
const std::vector<int64_t> kBlockBegins = {10, 16, 17, 19, 20};
const std::vector<int32_t> kBlockLengths = {4, 5, 6, 7, 8, 9, 3, 2, 600, 513};

using Rows = std::vector<std::vector<int64_t>>;

TEST(BlockMapping, ABlockEndsAtItsTargetWhenEnoughIsLeft) {
  const MappingOptions options{.max_length = 9, .min_sentences = 2};
  // 4 + 5 reach 9 with four sentences left, 6 + 7 with two.
  EXPECT_EQ(sorted_rows(build_block_mapping({kBlockBegins, kBlockLengths}, {}, 7, options)),
            (Rows{{10, 12, 7, 0}, {12, 14, 7, 1}, {14, 16, 7, 2}}));
}

TEST(BlockMapping, ATitleTakesRoomOfItsBlocks) {
  const MappingOptions options{.max_length = 16, .min_sentences = 2};
  const std::vector<int32_t> titles = {7, 0, 0, 0}, none = {0, 0, 0, 0};
  EXPECT_EQ(sorted_rows(build_block_mapping({kBlockBegins, kBlockLengths}, titles, 0, options)),
            (Rows{{10, 12, 0, 0}, {12, 14, 0, 1}, {14, 16, 0, 2}}));
  // Without it 4 + 5 + 6 + 7 reach 16, and two sentences are left.
  EXPECT_EQ(sorted_rows(build_block_mapping({kBlockBegins, kBlockLengths}, none, 0, options)),
            (Rows{{10, 14, 0, 0}, {14, 16, 0, 1}}));
}

TEST(BlockMapping, SingleSentencesAreBlocksWhereTheyAreWanted) {
  const MappingOptions options{.max_length = 9, .min_sentences = 1};
  // A long one is left out also where it is all that its document has.
  EXPECT_EQ(sorted_rows(build_block_mapping({kBlockBegins, kBlockLengths}, {}, 0, options)),
            (Rows{{10, 12, 0, 0}, {12, 14, 0, 1}, {14, 16, 0, 2}, {16, 17, 1, 3}}));
  EXPECT_EQ(count_left_out({kBlockBegins, kBlockLengths}, 1, LongSingle::kLeftOut).long_sentence, 2);
  EXPECT_EQ(count_left_out({kBlockBegins, kBlockLengths}, 1).long_sentence, 1);
}

TEST(BlockMapping, BlocksAreNumberedAnewInEachEpoch) {
  const MappingOptions options{.max_length = 9, .min_sentences = 2, .num_samples = 5};
  EXPECT_EQ(sorted_rows(build_block_mapping({kBlockBegins, kBlockLengths}, {}, 0, options)),
            (Rows{{10, 12, 0, 0}, {10, 12, 0, 0}, {12, 14, 0, 1}, {12, 14, 0, 1}, {14, 16, 0, 2}, {14, 16, 0, 2}}));
}

class IctSamplesTest : public DataTest {
 protected:
  // Documents of these numbers of sequences of `length` tokens; each has its own number as its tokens.
  std::string write(std::string_view name, const std::vector<int>& documents, size_t length, int32_t number) {
    IndexedDatasetWriter writer(path(name), TokenType::kUint16);
    for (const int count : documents) {
      for (int i = 0; i < count; ++i) writer.add_sequence(std::vector<int32_t>(length, number++));
      writer.end_document();
    }
    writer.finish();
    return path(name);
  }

  std::unique_ptr<BatchSource> open(const IctSampleOptions& options, const std::string& prefix) {
    const std::shared_ptr<const SampleMaker> maker = make_ict_samples(options, made_up_vocabulary(200));
    DataOptions data;
    data.mock_data = prefix.empty();
    if (!prefix.empty()) {
      data.data_path = {prefix};
      data.split = "1,0,0";
    }
    DataSetup setup;
    setup.sequence_length = options.sequence_length;
    setup.num_samples[0] = 8;
    return make_data_sets(data, setup, *maker, log_).train;
  }
};

std::vector<int64_t> numbers_of(const at::Tensor& tensor) {
  const at::Tensor row = tensor.reshape({-1}).contiguous();
  return {row.const_data_ptr<int64_t>(), row.const_data_ptr<int64_t>() + row.numel()};
}

TEST_F(IctSamplesTest, AQuestionAndItsTextAreFramedAndPadded) {
  const std::string texts = write("texts", {3}, 4, 50), titles = write("titles", {1}, 2, 30);
  const auto source = open({.sequence_length = 20, .query_in_block_prob = 0, .titles = titles}, texts);
  std::set<int64_t> chosen;
  for (int64_t i = 0; i < source->num_samples(); ++i) {
    const Batch row = source->read({.consumed_samples = i});
    const std::vector<int64_t> query = numbers_of(row.at(field::kQueryTokens));
    const int64_t number = query[1];
    chosen.insert(number);
    std::vector<int64_t> expected_query = {1, number, number, number, number, 2};
    expected_query.resize(20, 0);
    EXPECT_EQ(query, expected_query);
    EXPECT_EQ(row.at(field::kQueryKeyLengths).item<int64_t>(), 6);
    // [CLS] title [SEP], the two other sentences, [SEP]
    std::vector<int64_t> expected = {1, 30, 30, 2};
    for (const int64_t other : {50, 51, 52}) {
      if (other != number) expected.insert(expected.end(), 4, other);
    }
    expected.push_back(2);
    EXPECT_EQ(row.at(field::kKeyLengths).item<int64_t>(), std::ssize(expected));
    expected.resize(20, 0);
    EXPECT_EQ(numbers_of(row.at(field::kTokens)), expected);
    EXPECT_EQ(numbers_of(row.at(field::kBlock)), (std::vector<int64_t>{0, 3, 0, 0}));
  }
  EXPECT_EQ(chosen.size(), 3U);
  const auto kept = open({.sequence_length = 20, .query_in_block_prob = 1}, texts);
  EXPECT_EQ(kept->read({}).at(field::kKeyLengths).item<int64_t>(), 14) << "the question stays, and there is no title";
}

TEST_F(IctSamplesTest, LongTitlesLeaveRoomForOneToken) {
  const std::string texts = write("texts", {2}, 4, 50), titles = write("titles", {1}, 40, 30);
  const auto source = open({.sequence_length = 10, .titles = titles}, texts);
  const std::vector<int64_t> text = numbers_of(source->read({}).at(field::kTokens));
  EXPECT_EQ(std::count(text.begin(), text.end(), 30), 6);
  EXPECT_EQ(text[7], 2);
  EXPECT_GE(text[8], 50);
  EXPECT_EQ(text[9], 2);
}

TEST_F(IctSamplesTest, ASampleDependsOnItsNumberOnly) {
  const auto source = open({.sequence_length = 40}, ""), other = open({.sequence_length = 40}, "");
  const Batch together = source->read({.consumed_samples = 2, .micro_batch_size = 4});
  for (int64_t row = 3; row >= 0; --row) {
    const Batch one = other->read({.consumed_samples = 2 + row}), same = together.rows(row, 1);
    for (const BatchField& field : one.fields()) {
      EXPECT_TRUE(at::equal(field.tensor, same.at(field.name))) << field.name << " of row " << row;
    }
  }
}

TEST_F(IctSamplesTest, RefusesTitlesThatAreNotAsManyAsDocuments) {
  const std::string texts = write("texts", {2, 3}, 4, 50), titles = write("titles", {1, 1, 1}, 2, 30);
  try {
    open({.sequence_length = 20, .titles = titles}, texts);
    FAIL() << "no error";
  } catch (const UserError& error) {
    EXPECT_EQ(error.message(), "titles_data_path " + titles + " has 3 documents, and " + texts +
                                   " has 2: each needs a title");
  }
  EXPECT_THROW(open({.sequence_length = 4}, texts), UserError);
  EXPECT_THROW(open({.sequence_length = 20}, write("single", {1, 1}, 4, 50)), UserError);
  EXPECT_NE(open({.sequence_length = 20, .takes_single_sentences = true}, path("single")), nullptr);
}

}  // namespace
}  // namespace megalith
