// Samples of sentences: which documents give them, what is said of those that do not, what is hidden of a text, and
// that a sample is a function of its number. tests/oracle/masked_data_test.py compares them with megatron-core.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "data/data_fixture.h"
#include "data/data_sets.h"
#include "data/sorted_rows.h"
#include "kinds/encoder/masked_samples.h"
#include "kinds/encoder/sentence_mapping.h"
#include "kinds/encoder/word_masking.h"

namespace megalith {
namespace {

// Documents of 0, 1, 5, 3 and 4 sentences; the fourth has one that is too long.
const std::vector<int64_t> kBegins = {0, 0, 1, 6, 9, 13};
const std::vector<int32_t> kLengths = {9, 4, 5, 6, 7, 8, 10, 513, 10, 3, 3, 20, 2};

TEST(SentenceMapping, ASampleReachesTheTargetAndLeavesNoSentenceByItself) {
  const MappingOptions options{.max_length = 8, .min_sentences = 2};
  const IndexArray mapping = build_sentence_mapping({kBegins, kLengths}, /*short_seq_prob=*/0, options);
  // The third document: 4 + 5 reach 8, and 6 + 7 too, but the sentence that is left would stand by itself.
  EXPECT_EQ(sorted_rows(mapping), (std::vector<std::vector<int64_t>>{{1, 3, 8}, {3, 6, 8}, {9, 13, 8}}));
  EXPECT_EQ(mapping.type(), IndexArray::Type::kUint32);
}

TEST(SentenceMapping, DocumentsThatGiveNothingAreCounted) {
  const LeftOut of_pairs = count_left_out({kBegins, kLengths}, 2), of_one = count_left_out({kBegins, kLengths}, 1);
  EXPECT_EQ(of_pairs.too_few_sentences, 2);
  EXPECT_EQ(of_pairs.long_sentence, 1);
  EXPECT_EQ(of_one.too_few_sentences, 1);
}

TEST(SentenceMapping, EpochsAreNotBrokenOff) {
  MappingOptions options{.max_length = 8, .min_sentences = 2, .num_samples = 4};
  EXPECT_EQ(build_sentence_mapping({kBegins, kLengths}, 0, options).rows(), 6);
  options.num_samples = 3;
  EXPECT_EQ(build_sentence_mapping({kBegins, kLengths}, 0, options).rows(), 3);
  const std::vector<int64_t> begins = {0, 1};
  const std::vector<int32_t> lengths = {7};
  EXPECT_EQ(build_sentence_mapping({begins, lengths}, 0, options).rows(), 0) << "no document has two sentences";
}

SentenceVocabulary test_vocabulary() {
  SentenceVocabulary vocabulary = made_up_vocabulary(200);
  vocabulary.continues_word.resize(200);
  for (size_t id = 100; id < 150; ++id) vocabulary.continues_word[id] = true;
  return vocabulary;
}

TEST(WordMasking, HidesWholeWordsWithinItsBudget) {
  const SentenceVocabulary vocabulary = test_vocabulary();
  std::vector<int64_t> tokens = {vocabulary.cls};
  for (int64_t i = 0; i < 60; ++i) tokens.push_back(i % 3 == 2 ? 100 + i % 50 : 10 + i);  // words of one and two pieces
  tokens.push_back(vocabulary.sep);
  std::set<int64_t> hidden_anywhere;
  for (uint32_t seed = 0; seed < 200; ++seed) {
    NumpyRandomState random(seed);
    const MaskedText text = mask_words(tokens, 60, {.mask_prob = 0.15}, vocabulary, random);
    int64_t count = 0, last = -1;
    for (const MaskedSpan& span : text.spans) {
      EXPECT_GT(span.positions.front(), last) << "spans are in order and do not overlap";
      last = span.positions.back();
      count += std::ssize(span.positions);
      for (size_t i = 0; i < span.positions.size(); ++i) {
        EXPECT_EQ(span.originals[i], tokens[static_cast<size_t>(span.positions[i])]);
        hidden_anywhere.insert(span.positions[i]);
      }
      EXPECT_FALSE(vocabulary.is_continuation(span.originals.front())) << "a word is hidden from its beginning";
      EXPECT_FALSE(vocabulary.is_continuation(tokens[static_cast<size_t>(last + 1)])) << "and to its end";
    }
    EXPECT_LE(count, 9);  // 15 % of 62 is 9.3
    EXPECT_GE(count, 8);  // room for one piece at most is left: the other words have two
  }
  EXPECT_FALSE(hidden_anywhere.contains(0) || hidden_anywhere.contains(61)) << "what frames the text is never hidden";
  EXPECT_EQ(hidden_anywhere.size(), 60U);
}

class SentenceSamplesTest : public DataTest {
 protected:
  // Documents of these numbers of sentences; each sentence has four tokens of its own number.
  std::string write_sentences(std::string_view name, const std::vector<int>& documents) {
    IndexedDatasetWriter writer(path(name), TokenType::kUint16);
    int32_t number = 10;
    for (const int count : documents) {
      for (int i = 0; i < count; ++i) writer.add_sequence(std::vector<int32_t>(4, number++));
      writer.end_document();
    }
    writer.finish();
    return path(name);
  }

