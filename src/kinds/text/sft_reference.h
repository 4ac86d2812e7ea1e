// A reference model's log-probabilities for the tokens of prepared pairs of answers (sft_set.h). Computed once and
// stored next to the tokens: {prefix}_reference_{digits}.bin and .idx in Megatron's format, the bits of a float32 per
// token (as int32: readers of that format take integers), 0 for the first of a sequence.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/indexed_dataset.h"
#include "kinds/text/sft_set.h"

namespace megalith {

// Prefix of the files; identity: everything besides the tokens that the numbers depend on.
std::string sft_reference_prefix(const SftSet& set, const std::string& identity);
bool has_sft_reference(const std::string& prefix);

// The numbers being computed, for the tokens of all sequences.
class SftReferenceTable {
 public:
  explicit SftReferenceTable(const SftSet& set);
  // The numbers of tokens [offset, …) of a sequence.
  void set(int64_t sequence, int64_t offset, std::span<const float> log_probs);
  void write(const std::string& prefix) const;

 private:
  std::vector<int64_t> begins_;  // of each sequence, and the end
  std::vector<float> values_;
};

class SftReference {
 public:
  // UserError if the files are missing or of other sequences.
  SftReference(const std::string& prefix, const SftSet& set);
  // The numbers of tokens [offset, offset + count) of a sequence.
  void read(int64_t sequence, int64_t offset, int64_t count, float* log_probs) const;

 private:
  IndexedDataset values_;
};

}  // namespace megalith
