// The order of a data set's rows: passes, shuffling, data-parallel shares. A pure function of the place in the run, in
// constant time (after one permutation a pass, for stored ones), so resuming replays nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/row_mix.h"

namespace megalith {

enum class DataloaderType { kSingle, kCyclic };

// Row at place g of the run, over n rows.
enum class RowOrder {
  kOnce,      // g, for one pass
  kRepeated,  // g % n
  // Place g % n of torch's permutation seeded only by the pass g / n. Ranks take turns. Layout-independent; Megatron's
  // order if a microbatch of all ranks divides n. (Megatron permutes samples of whole microbatches, dropping what all
  // ranks cannot fill.)
  kShuffled,
  // Megatron's: a pass is the microbatches that all ranks can fill; each rank shuffles its own rows. Depends on
  // micro_batch_size and the number of ranks. Source: megatron/legacy/data/data_samplers.py.
  kSharded,
  kPermuted,  // place g % n of a permutation keyed by `key` and the pass g / n (core/permutation.h)
  kMixed,     // RowMix's row at g; rows of its sets are numbered one set after another
};

// A place in the run, and a rank's share of it.
struct DataPosition {
  int64_t consumed_samples = 0;  // of the whole run, before this microbatch of all data-parallel ranks
  int64_t micro_batch_size = 1;
  int64_t dp_rank = 0, dp_size = 1;
  // The step's first sample and its size, for BatchSource::balance(); 0: not a training step's.
  int64_t step_first = 0, step_samples = 0;
  bool operator==(const DataPosition&) const = default;
};

struct PlacedRow {
  int64_t row = 0;
  int64_t place = 0;  // in the run: Batch's sample_index
  bool operator==(const PlacedRow&) const = default;
};

class Order {
 public:
  // name  of the data set, for messages
  // key   of kPermuted
  Order(RowOrder kind, int64_t num_rows, std::string name, uint64_t key = 0);
  Order(RowMix mix, std::string name);  // kMixed
  ~Order();
  Order(Order&&) noexcept;

  // The micro_batch_size rows at this position. UserError when a single pass is used up, without rows, and for kSharded
  // with less than one microbatch a rank or a position that is no whole number of all ranks' microbatches. Thread-safe.
  std::vector<PlacedRow> rows(const DataPosition& position) const;

 private:
  struct Permutation;
  int64_t sharded_row(const DataPosition& position, int64_t i) const;
  void check(const DataPosition& position) const;
  int64_t shuffled(int64_t pass, int64_t size, int64_t place) const;

  RowOrder kind_;
  int64_t num_rows_;
  std::string name_;
  uint64_t key_;
  std::optional<RowMix> mix_;
  std::unique_ptr<Permutation> permutation_;  // the last pass's
};

}  // namespace megalith