  DataSets open(const SampleMaker& maker, const std::string& prefix, int64_t num_samples = 8) {
    DataOptions options;
    if (prefix.empty()) {
      options.mock_data = true;
    } else {
      options.data_path = {prefix};
      options.split = "1,0,0";
    }
    DataSetup setup;
    setup.sequence_length = 40;
    setup.num_samples[0] = num_samples;
    return make_data_sets(options, setup, maker, log_);
  }
};

TEST_F(SentenceSamplesTest, DocumentsOfOneSentenceAreToldWithTheWayOut) {
  const std::shared_ptr<const SampleMaker> pairs = make_bert_samples({.sequence_length = 40}, made_up_vocabulary(200));
  const std::string none = write_sentences("none", {1, 1, 0, 1});
  try {
    open(*pairs, none);
    FAIL() << "no error";
  } catch (const UserError& error) {
    EXPECT_EQ(error.message(), "the train split of " + none +
                                   " (documents 0 to 4 of 4, split \"1,0,0\") gives no sample: 4 of fewer than 2 "
                                   "sentences");
    EXPECT_NE(error.remedy().find("--bert_no_binary_head"), std::string::npos) << error.remedy();
  }
  EXPECT_EQ(logged_.find("give no sample"), std::string::npos);
  open(*pairs, write_sentences("some", {1, 3, 2}));
  EXPECT_NE(logged_.find("1 of 3 documents of the train split"), std::string::npos) << logged_;
  // Without the sentence head one sentence is enough.
  const std::shared_ptr<const SampleMaker> single =
      make_bert_samples({.sequence_length = 40, .has_sentence_head = false}, made_up_vocabulary(200));
  EXPECT_NE(open(*single, none).train, nullptr);
}

TEST_F(SentenceSamplesTest, ASampleDependsOnItsNumberOnly) {
  for (const bool is_t5 : {false, true}) {
    const MaskedSampleOptions options{.sequence_length = 40, .decoder_seq_length = 30};
    const std::shared_ptr<const SampleMaker> maker =
        is_t5 ? make_t5_samples(options, made_up_vocabulary(200)) : make_bert_samples(options, made_up_vocabulary(200));
    const DataSets sets = open(*maker, ""), others = open(*maker, "");
    const Batch together = sets.train->read({.consumed_samples = 2, .micro_batch_size = 4});
    for (int64_t row = 3; row >= 0; --row) {
      const Batch one = others.train->read({.consumed_samples = 2 + row}), same = together.rows(row, 1);
      for (const BatchField& field : one.fields()) {
        EXPECT_TRUE(at::equal(field.tensor, same.at(field.name))) << field.name << " of row " << row;
      }
    }
    EXPECT_EQ(together.at(field::kTokens).size(1), is_t5 ? 30 : 40);
    EXPECT_GT(together.at(field::kLossWeights).sum().item<float>(), 8) << "made-up sentences have something to predict";
  }
}

TEST_F(SentenceSamplesTest, T5SaysWhatIsTooShort) {
  SentenceVocabulary few = made_up_vocabulary(200);
  few.sentinels.resize(1);
  const MaskedSampleOptions half{.sequence_length = 40, .mask_prob = 0.5, .decoder_seq_length = 60};
  const auto message_of_reading = [&](const MaskedSampleOptions& options, const SentenceVocabulary& vocabulary) {
    const DataSets sets = open(*make_t5_samples(options, vocabulary), "", 20);
    return message_of([&] { sets.train->read({.micro_batch_size = 20}); });
  };
  EXPECT_EQ(message_of_reading(half, made_up_vocabulary(200)), "no error");
  const std::string sentinels = message_of_reading(half, few);
  EXPECT_NE(sentinels.find("masked spans, and the vocabulary 1 sentinels"), std::string::npos) << sentinels;
  MaskedSampleOptions narrow = half;
  narrow.decoder_seq_length = 9;
  const std::string decoder = message_of_reading(narrow, made_up_vocabulary(200));
  EXPECT_NE(decoder.find("tokens of the decoder, and decoder_seq_length is 9"), std::string::npos) << decoder;
}

TEST_F(SentenceSamplesTest, TokensOfAnotherVocabularyAreRefused) {
  const std::string prefix = write_sentences("large", std::vector<int>(120, 3));  // ids up to 369
  const DataSets sets = open(*make_bert_samples({.sequence_length = 40}, made_up_vocabulary(200)), prefix, 100);
  const std::string message = message_of([&] { sets.train->read({.micro_batch_size = 100}); });
  EXPECT_NE(message.find("but the vocabulary has 200 ids"), std::string::npos) << message;
}

}  // namespace
}  // namespace megalith
