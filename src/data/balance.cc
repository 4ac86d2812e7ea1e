#include "data/balance.h"

#include <algorithm>
#include <deque>
#include <numeric>

#include "core/error.h"

namespace megalith {
namespace {

// From the largest, stable.
template <typename T>
std::vector<size_t> by_size(std::span<const T> sizes) {
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return sizes[a] > sizes[b]; });
  return order;
}

// Places of the largest, the second … of `count` things that rise to the middle and fall.
std::vector<int64_t> peak_order(int64_t count) {
  std::deque<int64_t> sizes;  // by place
  for (int64_t size = 0; size < count; ++size) {
    if ((count - size) % 2 == 0) {
      sizes.push_front(size);
    } else {
      sizes.push_back(size);
    }
  }
  std::vector<int64_t> places(static_cast<size_t>(count));
  for (int64_t place = 0; place < count; ++place) {
    places[static_cast<size_t>(sizes[static_cast<size_t>(place)])] = place;
  }
  return places;
}

}  // namespace

std::vector<int64_t> balanced_shares(std::span<const double> work, int64_t dp_size, int64_t micro_batch_size) {
  const int64_t chunk = dp_size * micro_batch_size, num_microbatches = std::ssize(work) / chunk;
  MEGALITH_CHECK(num_microbatches * chunk == std::ssize(work), "{} samples for {} ranks with {} each", work.size(),
                 dp_size, micro_batch_size);
  const std::vector<size_t> order = by_size(work);
  const std::vector<int64_t> places = peak_order(num_microbatches);
  std::vector<int64_t> shares(work.size());
  std::vector<double> sums(static_cast<size_t>(dp_size), 0);
  for (int64_t row = 0; row < num_microbatches; ++row) {
    // From the largest of similar samples on, each to the rank with the least so far.
    std::vector<int64_t> taken(static_cast<size_t>(dp_size), 0);
    for (int64_t i = 0; i < chunk; ++i) {
      const size_t sample = order[static_cast<size_t>(row * chunk + i)];
      size_t least = 0;
      bool is_found = false;
      for (size_t rank = 0; rank < sums.size(); ++rank) {
        if (taken[rank] == micro_batch_size || (is_found && sums[rank] >= sums[least])) continue;
        least = rank, is_found = true;
      }
      const int64_t microbatch = static_cast<int64_t>(least) * num_microbatches + places[static_cast<size_t>(row)];
      shares[static_cast<size_t>(microbatch * micro_batch_size + taken[least]++)] = static_cast<int64_t>(sample);
      sums[least] += work[sample];
    }
  }
  return shares;
}

std::vector<double> pairs_of_context_ranks(std::span<const int64_t> documents, int64_t seq_length, int64_t cp_size) {
  std::vector<double> pairs(static_cast<size_t>(cp_size), 0);
  const int64_t chunk = seq_length / (2 * cp_size);
  int64_t at = 0;
  const auto add = [&](int64_t length) {
    for (int64_t begin = at; begin < at + length;) {
      const int64_t number = std::min(begin / chunk, 2 * cp_size - 1);
      const int64_t chunk_end = number + 1 == 2 * cp_size ? seq_length : (number + 1) * chunk;
      const int64_t end = std::min(at + length, chunk_end);
      // Query i of a document sees i + 1 keys.
      const auto first = static_cast<double>(begin - at), last = static_cast<double>(end - at);
      const int64_t rank = std::min(number, 2 * cp_size - 1 - number);
      pairs[static_cast<size_t>(rank)] += (last * (last + 1) - first * (first + 1)) / 2;
      begin = end;
    }
    at += length;
  };
  for (const int64_t length : documents) add(length);
  if (at < seq_length) add(seq_length - at);
  return pairs;
}

std::vector<size_t> balanced_order(std::span<const int64_t> lengths, int64_t seq_length) {
  const std::vector<size_t> falling = by_size(lengths), rising(falling.rbegin(), falling.rend());
  // Every second one from the front, the others from the back.
  std::vector<size_t> both_ends;
  for (size_t i = 0; i < falling.size(); i += 2) both_ends.push_back(falling[i]);
  for (size_t i = falling.size() / 2 * 2; i-- > 0;) {
    if (i % 2 == 1) both_ends.push_back(falling[i]);
  }
  const auto cost = [&](const std::vector<size_t>& order) {
    std::vector<int64_t> ordered;
    for (const size_t i : order) ordered.push_back(lengths[i]);
    double sum = 0;
    for (const int64_t ranks : {2, 4, 8}) {
      if (seq_length < 2 * ranks) break;
      sum += static_cast<double>(ranks) * std::ranges::max(pairs_of_context_ranks(ordered, seq_length, ranks));
    }
    return sum;
  };
  std::vector<size_t> best = rising;
  double least = cost(best);
  for (const std::vector<size_t>& order : {both_ends, falling}) {
    const double one = cost(order);
    if (one < least) best = order, least = one;
  }
  return best;
}

}  // namespace megalith
