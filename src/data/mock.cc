// Mock data; see token_source.h. Source: megatron/core/datasets/gpt_dataset.py (MockGPTLowLevelDataset).
#include <vector>

#include "core/error.h"
#include "data/numpy_random.h"
#include "data/token_source.h"

namespace megalith {
namespace {

constexpr int64_t kNumDocuments = 100'000;
constexpr int64_t kMaxLength = 4096;  // exclusive

class MockSource final : public TokenSource {
 public:
  MockSource(int64_t vocab_size, int64_t eod) : vocab_size_(vocab_size), eod_(eod), lengths_(kNumDocuments) {
    NumpyDefaultRng rng(0);
    for (int32_t& length : lengths_) length = static_cast<int32_t>(rng.integer(1, kMaxLength));
  }

  int64_t num_sequences() const override { return kNumDocuments; }
  int64_t sequence_length(int64_t sequence) const override { return lengths_[static_cast<size_t>(sequence)]; }
  void read(int64_t sequence, int64_t offset, int64_t count, int64_t* out) const override {
    const int64_t length = sequence_length(sequence);
    MEGALITH_CHECK(offset >= 0 && count >= 0 && offset + count <= length, "mock document {}: {} + {} of {} tokens",
                   sequence, offset, count, length);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t position = offset + i;
      out[i] = position == length - 1 ? eod_ : (position + 1) % vocab_size_;
    }
  }
  std::string name() const override { return "mock data"; }
  std::string describe(int64_t sequence) const override { return fmt::format("mock data, document {}", sequence); }

 private:
  int64_t vocab_size_, eod_;
  std::vector<int32_t> lengths_;
};

// Sentences that count through a list of ids.
class MockSentences final : public TokenSource {
 public:
  explicit MockSentences(std::vector<int64_t> ids) : ids_(std::move(ids)) {
    constexpr int64_t kNumMockTexts = 10'000, kMostSentences = 13, kMostTokens = 41;  // exclusive
    NumpyDefaultRng rng(0);
    for (int64_t document = 0; document < kNumMockTexts; ++document) {
      document_begins_.push_back(std::ssize(lengths_));
      int64_t place = rng.integer(0, std::ssize(ids_));
      for (int64_t left = rng.integer(2, kMostSentences); left > 0; --left) {
        lengths_.push_back(static_cast<int32_t>(rng.integer(4, kMostTokens)));
        places_.push_back(place);
        place += lengths_.back();
      }
    }
    document_begins_.push_back(std::ssize(lengths_));
  }

  int64_t num_sequences() const override { return std::ssize(lengths_); }
  int64_t sequence_length(int64_t sequence) const override { return lengths_[static_cast<size_t>(sequence)]; }
  int64_t num_documents() const override { return std::ssize(document_begins_) - 1; }
  int64_t document_begin(int64_t document) const override { return document_begins_[static_cast<size_t>(document)]; }
  void read(int64_t sequence, int64_t offset, int64_t count, int64_t* out) const override {
    const int64_t length = sequence_length(sequence);
    MEGALITH_CHECK(offset >= 0 && count >= 0 && offset + count <= length, "mock sentence {}: {} + {} of {} tokens",
                   sequence, offset, count, length);
    const int64_t begin = places_[static_cast<size_t>(sequence)] + offset;
    for (int64_t i = 0; i < count; ++i) out[i] = ids_[static_cast<size_t>((begin + i) % std::ssize(ids_))];
  }
  std::string name() const override { return "mock data"; }
  std::string describe(int64_t sequence) const override { return fmt::format("mock data, sentence {}", sequence); }

 private:
  std::vector<int64_t> ids_;
  std::vector<int32_t> lengths_;
  std::vector<int64_t> places_, document_begins_;  // each sentence's first place in the count; each document's first
                                                   // sentence
};

}  // namespace

void TokenSource::read_lengths(int64_t begin, int64_t end, int32_t* out) const {
  for (int64_t i = begin; i < end; ++i) *out++ = static_cast<int32_t>(sequence_length(i));
}

std::unique_ptr<TokenSource> make_mock_source(int64_t vocab_size, int64_t eod) {
  return std::make_unique<MockSource>(vocab_size, eod);
}

std::unique_ptr<TokenSource> make_mock_sentences(std::vector<int64_t> ids) {
  MEGALITH_CHECK(!ids.empty(), "sentences of no ids");
  return std::make_unique<MockSentences>(std::move(ids));
}

}  // namespace megalith
