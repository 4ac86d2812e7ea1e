// Prepared instruction data (kinds/text/sft_set.h) with samples that a test chooses or draws.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/file.h"
#include "core/philox.h"
#include "data/indexed_writer.h"
#include "kinds/text/sft_batches.h"

namespace megalith::test {

struct SftSequence {
  std::vector<int32_t> tokens;
  std::vector<uint8_t> weights;
};

// Pairs: the chosen and the rejected sequence by turns.
inline std::string write_sft_set(const std::string& prefix, const std::vector<SftSequence>& sequences, SftForm form) {
  IndexedDatasetWriter tokens(prefix, TokenType::kInt32), mask(prefix + "_mask", TokenType::kUint8);
  const size_t per_sample = form == SftForm::kPairs ? 2 : 1;
  int64_t num_tokens = 0, num_counted = 0, longest = 0, length = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    tokens.add_sequence(sequences[i].tokens);
    mask.add_raw_sequence(std::as_bytes(std::span(sequences[i].weights)));
    for (const uint8_t weight : sequences[i].weights) num_counted += weight;
    num_tokens += std::ssize(sequences[i].tokens);
    length += std::ssize(sequences[i].tokens);
    if ((i + 1) % per_sample != 0) continue;
    tokens.end_document();
    mask.end_document();
    longest = std::max(longest, length);
    length = 0;
  }
  tokens.finish();
  mask.finish();
  write_file_atomic(
      prefix + ".json",
      fmt::format(R"({{"form": {}, "samples": {}, "tokens": {}, "counted": {}, "num_without_loss": 0, "longest": {}, )"
                  R"("longest_place": "rows:1", "encoder": "0", "tokenizer": "none"}})",
                  static_cast<int>(form), sequences.size() / per_sample, num_tokens, num_counted, longest));
  return prefix;
}

// Two to `longest` tokens each, of which the last ones count; ids below vocab_size.
inline std::vector<SftSequence> random_sft_sequences(int count, int longest, int vocab_size, uint64_t seed) {
  const uint64_t key = make_philox_key(seed, "sft sequences");
  uint64_t at = 0;
  const auto draw = [&](int below) { return static_cast<int>(uniform_at(key, at++) * below); };
  std::vector<SftSequence> sequences;
  for (int i = 0; i < count; ++i) {
    SftSequence sequence;
    const int length = 2 + draw(longest - 1), begin = 1 + draw(length - 1);
    for (int k = 0; k < length; ++k) {
      sequence.tokens.push_back(draw(vocab_size));
      sequence.weights.push_back(k >= begin ? 1 : 0);
    }
    sequences.push_back(std::move(sequence));
  }
  return sequences;
}

// Log-probabilities like those of a reference model of 37 tokens: near an untrained one's, so that margins are small
// and the loss is steep.
inline std::shared_ptr<const SftReference> random_sft_reference(const SftSet& set) {
  SftReferenceTable table(set);
  const uint64_t key = make_philox_key(1, "sft reference");
  uint64_t at = 0;
  for (int64_t i = 0; i < set.num_sequences(); ++i) {
    std::vector<float> values;
    for (int64_t k = 1; k < set.sequence_length(i); ++k) {
      values.push_back(static_cast<float>(-3.3 - 0.6 * uniform_at(key, at++)));
    }
    table.set(i, 1, values);
  }
  const std::string prefix = sft_reference_prefix(set, "random");
  table.write(prefix);
  return std::make_shared<const SftReference>(prefix, set);
}

}  // namespace megalith::test
