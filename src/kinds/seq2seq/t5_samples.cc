// T5's samples; see masked_samples.h.
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "kinds/encoder/masked_samples.h"
#include "kinds/encoder/sentence_samples.h"
#include "kinds/encoder/word_masking.h"

namespace megalith {
namespace {

constexpr int64_t kT5Frame = 2;  // Megatron's: the tokens that begin and end a text

SentenceRules t5_rules(const MaskedSampleOptions& options, const WordMasking& masking) {
  using Form = RecordField::Form;
  const int64_t s = options.sequence_length, t = options.decoder_seq_length;
  OrderedJson identity = masking_identity(masking, options.short_seq_prob);
  identity["sequence_length_decoder"] = t;
  return {.class_name = "T5MaskedWordPieceDataset",
          .fields = {{field::kEncoderTokens, Form::kTokens, s},
                     {field::kEncoderKeyLengths, Form::kNumber, 1},
                     {field::kTokens, Form::kTokens, t},
                     {field::kKeyLengths, Form::kNumber, 1},
                     {field::kLabels, Form::kTokens, t},
                     {.name = field::kLossWeights, .form = Form::kTokens, .size = t, .is_weight = true},
                     {field::kTruncated, Form::kNumber, 1}},
          .max_length = s - kT5Frame,
          .short_seq_prob = options.short_seq_prob,
          .remedy = "cut the texts into sentences with 'megalith prepare --split_sentences'",
          .megatron_fields = dump_json(identity)};
}

class T5Samples final : public SentenceSampleMaker {
 public:
  T5Samples(const MaskedSampleOptions& options, const WordMasking& masking, SentenceVocabulary vocabulary)
      : SentenceSampleMaker(t5_rules(options, masking), std::move(vocabulary)), options_(options), masking_(masking) {
    if (options.sequence_length < kT5Frame + 2) {
      throw UserError(fmt::format("task t5 with seq_length {}: no text fits", options.sequence_length),
                      "raise seq_length");
    }
  }

  void write(const SentenceSamples& samples, int64_t index, NumpyRandomState& random,
             RecordWriter& record) const override {
    std::vector<int64_t> tokens = joined_sentences(samples.sentences(index));
    const int64_t target = samples.at(index, 2, 2, options_.sequence_length - kT5Frame);
    const bool is_truncated = std::ssize(tokens) > target;
    if (is_truncated) tokens.resize(static_cast<size_t>(target));
    const MaskedText masked = mask_words(tokens, target, masking_, vocabulary(), random);
    const Texts texts = corrupted(masked, index, samples.name());

    const int64_t s = options_.sequence_length, t = options_.decoder_seq_length;
    const std::vector<int64_t> weights(texts.read.size(), 1);
    // In the order of the rules' fields.
    record.tokens(texts.encoder, s, vocabulary().pad);
    record.number(std::ssize(texts.encoder));
    record.tokens(texts.read, t, vocabulary().pad);
    record.number(std::ssize(texts.read));
    record.tokens(texts.written, t, 0);
    record.tokens(weights, t, 0);
    record.number(is_truncated ? 1 : 0);
  }

 private:
  struct Texts {
    std::vector<int64_t> encoder;        // the text, with a sentinel instead of each span
    std::vector<int64_t> read, written;  // by the decoder: each sentinel and its span
  };

  Texts corrupted(const MaskedText& masked, int64_t index, const std::string& name) const {
    const std::vector<int64_t>& sentinels = vocabulary().sentinels;
    if (masked.spans.size() > sentinels.size()) {
      throw UserError(
          fmt::format("sample {} of {} has {} masked spans, and the vocabulary {} sentinels", index, name,
                      masked.spans.size(), sentinels.size()),
          fmt::format("raise vocab_extra_ids to {} or more, or lower mask_prob or seq_length", masked.spans.size()));
    }
    Texts texts{{}, {vocabulary().bos}, {}};
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
    texts.written.push_back(vocabulary().eos);
    if (std::ssize(texts.read) > options_.decoder_seq_length) {
      throw UserError(fmt::format("sample {} of {} needs {} tokens of the decoder, and decoder_seq_length is {}", index,
                                  name, texts.read.size(), options_.decoder_seq_length),
                      "raise decoder_seq_length, or lower mask_prob or seq_length");
    }
    return texts;
  }

  MaskedSampleOptions options_;
  WordMasking masking_;
};

}  // namespace

std::shared_ptr<const SampleMaker> make_t5_samples(const MaskedSampleOptions& options, SentenceVocabulary vocabulary) {
  const WordMasking masking{.mask_prob = options.mask_prob, .most_words = 10, .is_geometric = true, .masks_all = true};
  return std::make_shared<T5Samples>(options, masking, std::move(vocabulary));
}

}  // namespace megalith
