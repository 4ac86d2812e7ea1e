// Whole-word masking, with NumPy's draws in Megatron's order.
//
// A word is a piece and the pieces after it that continue it ("##ing"). The words are shuffled; from each begins a run
// of 1 … most_words words, masked while the budget lasts: mask_prob of the tokens.
// Source: megatron/core/datasets/masked_dataset.py; Joshi et al. 2019, arXiv:1907.10529, §3.1 (lengths of spans).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/json.h"
#include "data/numpy_random.h"
#include "kinds/encoder/sentence_vocabulary.h"

namespace megalith {

struct WordMasking {
  double mask_prob = 0.15;
  int64_t most_words = 3;  // of a run
  // Distribution of a run's length n in words. false: proportional to 1/n. true: geometric, of mean 5.
  bool is_geometric = false;
  // true: every chosen token becomes the mask token, without a draw. false: BERT's 80 % masked, 10 % random, 10 % kept.
  bool masks_all = false;
};

struct MaskedSpan {
  std::vector<int64_t> positions;  // ascending
  std::vector<int64_t> originals;  // at those positions
};

struct MaskedText {
  std::vector<int64_t> tokens;    // the model's input
  std::vector<MaskedSpan> spans;  // by first position; neighbours are not merged
};

// megatron-core's description of this in its index caches.
OrderedJson masking_identity(const WordMasking& masking, double short_seq_prob);

// target_length  of the tokens' sample; bounds the budget, as in Megatron
// Tokens must be below vocabulary.size; those that frame segments are never chosen.
MaskedText mask_words(std::span<const int64_t> tokens, int64_t target_length, const WordMasking& masking,
                      const SentenceVocabulary& vocabulary, NumpyRandomState& random);

}  // namespace megalith
