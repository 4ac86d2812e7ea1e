// The arrays of the GPT data set; see gpt_indices.h.
//
// Sample k begins (and k - 1 ends) at token k·s of the shuffled documents. So each thread can sum the lengths of its
// own range of documents and write the rows that begin in it.
#include "data/gpt_indices.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>

#include "core/error.h"
#include "core/on_threads.h"
#include "data/numpy_random.h"

namespace megalith {
namespace {

constexpr int64_t kExtraToken = 1;  // a sample of s tokens needs s + 1: the last label
constexpr size_t kSmallIndex = size_t{1} << 16;
constexpr size_t kAhead = 24;  // documents whose lengths are prefetched

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

// Sink for runs of rows; several threads call it, each with rows of its own.
template <typename T>
using PutRows = std::function<void(int64_t first_row, std::span<const T> values)>;

// Buffers consecutive rows.
template <typename T>
class RowRun {
 public:
  RowRun(int64_t first_row, const PutRows<T>& put) : first_row_(first_row), put_(put) {}
  void add(int64_t position, int64_t offset) {
    values_.push_back(static_cast<T>(position));
    values_.push_back(static_cast<T>(offset));
    if (values_.size() == kMostValues) flush();
  }
  void flush() {
    if (!values_.empty()) put_(first_row_, values_);
    first_row_ += std::ssize(values_) / 2;
    values_.clear();
  }

 private:
  static constexpr size_t kMostValues = size_t{1} << 17;
  int64_t first_row_;
  const PutRows<T>& put_;
  std::vector<T> values_;
};

struct SampleCuts {
  std::span<const int32_t> lengths;
  int64_t first_sequence = 0;  // of the first length
  const std::vector<int32_t>& documents;
  int64_t num_samples = 0, sequence_length = 0;
  int num_threads = 1;
};

template <typename T>
void make_sample_index(const SampleCuts& cuts, const PutRows<T>& put) {
  const auto& [lengths, first_sequence, documents, num_samples, sequence_length, num_threads] = cuts;
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
    for_each_on_threads(num_parts, num_parts, [&](size_t part) {
      int64_t sum = 0;
      for (size_t p = begin_of(part); p < end_of(part); ++p) sum += length_at(p);
      sums[part] = sum;
    });
    for (size_t part = 1; part < num_parts; ++part) first_token[part] = first_token[part - 1] + sums[part - 1];
  }
  std::vector<int64_t> ends(num_parts, 0);  // first row after each part
  for_each_on_threads(num_parts, num_parts, [&](size_t part) {
    int64_t token = first_token[part];
    // Row 0 stays (0, 0), even before an empty document.
    int64_t row = std::max<int64_t>(1, div_up(token, sequence_length));
    RowRun<T> rows(part == 0 ? 0 : row, put);
    if (part == 0) rows.add(0, 0);
    for (size_t p = begin_of(part); p < end_of(part) && row <= num_samples; ++p) {
      if (p + kAhead < documents.size()) {
        __builtin_prefetch(&lengths[static_cast<size_t>(documents[p + kAhead] - first_sequence)]);
      }
      const int64_t end = token + length_at(p);
      for (; row <= num_samples && row * sequence_length < end; ++row) {
        rows.add(static_cast<int64_t>(p), row * sequence_length - token);
      }
      token = end;
    }
    rows.flush();
    ends[part] = row;
  });
  MEGALITH_CHECK(ends.back() > num_samples, "{} of {} samples have a place", ends.back(), num_samples);
}

template <typename T>
IndexArray held_sample_index(const SampleCuts& cuts) {
  std::vector<T> index(static_cast<size_t>(2 * (cuts.num_samples + 1)));
  make_sample_index<T>(cuts, [&](int64_t first_row, std::span<const T> values) {
    std::copy(values.begin(), values.end(), index.begin() + 2 * first_row);
  });
  return IndexArray::of(std::move(index), 2);
}

template <typename T>
void write_sample_index(const SampleCuts& cuts, const std::filesystem::path& path) {
  NpyWriter file(path, IndexArray::type_of<T>(), cuts.num_samples + 1, 2);
  make_sample_index<T>(
      cuts, [&](int64_t first_row, std::span<const T> values) { file.write(first_row, std::as_bytes(values)); });
  file.commit();
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

IndexArray shuffle_index_of(const EpochPlan& plan, NumpyRandomState& rng) {
  return plan.num_samples < INT64_C(0xfffffffe) ? IndexArray::of(make_shuffle_index<uint32_t>(plan, rng))
                                                : IndexArray::of(make_shuffle_index<int64_t>(plan, rng));
}

}  // namespace

EpochPlan plan_epochs(int64_t tokens_per_epoch, int64_t sequence_length, std::optional<int64_t> wanted) {
  const int64_t s = sequence_length;
  MEGALITH_CHECK(tokens_per_epoch > 0 && s > 0, "{} tokens, sequence length {}", tokens_per_epoch, s);
  EpochPlan plan;
  if (wanted) {
    MEGALITH_CHECK(*wanted >= 0 && *wanted <= (INT64_MAX / 4 - kExtraToken) / s, "{} samples of {} tokens", *wanted, s);
    plan.num_epochs = std::max<int64_t>(1, div_up(*wanted * s + kExtraToken, tokens_per_epoch));
  }
  const int64_t num_tokens = plan.num_epochs * tokens_per_epoch;
  plan.num_samples = (num_tokens - kExtraToken) / s;
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
  // Offsets are below 2^31, as sequence lengths are.
  const auto make = documents.size() <= INT32_MAX ? held_sample_index<int32_t> : held_sample_index<int64_t>;
  // The sample index draws nothing, so it overlaps the second shuffle.
  for_each_on_threads(2, static_cast<size_t>(num_threads), [&](size_t i) {
    if (i == 1) {
      indices.shuffle_index = shuffle_index_of(plan, rng);
      return;
    }
    indices.sample_index = make({lengths, range.begin, documents, plan.num_samples, sequence_length, num_threads});
  });
  indices.document_index = IndexArray::of(std::move(documents));
  return indices;
}

void write_gpt_indices(std::span<const int32_t> lengths, ElementRange range, const EpochPlan& plan,
                       int64_t sequence_length, uint32_t seed, int num_threads, const GptIndexFiles& files) {
  NumpyRandomState rng(seed);
  {
    std::vector<int32_t> documents = make_document_index(range, plan, rng);
    const auto write = documents.size() <= INT32_MAX ? write_sample_index<int32_t> : write_sample_index<int64_t>;
    write({lengths, range.begin, documents, plan.num_samples, sequence_length, num_threads}, files.sample_index);
    IndexArray::of(std::move(documents)).save_npy(files.document_index);
  }
  shuffle_index_of(plan, rng).save_npy(files.shuffle_index);
}

}  // namespace megalith
