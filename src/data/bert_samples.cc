// BERT's samples; see masked_samples.h.
#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "data/masked_samples.h"
#include "data/sentence_samples.h"
#include "data/word_masking.h"

namespace megalith {
namespace {

constexpr const char* kBertClass = "BERTMaskedWordPieceDataset";
constexpr int64_t kBertFrame = 3;  // [CLS] and two [SEP]

OrderedJson bert_identity(const MaskedSampleOptions& options, const WordMasking& masking) {
  OrderedJson fields = masking_identity(masking, options.short_seq_prob);
  fields["classification_head"] = options.has_sentence_head;
  return fields;
}

// Two segments of a text, or one.
struct Segments {
  std::vector<int64_t> first, second;
  bool is_exchanged = false, is_truncated = false;
};

std::vector<int64_t> joined(const std::vector<std::vector<int64_t>>& sentences, size_t begin, size_t end) {
  std::vector<int64_t> tokens;
  for (size_t i = begin; i < end; ++i) tokens.insert(tokens.end(), sentences[i].begin(), sentences[i].end());
  return tokens;
}

// Tokens are taken from the longer one, the second when they are equal, at one end or the other.
void shorten(Segments& segments, int64_t target, NumpyRandomState& random) {
  std::span<const int64_t> first = segments.first, second = segments.second;
  while (static_cast<int64_t>(first.size() + second.size()) > target) {
    std::span<const int64_t>& longer = first.size() > second.size() ? first : second;
    longer = random.random() < 0.5 ? longer.subspan(1) : longer.first(longer.size() - 1);
    segments.is_truncated = true;
  }
  segments = {
      {first.begin(), first.end()}, {second.begin(), second.end()}, segments.is_exchanged, segments.is_truncated};
}

class BertSamples final : public SentenceSamples {
 public:
  BertSamples(SentenceIndex index, const MaskedSampleOptions& options,
              std::shared_ptr<const SentenceVocabulary> vocabulary, const WordMasking& masking, uint32_t seed)
      : SentenceSamples(std::move(index)),
        options_(options),
        vocabulary_(std::move(vocabulary)),
        masking_(masking),
        seed_(seed) {}

  void read(int64_t index, std::span<int64_t> out) const override {
    const std::vector<std::vector<int64_t>> sentences = index_.sentences(index);
    const int64_t s = options_.sequence_length, target = index_.at(index, 2, 2, s - kBertFrame);
    NumpyRandomState random(static_cast<uint32_t>(seed_ + static_cast<uint64_t>(index)));
    Segments segments = divided(sentences, random);
    shorten(segments, target, random);

    std::vector<int64_t> tokens = {vocabulary_->cls}, types;
    std::ranges::copy(segments.first, std::back_inserter(tokens));
    tokens.push_back(vocabulary_->sep);
    types.resize(tokens.size(), 0);
    if (!segments.second.empty()) {
      std::ranges::copy(segments.second, std::back_inserter(tokens));
      tokens.push_back(vocabulary_->sep);
      types.resize(tokens.size(), 1);
    }
    const MaskedText masked = mask_words(tokens, target, masking_, *vocabulary_, random);
    std::vector<int64_t> labels(tokens.size()), weights(tokens.size());
    for (const MaskedSpan& span : masked.spans) {
      for (size_t i = 0; i < span.positions.size(); ++i) {
        const auto position = static_cast<size_t>(span.positions[i]);
        labels[position] = span.originals[i];
        weights[position] = 1;
      }
    }
    RecordWriter record(out);  // in the order of bert_fields()
    record.tokens(masked.tokens, s, vocabulary_->pad);
    record.tokens(types, s, 0);
    record.tokens(labels, s, 0);
    record.tokens(weights, s, 0);
    record.number(std::ssize(tokens));
    record.number(segments.is_exchanged ? 1 : 0);
    record.number(segments.is_truncated ? 1 : 0);
  }

 private:
  Segments divided(const std::vector<std::vector<int64_t>>& sentences, NumpyRandomState& random) const {
    const size_t count = sentences.size();
    if (!options_.has_sentence_head) return {.first = joined(sentences, 0, count), .second = {}};
    size_t pivot = 1;
    if (count >= 3) pivot = static_cast<size_t>(random.integer(1, static_cast<int64_t>(count)));
    Segments segments{.first = joined(sentences, 0, pivot), .second = joined(sentences, pivot, count)};
    segments.is_exchanged = random.random() < 0.5;
    if (segments.is_exchanged) std::swap(segments.first, segments.second);
    return segments;
  }

  MaskedSampleOptions options_;
  std::shared_ptr<const SentenceVocabulary> vocabulary_;
  WordMasking masking_;
  uint64_t seed_;
};

class BertSampleMaker final : public SentenceSampleMaker {
 public:
  BertSampleMaker(const MaskedSampleOptions& options, SentenceVocabulary vocabulary)
      : SentenceSampleMaker(std::move(vocabulary), bert_fields(options.sequence_length)),
        options_(options),
        masking_{.mask_prob = options.mask_prob} {
    if (options.sequence_length < kBertFrame + 2) {
      throw UserError(
          fmt::format("task bert with seq_length {}: [CLS], two [SEP] and a text do not fit", options.sequence_length),
          "raise seq_length");
    }
  }

  std::string_view class_name() const override { return kBertClass; }
  std::unique_ptr<SampleSource> make(std::shared_ptr<const TokenSource> source, ElementRange range,
                                     const SampleRequest& request, Logger& log) const override {
    const SentenceRules rules{
        .class_name = kBertClass,
        .min_sentences = options_.has_sentence_head ? 2 : 1,
        .remedy = options_.has_sentence_head
                      ? "cut the texts into sentences with 'megalith prepare --split_sentences', or train without the "
                        "sentence head: --bert_no_binary_head"
                      : "cut the texts into sentences with 'megalith prepare --split_sentences'",
        .megatron_fields = dump_json(bert_identity(options_, masking_)),
        .build =
            [&](const DocumentSentences& documents, int64_t, MappingOptions mapping) {
              mapping.max_length = options_.sequence_length - kBertFrame;
              return build_sentence_mapping(documents, options_.short_seq_prob, mapping);
            },
    };
    return std::make_unique<BertSamples>(
        SentenceIndex(std::move(source), range, request, rules, vocabulary_->size, log), options_, vocabulary_,
        masking_, request.seed);
  }

 private:
  MaskedSampleOptions options_;
  WordMasking masking_;
};

}  // namespace

std::vector<RecordField> bert_fields(int64_t s) {
  using Form = RecordField::Form;
  return {{field::kTokens, Form::kTokens, s},
          {field::kTokenTypes, Form::kTokens, s},
          {field::kLabels, Form::kTokens, s},
          {.name = field::kLossWeights, .form = Form::kTokens, .size = s, .is_weight = true},
          {field::kKeyLengths, Form::kNumber, 1},
          {field::kSentenceLabels, Form::kNumber, 1},
          {field::kTruncated, Form::kNumber, 1}};
}

std::unique_ptr<SampleMaker> make_bert_samples(const MaskedSampleOptions& options, SentenceVocabulary vocabulary) {
  return std::make_unique<BertSampleMaker>(options, std::move(vocabulary));
}

}  // namespace megalith
