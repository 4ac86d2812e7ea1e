#include "kinds/encoder/word_masking.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

namespace megalith {
namespace {

using Positions = std::vector<int64_t>;

// Positions of every word's pieces.
std::vector<Positions> words_of(std::span<const int64_t> tokens, const SentenceVocabulary& vocabulary) {
  std::vector<Positions> words;
  for (int64_t i = 0; i < std::ssize(tokens); ++i) {
    const int64_t token = tokens[static_cast<size_t>(i)];
    if (token == vocabulary.cls || token == vocabulary.sep) continue;
    if (vocabulary.is_continuation(token) && !words.empty()) {
      words.back().push_back(i);
    } else {
      words.push_back({i});
    }
  }
  return words;
}

// Cumulative probabilities of 1 … most words, proportional to 1/n, in NumPy's order of operations.
std::vector<double> length_bounds(int64_t most_words) {
  std::vector<double> p;
  for (int64_t n = 1; n <= most_words; ++n) p.push_back(1.0 / static_cast<double>(n));
  for (int pass = 0; pass < 2; ++pass) {  // Megatron normalises all, then the part it uses, which is all
    const double sum = std::accumulate(p.begin(), p.end(), 0.0);
    for (double& share : p) share /= sum;
  }
  std::partial_sum(p.begin(), p.end(), p.begin());
  const double last = p.back();
  for (double& bound : p) bound /= last;
  return p;
}

// Number of words of the next run.
int64_t draw_length(const WordMasking& masking, const std::vector<double>& bounds, NumpyRandomState& random) {
  constexpr double kEnds = 0.2;  // probability that a span ends with a word
  if (masking.is_geometric) return std::min(random.geometric(kEnds), masking.most_words);
  // choice(): the interval of a uniform number.
  return std::upper_bound(bounds.begin(), bounds.end(), random.random()) - bounds.begin() + 1;
}

int64_t replacement_of(int64_t token, const SentenceVocabulary& vocabulary, NumpyRandomState& random) {
  constexpr double kMaskedShare = 0.8, kKeptShareOfRest = 0.5;
  if (random.random() < kMaskedShare) return vocabulary.mask;
  return random.random() >= kKeptShareOfRest ? random.integer(0, vocabulary.size) : token;
}

}  // namespace

OrderedJson masking_identity(const WordMasking& masking, double short_seq_prob) {
  OrderedJson fields;
  fields["masking_probability"] = masking.mask_prob;
  fields["short_sequence_probability"] = short_seq_prob;
  fields["masking_max_ngram"] = masking.most_words;
  fields["masking_do_full_word"] = true;
  fields["masking_do_permutation"] = false;
  fields["masking_use_longer_ngrams"] = false;
  fields["masking_use_geometric_distribution"] = masking.is_geometric;
  return fields;
}

MaskedText mask_words(std::span<const int64_t> tokens, int64_t target_length, const WordMasking& masking,
                      const SentenceVocabulary& vocabulary, NumpyRandomState& random) {
  const std::vector<Positions> words = words_of(tokens, vocabulary);
  // nearbyint rounds half to even, as Python does.
  const double share = std::nearbyint(static_cast<double>(tokens.size()) * masking.mask_prob);
  const double budget = std::min(masking.mask_prob * static_cast<double>(target_length), std::max(1.0, share));
  const std::vector<double> bounds = length_bounds(masking.most_words);
  std::vector<int64_t> order(words.size());
  std::iota(order.begin(), order.end(), 0);
  random.shuffle(std::span(order));

  MaskedText text{{tokens.begin(), tokens.end()}, {}};
  std::vector<bool> is_hidden(tokens.size());
  int64_t num_hidden = 0;
  for (const int64_t first : order) {
    if (static_cast<double>(num_hidden) >= budget) break;
    int64_t length = draw_length(masking, bounds, random);
    Positions positions;
    for (; length > 0; --length) {  // the longest run within the budget
      positions.clear();
      for (int64_t word = first; word < std::min(first + length, std::ssize(words)); ++word) {
        const Positions& pieces = words[static_cast<size_t>(word)];
        positions.insert(positions.end(), pieces.begin(), pieces.end());
      }
      if (static_cast<double>(num_hidden + std::ssize(positions)) <= budget) break;
    }
    if (length == 0) continue;
    if (std::ranges::any_of(positions, [&](int64_t i) { return is_hidden[static_cast<size_t>(i)]; })) continue;
    MaskedSpan span{positions, {}};
    for (const int64_t position : positions) {
      const auto i = static_cast<size_t>(position);
      is_hidden[i] = true;
      span.originals.push_back(tokens[i]);
      text.tokens[i] = masking.masks_all ? vocabulary.mask : replacement_of(tokens[i], vocabulary, random);
    }
    num_hidden += std::ssize(positions);
    text.spans.push_back(std::move(span));
  }
  std::ranges::sort(text.spans, {}, [](const MaskedSpan& span) { return span.positions[0]; });
  return text;
}

}  // namespace megalith
