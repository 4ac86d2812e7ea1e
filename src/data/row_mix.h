// Rows of several sets in given shares, pass after pass. A pass has a fixed number of rows of each set, in an order
// drawn from the key; each set goes on in the next pass where it stopped, and begins anew, in another order, once it
// was read whole. Or, unshuffled, one set after the other, each in its own order. The row at a place is computed from
// only the place: no memory, and resuming replays nothing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace megalith {

enum class MixEnd {
  kConcat,          // a pass has every row once: shares are those of the sizes
  kFirstExhausted,  // it ends when the first set was read whole: none is repeated
  kAllExhausted,    // it ends when every set was read whole: smaller ones are repeated
};

struct MixedSet {
  std::string name;
  int64_t num_rows = 0;  // at least 1
  double share = 1;      // of rows drawn; relative to the others', ignored by kConcat
};

class RowMix {
 public:
  // moves     false: every pass is the first one again, as evaluations want
  // shuffles  false: the key is unused
  // UserError when a share is too small for a row in a pass, or a pass would be endless.
  RowMix(std::vector<MixedSet> sets, MixEnd end, uint64_t key, bool moves = true, bool shuffles = true);

  int64_t num_rows() const { return begins_.back(); }  // of a pass
  int64_t num_rows_of(size_t set) const { return begins_[set + 1] - begins_[set]; }
  const std::vector<MixedSet>& sets() const { return sets_; }

  struct Row {
    size_t set = 0;
    int64_t row = 0;  // of the set
    bool operator==(const Row&) const = default;
  };
  Row at(int64_t place) const;
  // The same as a number: rows of the sets are numbered one set after another.
  int64_t number_at(int64_t place) const;

 private:
  std::vector<MixedSet> sets_;
  std::vector<int64_t> begins_;  // of each set's rows in an unshuffled pass, and the end
  uint64_t key_;
  std::vector<uint64_t> keys_;  // of each set
  bool moves_, shuffles_;
};

}  // namespace megalith
