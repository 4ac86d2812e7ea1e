// What `prepare merge`, `prepare check` and `inspect data` do with finished .bin and .idx files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/log.h"
#include "data/indexed_dataset.h"

namespace megalith {

struct MergeReport {
  int64_t documents = 0, sequences = 0, tokens = 0;
};

// Writes the documents of all data sets, one behind the other, as one: what Megatron's merge_datasets.py writes. The
// output appears when it is whole. UserError when their token types differ, or the output is among the inputs.
MergeReport merge_data_sets(const std::vector<std::string>& prefixes, const std::string& output_prefix, Logger& log);

struct CheckReport {
  std::vector<std::string> faults;  // empty: the data set is sound
  int64_t documents = 0, sequences = 0, tokens = 0, empty_documents = 0;
  int64_t smallest_id = 0, largest_id = 0;  // 0 when there is no token
};

// Reads every token. vocab_size: ids at or above it are faults, like negative ones. Files that cannot be opened as a
// data set are a fault too.
CheckReport check_data_set(const std::string& prefix, std::optional<int64_t> vocab_size, Logger& log);

// Lengths by powers of two: counts[k] sequences have 2^(k-1) < length <= 2^k … ; counts[0] are empty, counts[1] of one.
struct LengthHistogram {
  std::vector<int64_t> counts;
  int64_t shortest = 0, longest = 0;
  double mean = 0;
};
LengthHistogram measure_lengths(const IndexedDataset& data);
// Lines such as "     33 … 64        1.2 k  ########", without empty rows at both ends.
std::string draw(const LengthHistogram& histogram);

}  // namespace megalith
