// BERT's samples; see masked_samples.h.
#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "kinds/encoder/masked_samples.h"
#include "kinds/encoder/sentence_samples.h"
#include "kinds/encoder/word_masking.h"

namespace megalith {
namespace {

constexpr int64_t kBertFrame = 3;  // [CLS] and two [SEP]

// One or two segments of a text.
struct Segments {
  std::vector<int64_t> first, second;
  bool is_exchanged = false, is_truncated = false;
};

// Removes tokens from the longer segment (the second if equal), from a random end.
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

SentenceRules bert_rules(const MaskedSampleOptions& options, const WordMasking& masking) {
  using Form = RecordField::Form;
  const int64_t s = options.sequence_length;
  const bool has_pairs = options.has_sentence_head;
  OrderedJson identity = masking_identity(masking, options.short_seq_prob);
  identity["classification_head"] = has_pairs;
  const std::string remedy = "cut the texts into sentences with 'megalith prepare --split_sentences'";
  return {.class_name = "BERTMaskedWordPieceDataset",
          .fields = {{field::kTokens, Form::kTokens, s},
                     {field::kTokenTypes, Form::kTokens, s},
                     {field::kLabels, Form::kTokens, s},
                     {.name = field::kLossWeights, .form = Form::kTokens, .size = s, .is_weight = true},
                     {field::kKeyLengths, Form::kNumber, 1},
                     {field::kSentenceLabels, Form::kNumber, 1},
                     {field::kTruncated, Form::kNumber, 1}},
          .max_length = s - kBertFrame,
          .min_sentences = has_pairs ? 2 : 1,
          .short_seq_prob = options.short_seq_prob,
          .remedy = has_pairs ? remedy + ", or train without the sentence head: --bert_no_binary_head" : remedy,
          .megatron_fields = dump_json(identity)};
}

class BertSamples final : public SentenceSampleMaker {
 public:
  BertSamples(const MaskedSampleOptions& options, const WordMasking& masking, SentenceVocabulary vocabulary)
      : SentenceSampleMaker(bert_rules(options, masking), std::move(vocabulary)), options_(options), masking_(masking) {
    if (options.sequence_length < kBertFrame + 2) {
      throw UserError(
          fmt::format("task bert with seq_length {}: [CLS], two [SEP] and a text do not fit", options.sequence_length),
          "raise seq_length");
    }
  }

  void write(const SentenceSamples& samples, int64_t index, NumpyRandomState& random,
             RecordWriter& record) const override {
    const int64_t s = options_.sequence_length, target = samples.at(index, 2, 2, s - kBertFrame);
    Segments segments = divided(samples.sentences(index), random);
    shorten(segments, target, random);

    std::vector<int64_t> tokens = {vocabulary().cls}, types;
    std::ranges::copy(segments.first, std::back_inserter(tokens));
    tokens.push_back(vocabulary().sep);
    types.resize(tokens.size(), 0);
    if (!segments.second.empty()) {
      std::ranges::copy(segments.second, std::back_inserter(tokens));
      tokens.push_back(vocabulary().sep);
      types.resize(tokens.size(), 1);
    }
    const MaskedText masked = mask_words(tokens, target, masking_, vocabulary(), random);
    std::vector<int64_t> labels(tokens.size()), weights(tokens.size());
    for (const MaskedSpan& span : masked.spans) {
      for (size_t i = 0; i < span.positions.size(); ++i) {
        const auto position = static_cast<size_t>(span.positions[i]);
        labels[position] = span.originals[i];
        weights[position] = 1;
      }
    }
    // In the order of the rules' fields.
    record.tokens(masked.tokens, s, vocabulary().pad);
    record.tokens(types, s, 0);
    record.tokens(labels, s, 0);
    record.tokens(weights, s, 0);
    record.number(std::ssize(tokens));
    record.number(segments.is_exchanged ? 1 : 0);
    record.number(segments.is_truncated ? 1 : 0);
  }

 private:
  Segments divided(std::span<const std::vector<int64_t>> sentences, NumpyRandomState& random) const {
    if (!options_.has_sentence_head) return {.first = joined_sentences(sentences), .second = {}};
    const size_t count = sentences.size();
    size_t pivot = 1;
    if (count >= 3) pivot = static_cast<size_t>(random.integer(1, static_cast<int64_t>(count)));
    Segments segments{.first = joined_sentences(sentences.first(pivot)),
                      .second = joined_sentences(sentences.subspan(pivot))};
    segments.is_exchanged = random.random() < 0.5;
    if (segments.is_exchanged) std::swap(segments.first, segments.second);
    return segments;
  }

  MaskedSampleOptions options_;
  WordMasking masking_;
};

}  // namespace

std::shared_ptr<const SampleMaker> make_bert_samples(const MaskedSampleOptions& options,
                                                     SentenceVocabulary vocabulary) {
  const WordMasking masking{.mask_prob = options.mask_prob};
  return std::make_shared<BertSamples>(options, masking, std::move(vocabulary));
}

}  // namespace megalith
