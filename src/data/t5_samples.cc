// T5's samples; see masked_samples.h.
#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "data/masked_samples.h"
#include "data/sentence_samples.h"
#include "data/word_masking.h"

namespace megalith {
namespace {

constexpr const char* kT5Class = "T5MaskedWordPieceDataset";
constexpr int64_t kT5Frame = 2;  // Megatron's: the tokens that begin and end a text

class T5Samples final : public SentenceSamples {
 public:
  T5Samples(SentenceIndex index, const MaskedSampleOptions& options,
            std::shared_ptr<const SentenceVocabulary> vocabulary, const WordMasking& masking, uint32_t seed)
      : SentenceSamples(std::move(index)),
        options_(options),
        vocabulary_(std::move(vocabulary)),
        masking_(masking),
        seed_(seed) {}

  void read(int64_t index, std::span<int64_t> out) const override {
    std::vector<int64_t> tokens;
    for (const std::vector<int64_t>& sentence : index_.sentences(index)) {
      std::ranges::copy(sentence, std::back_inserter(tokens));
    }
    const int64_t target = index_.at(index, 2, 2, options_.sequence_length - kT5Frame);
    const bool is_truncated = std::ssize(tokens) > target;
    if (is_truncated) tokens.resize(static_cast<size_t>(target));
    NumpyRandomState random(static_cast<uint32_t>(seed_ + static_cast<uint64_t>(index)));
    const MaskedText masked = mask_words(tokens, target, masking_, *vocabulary_, random);
    const Texts texts = corrupted(masked, index);

    const int64_t s = options_.sequence_length, t = options_.decoder_seq_length;
    const std::vector<int64_t> weights(texts.read.size(), 1);
    RecordWriter record(out);  // in the order of t5_fields()
    record.tokens(texts.encoder, s, vocabulary_->pad);
    record.number(std::ssize(texts.encoder));
    record.tokens(texts.read, t, vocabulary_->pad);
    record.number(std::ssize(texts.read));
    record.tokens(texts.written, t, 0);
    record.tokens(weights, t, 0);
    record.number(is_truncated ? 1 : 0);
  }

 private:
  struct Texts {
    std::vector<int64_t> encoder;        // the text, a sentinel in the place of each span
    std::vector<int64_t> read, written;  // by the decoder: each sentinel and what it stands for
  };

  Texts corrupted(const MaskedText& masked, int64_t index) const {
    const std::vector<int64_t>& sentinels = vocabulary_->sentinels;
    if (masked.spans.size() > sentinels.size()) {
      throw UserError(
          fmt::format("sample {} of {} has {} masked spans, and the vocabulary {} sentinels", index, name(),
                      masked.spans.size(), sentinels.size()),
          fmt::format("raise vocab_extra_ids to {} or more, or lower mask_prob or seq_length", masked.spans.size()));
    }
    Texts texts{{}, {vocabulary_->bos}, {}};
    auto from = masked.tokens.begin();
    for (size_t i = 0; i < masked.spans.size(); ++i) {
      const MaskedSpan& span = masked.spans[i];
      texts.encoder.insert(texts.encoder.end(), from, masked.tokens.begin() + span.positions.front());
      from = masked.tokens.begin() + span.positions.back() + 1;
      for (std::vector<int64_t>* text : {&texts.encoder, &texts.read, &texts.written}) text->push_back(sentinels[i]);
      for (std::vector<int64_t>* text : {&texts.read, &texts.written}) {
        text->insert(text->end(), span.originals.begin(), span.originals.end());
      }
    }
    texts.encoder.insert(texts.encoder.end(), from, masked.tokens.end());
    texts.written.push_back(vocabulary_->eos);
    if (std::ssize(texts.read) > options_.decoder_seq_length) {
      throw UserError(fmt::format("sample {} of {} needs {} tokens of the decoder, and decoder_seq_length is {}", index,
                                  name(), texts.read.size(), options_.decoder_seq_length),
                      "raise decoder_seq_length, or lower mask_prob or seq_length");
    }
    return texts;
  }

  MaskedSampleOptions options_;
  std::shared_ptr<const SentenceVocabulary> vocabulary_;
  WordMasking masking_;
  uint64_t seed_;
};

class T5SampleMaker final : public SentenceSampleMaker {
 public:
  T5SampleMaker(const MaskedSampleOptions& options, SentenceVocabulary vocabulary)
      : SentenceSampleMaker(std::move(vocabulary), t5_fields(options.sequence_length, options.decoder_seq_length)),
        options_(options),
        masking_{.mask_prob = options.mask_prob, .most_words = 10, .is_geometric = true, .masks_all = true} {
    if (options.sequence_length < kT5Frame + 2) {
      throw UserError(fmt::format("task t5 with seq_length {}: no text fits", options.sequence_length),
                      "raise seq_length");
    }
  }

  std::string_view class_name() const override { return kT5Class; }
  std::unique_ptr<SampleSource> make(std::shared_ptr<const TokenSource> source, ElementRange range,
                                     const SampleRequest& request, Logger& log) const override {
    OrderedJson identity = masking_identity(masking_, options_.short_seq_prob);
    identity["sequence_length_decoder"] = options_.decoder_seq_length;
    const SentenceRules rules{
        .class_name = kT5Class,
        .min_sentences = 1,
        .remedy = "cut the texts into sentences with 'megalith prepare --split_sentences'",
        .megatron_fields = dump_json(identity),
        .build =
            [&](const DocumentSentences& documents, int64_t, MappingOptions mapping) {
              mapping.max_length = options_.sequence_length - kT5Frame;
              return build_sentence_mapping(documents, options_.short_seq_prob, mapping);
            },
    };
    return std::make_unique<T5Samples>(SentenceIndex(std::move(source), range, request, rules, vocabulary_->size, log),
                                       options_, vocabulary_, masking_, request.seed);
  }

 private:
  MaskedSampleOptions options_;
  WordMasking masking_;
};

}  // namespace

std::vector<RecordField> t5_fields(int64_t s, int64_t t) {
  using Form = RecordField::Form;
  return {{field::kEncoderTokens, Form::kTokens, s},
          {field::kEncoderKeyLengths, Form::kNumber, 1},
          {field::kTokens, Form::kTokens, t},
          {field::kKeyLengths, Form::kNumber, 1},
          {field::kLabels, Form::kTokens, t},
          {.name = field::kLossWeights, .form = Form::kTokens, .size = t, .is_weight = true},
          {field::kTruncated, Form::kNumber, 1}};
}

std::unique_ptr<SampleMaker> make_t5_samples(const MaskedSampleOptions& options, SentenceVocabulary vocabulary) {
  return std::make_unique<T5SampleMaker>(options, std::move(vocabulary));
}

}  // namespace megalith
