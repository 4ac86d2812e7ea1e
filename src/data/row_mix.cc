#include "data/row_mix.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/permutation.h"

namespace megalith {
namespace {

constexpr double kMostRowsOfAPass = 1e15;

// Rows of each set in a pass.
std::vector<int64_t> counts_of(const std::vector<MixedSet>& sets, MixEnd end) {
  double sum = 0, rows = end == MixEnd::kFirstExhausted ? INFINITY : 0;
  for (const MixedSet& set : sets) sum += set.share;
  const auto whole = [&](const MixedSet& set) { return static_cast<double>(set.num_rows) * sum / set.share; };
  for (const MixedSet& set : sets) {
    rows = end == MixEnd::kFirstExhausted ? std::min(rows, whole(set)) : std::max(rows, whole(set));
  }
  std::vector<int64_t> counts;
  for (const MixedSet& set : sets) {
    if (end == MixEnd::kConcat) {
      counts.push_back(set.num_rows);
      continue;
    }
    const double count = rows * set.share / sum;
    if (!(count < kMostRowsOfAPass)) {
      throw UserError(fmt::format("sft_mix: a pass would have {:.3g} rows before each set was read whole", rows),
                      "raise the smallest weight, or take interleave_under");
    }
    counts.push_back(std::llround(count));
    if (counts.back() > 0) continue;
    throw UserError(fmt::format("sft_mix: a pass ends after {:.0f} sequences, of which the set {} has the share "
                                "{:.3g}: none would be drawn",
                                rows, set.name, set.share / sum),
                    "raise its weight, or take interleave_over");
  }
  return counts;
}

}  // namespace

RowMix::RowMix(std::vector<MixedSet> sets, MixEnd end, uint64_t key, bool moves, bool shuffles)
    : sets_(std::move(sets)), begins_{0}, key_(key), moves_(moves), shuffles_(shuffles) {
  for (const MixedSet& set : sets_) {
    MEGALITH_CHECK(set.num_rows > 0 && set.share > 0, "set {}: {} rows, share {}", set.name, set.num_rows, set.share);
    keys_.push_back(make_philox_key(key, fmt::format("set {}", keys_.size())));
  }
  for (const int64_t count : counts_of(sets_, end)) begins_.push_back(begins_.back() + count);
}

RowMix::Row RowMix::at(int64_t place) const {
  const int64_t pass = moves_ ? place / num_rows() : 0;
  const auto draw = [&](uint64_t key, int64_t of_pass, int64_t i, int64_t size) {
    return shuffles_ ? permuted(key, static_cast<uint64_t>(of_pass), i, size) : i;
  };
  const int64_t drawn = draw(key_, pass, place % num_rows(), num_rows());
  const auto set = static_cast<size_t>(std::ranges::upper_bound(begins_, drawn) - begins_.begin() - 1);
  // Its place in the set's own passes.
  const int64_t own = pass * num_rows_of(set) + drawn - begins_[set], n = sets_[set].num_rows;
  return {set, draw(keys_[set], own / n, own % n, n)};
}

int64_t RowMix::number_at(int64_t place) const {
  const Row found = at(place);
  int64_t number = found.row;
  for (size_t set = 0; set < found.set; ++set) number += sets_[set].num_rows;
  return number;
}

}  // namespace megalith
