// The arrays of the GPT data set; see gpt_indices.h.
//
// Sample k begins (and sample k - 1 ends) at token k·s of the shuffled documents. So no thread needs to walk from the
// first row: each adds up the lengths of its own stretch of documents, and writes the rows that begin in it.
#include "data/gpt_indices.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <thread>
#include <vector>

#include "core/error.h"
#include "data/numpy_random.h"

namespace megalith {
namespace {

constexpr int64_t kExtraToken = 1;  // a sample of s tokens needs s + 1: the last label
constexpr size_t kSmallIndex = size_t{1} << 16;
constexpr size_t kAhead = 24;  // documents whose lengths are on their way from memory

// Runs body(0 … count - 1), each in a thread of its own; the first here.
template <typename Body>
void in_threads(int count, const Body& body) {
  std::vector<std::jthread> threads;
  for (int i = 1; i < count; ++i) threads.emplace_back([&body, i] { body(i); });
  body(0);
}

std::vector<int32_t> make_document_index(ElementRange range, const EpochPlan& plan, NumpyRandomState& rng) {
  std::vector<int32_t> index(static_cast<size_t>(range.size() * plan.num_epochs));
  for (auto epoch = index.begin(); epoch != index.end(); epoch += range.size()) {
    std::iota(epoch, epoch + range.size(), static_cast<int32_t>(range.begin));
  }
  const size_t num_first =
      plan.is_last_separate ? static_cast<size_t>(range.size() * (plan.num_epochs - 1)) : index.size();
  rng.shuffle(std::span(index).first(num_first));
  rng.shuffle(std::span(index).subspan(num_first));
  return index;
}

template <typename T>
std::vector<T> make_sample_index(std::span<const int32_t> lengths, int64_t first_sequence,
                                 const std::vector<int32_t>& documents, int64_t num_samples, int64_t sequence_length,
                                 int num_threads) {
  std::vector<T> index(static_cast<size_t>(2 * (num_samples + 1)));
  const auto length_at = [&](size_t position) -> int64_t {
    return lengths[static_cast<size_t>(documents[position] - first_sequence)];
  };
  // Two threads would only do the sums twice.
  const auto num_parts = static_cast<size_t>(documents.size() < kSmallIndex || num_threads < 3 ? 1 : num_threads);
  const auto begin_of = [&](size_t part) { return documents.size() / num_parts * part; };
  const auto end_of = [&](size_t part) { return part + 1 == num_parts ? documents.size() : begin_of(part + 1); };
  std::vector<int64_t> first_token(num_parts, 0);
  if (num_parts > 1) {
    std::vector<int64_t> sums(num_parts, 0);
    in_threads(static_cast<int>(num_parts), [&](int part) {
      int64_t sum = 0;
      for (size_t p = begin_of(static_cast<size_t>(part)); p < end_of(static_cast<size_t>(part)); ++p)
        sum += length_at(p);
      sums[static_cast<size_t>(part)] = sum;
    });
    for (size_t part = 1; part < num_parts; ++part) first_token[part] = first_token[part - 1] + sums[part - 1];
  }
  std::vector<int64_t> ends(num_parts, 0);  // the first row that a part did not reach
  in_threads(static_cast<int>(num_parts), [&](int which) {
    const auto part = static_cast<size_t>(which);
    int64_t token = first_token[part];
    // Row 0 stays (0, 0), even before an empty document.
    int64_t row = std::max<int64_t>(1, div_up(token, sequence_length));
    for (size_t p = begin_of(part); p < end_of(part) && row <= num_samples; ++p) {
      if (p + kAhead < documents.size()) {
        __builtin_prefetch(&lengths[static_cast<size_t>(documents[p + kAhead] - first_sequence)]);
      }
      const int64_t end = token + length_at(p);
      for (; row <= num_samples && row * sequence_length < end; ++row) {
        index[static_cast<size_t>(2 * row)] = static_cast<T>(p);
        index[static_cast<size_t>(2 * row + 1)] = static_cast<T>(row * sequence_length - token);
      }
      token = end;
    }
    ends[part] = row;
  });
  if (ends.back() <= num_samples) {
    // Only a last, partial sample ends beyond the tokens: at the last one.
    MEGALITH_CHECK(ends.back() == num_samples, "{} of {} samples have a place", ends.back(), num_samples);
    index[static_cast<size_t>(2 * num_samples)] = static_cast<T>(documents.size() - 1);
    index[static_cast<size_t>(2 * num_samples + 1)] = static_cast<T>(length_at(documents.size() - 1) - kExtraToken);
  }
  return index;
}

template <typename T>
std::vector<T> make_shuffle_index(const EpochPlan& plan, NumpyRandomState& rng) {
  std::vector<T> index(static_cast<size_t>(plan.num_samples));
  std::iota(index.begin(), index.end(), T{0});
  const size_t num_first = plan.is_last_separate ? static_cast<size_t>(plan.num_samples_before_last) : index.size();
  rng.shuffle(std::span(index).first(num_first));
  rng.shuffle(std::span(index).subspan(num_first));
  return index;
}

}  // namespace

EpochPlan plan_epochs(int64_t tokens_per_epoch, int64_t sequence_length, std::optional<int64_t> wanted,
                      bool keep_partial) {
  const int64_t s = sequence_length;
  MEGALITH_CHECK(tokens_per_epoch > 0 && s > 0, "{} tokens, sequence length {}", tokens_per_epoch, s);
  EpochPlan plan;
  if (wanted) {
    MEGALITH_CHECK(*wanted >= 0 && *wanted <= (INT64_MAX / 4 - kExtraToken) / s, "{} samples of {} tokens", *wanted, s);
    plan.num_epochs = std::max<int64_t>(1, div_up(*wanted * s + kExtraToken, tokens_per_epoch));
  }
  const int64_t num_tokens = plan.num_epochs * tokens_per_epoch;
  plan.num_samples = keep_partial ? div_up(num_tokens - kExtraToken, s) : (num_tokens - kExtraToken) / s;
  if (plan.num_epochs > 1) {
    plan.num_samples_before_last = ((plan.num_epochs - 1) * tokens_per_epoch - kExtraToken) / s;
    const int64_t from_last = *wanted - plan.num_samples_before_last;
    const int64_t samples_per_epoch = (tokens_per_epoch - kExtraToken) / s;
    MEGALITH_CHECK(from_last >= 0 && from_last <= samples_per_epoch + 1, "{} samples from the last epoch of {}",
                   from_last, samples_per_epoch);
    plan.is_last_separate = from_last < static_cast<int64_t>(0.80 * static_cast<double>(samples_per_epoch));
  }
  return plan;
}

GptIndices build_gpt_indices(std::span<const int32_t> lengths, ElementRange range, const EpochPlan& plan,
                             int64_t sequence_length, uint32_t seed, int num_threads) {
  MEGALITH_CHECK(static_cast<int64_t>(lengths.size()) == range.size(), "{} lengths for {} sequences", lengths.size(),
                 range.size());
  NumpyRandomState rng(seed);  // one stream for both shuffles, in this order
  std::vector<int32_t> documents = make_document_index(range, plan, rng);
  GptIndices indices;
  // The sample index needs no random numbers, so it is built while the second shuffle runs.
  const auto shuffle = [&] {
    indices.shuffle_index = plan.num_samples < INT64_C(0xfffffffe)
                                ? IndexArray::of(make_shuffle_index<uint32_t>(plan, rng))
                                : IndexArray::of(make_shuffle_index<int64_t>(plan, rng));
  };
  std::exception_ptr failure;
  std::jthread shuffler;
  if (num_threads > 1) {
    shuffler = std::jthread([&] {
      try {
        shuffle();
      } catch (...) {
        failure = std::current_exception();
      }
    });
  } else {
    shuffle();
  }
  // Offsets are below 2^31, since sequence lengths are.
  indices.sample_index =
      documents.size() <= INT32_MAX
          ? IndexArray::of(make_sample_index<int32_t>(lengths, range.begin, documents, plan.num_samples,
                                                      sequence_length, num_threads),
                           2)
          : IndexArray::of(make_sample_index<int64_t>(lengths, range.begin, documents, plan.num_samples,
                                                      sequence_length, num_threads),
                           2);
  if (shuffler.joinable()) shuffler.join();
  if (failure) std::rethrow_exception(failure);
  indices.document_index = IndexArray::of(std::move(documents));
  return indices;
}

}  // namespace megalith
