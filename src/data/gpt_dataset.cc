// Megatron's GPT data set; see gpt_dataset.h.
#include "data/gpt_dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "core/error.h"
#include "core/json.h"
#include "data/index_cache.h"
#include "data/numpy_random.h"

namespace megalith {
namespace {

constexpr int64_t kExtra = 1;  // a sample of s tokens needs s + 1: the last label

// How many epochs, how many samples, and whether the last epoch is shuffled by itself (when little of it is used, so
// that its documents do not mix into the earlier ones).
struct EpochPlan {
  int64_t num_epochs = 1;
  int64_t num_samples = 0;              // all that the epochs give
  int64_t num_samples_before_last = 0;  // of them before the last epoch
  bool is_last_separate = false;
};

EpochPlan plan_epochs(int64_t tokens_per_epoch, const GptDatasetOptions& options) {
  const int64_t s = options.sequence_length;
  EpochPlan plan;
  if (options.num_samples) {
    const int64_t wanted = *options.num_samples;
    MEGALITH_CHECK(wanted >= 0 && wanted <= (INT64_MAX - kExtra) / s, "{} samples of {} tokens", wanted, s);
    plan.num_epochs = std::max<int64_t>(1, div_up(wanted * s + kExtra, tokens_per_epoch));
  }
  const int64_t num_tokens = plan.num_epochs * tokens_per_epoch;
  const bool round_up = options.keep_partial && options.split == Split::kValid;
  plan.num_samples = round_up ? div_up(num_tokens - kExtra, s) : (num_tokens - kExtra) / s;
  if (plan.num_epochs > 1) {
    plan.num_samples_before_last = ((plan.num_epochs - 1) * tokens_per_epoch - kExtra) / s;
    const int64_t from_last = *options.num_samples - plan.num_samples_before_last;
    const int64_t samples_per_epoch = (tokens_per_epoch - kExtra) / s;
    MEGALITH_CHECK(from_last >= 0 && from_last <= samples_per_epoch + 1, "{} samples from the last epoch of {}",
                   from_last, samples_per_epoch);
    plan.is_last_separate = from_last < static_cast<int64_t>(0.80 * static_cast<double>(samples_per_epoch));
  }
  return plan;
}

std::vector<int32_t> make_document_index(ElementRange range, const EpochPlan& plan, NumpyRandomState& rng) {
  std::vector<int32_t> index(static_cast<size_t>(range.size() * plan.num_epochs));
  for (size_t i = 0; i < index.size(); ++i) {
    index[i] = static_cast<int32_t>(range.begin + static_cast<int64_t>(i) % range.size());
  }
  const size_t num_first =
      plan.is_last_separate ? static_cast<size_t>(range.size() * (plan.num_epochs - 1)) : index.size();
  rng.shuffle(std::span(index).first(num_first));
  rng.shuffle(std::span(index).subspan(num_first));
  return index;
}

// Walks through the documents in their order; a sample ends one token before the next begins, which it shares.
template <typename T>
std::vector<T> make_sample_index(const TokenSource& source, const std::vector<int32_t>& documents, int64_t num_samples,
                                 int64_t sequence_length) {
  std::vector<T> index;
  index.reserve(static_cast<size_t>(2 * (num_samples + 1)));
  size_t position = 0;
  int64_t offset = 0;
  index.push_back(0);
  index.push_back(0);
  for (int64_t sample = 0; sample < num_samples; ++sample) {
    int64_t remaining = sequence_length + kExtra;
    while (remaining > 0) {
      const int64_t size = source.sequence_length(documents[position]);
      const int64_t length = size - offset;
      remaining -= length;
      if (remaining <= 0) {
        offset += remaining + length - kExtra;
      } else if (position + 1 == documents.size()) {
        offset = size - kExtra;
        break;
      } else {
        ++position;
        offset = 0;
      }
    }
    index.push_back(static_cast<T>(position));
    index.push_back(static_cast<T>(offset));
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

IndexCacheKey cache_key(const TokenSource& source, ElementRange range, const GptDatasetOptions& options,
                        int64_t num_tokens) {
  OrderedJson d;
  d["class"] = "GPTDataset";
  d["dataset_path"] = source.name();
  d["num_samples"] = options.num_samples ? OrderedJson(*options.num_samples) : OrderedJson(nullptr);
  d["index_split"] = split_name(options.split);
  d["random_seed"] = options.seed;
  d["sequence_length"] = options.sequence_length;
  d["split"] = options.split_text;
  d["range"] = {range.begin, range.end};
  d["keep_partial"] = options.keep_partial;
  d["tokenizer"] = options.tokenizer_name;
  // The same path may hold new data tomorrow.
  d["num_sequences"] = source.num_sequences();
  d["num_tokens"] = num_tokens;
  return {"GPTDataset",
          std::string(split_name(options.split)),
          d.dump(4),
          {"document_index", "sample_index", "shuffle_index"}};
}

int64_t count_tokens(const TokenSource& source, ElementRange range) {
  int64_t tokens = 0;
  for (int64_t i = range.begin; i < range.end; ++i) tokens += source.sequence_length(i);
  return tokens;
}

}  // namespace

GptIndices build_gpt_indices(const TokenSource& source, ElementRange range, const GptDatasetOptions& options) {
  MEGALITH_CHECK(options.sequence_length > 0, "sequence length {}", options.sequence_length);
  const int64_t tokens_per_epoch = count_tokens(source, range);
  if (tokens_per_epoch == 0) {
    throw UserError(
        fmt::format("the {} split of {} is empty (sequences {} to {} of {}, split \"{}\")", split_name(options.split),
                    source.name(), range.begin, range.end, source.num_sequences(), options.split_text),
        "give it a larger weight in --split, more data, or (for validation) --eval_iters 0");
  }
  if (source.num_sequences() > INT32_MAX) {
    throw UserError(fmt::format("{} has {} sequences, more than the index can hold ({})", source.name(),
                                source.num_sequences(), INT32_MAX),
                    "divide it into several data sets and blend them with --data_path");
  }
  const EpochPlan plan = plan_epochs(tokens_per_epoch, options);
  if (plan.num_samples == 0) {
    throw UserError(fmt::format("the {} split of {} has {} tokens, too few for one sample of seq_length {} + 1",
                                split_name(options.split), source.name(), tokens_per_epoch, options.sequence_length),
                    "give it a larger weight in --split, more data, or a shorter --seq_length");
  }
  NumpyRandomState rng(options.seed);  // one stream for both shuffles, in this order
  std::vector<int32_t> documents = make_document_index(range, plan, rng);
  GptIndices indices;
  // Offsets are below 2^31, since sequence lengths are.
  indices.sample_index =
      documents.size() <= INT32_MAX
          ? IndexArray::of(make_sample_index<int32_t>(source, documents, plan.num_samples, options.sequence_length), 2)
          : IndexArray::of(make_sample_index<int64_t>(source, documents, plan.num_samples, options.sequence_length), 2);
  indices.document_index = IndexArray::of(std::move(documents));
  indices.shuffle_index = plan.num_samples < INT64_C(0xfffffffe)
                              ? IndexArray::of(make_shuffle_index<uint32_t>(plan, rng))
                              : IndexArray::of(make_shuffle_index<int64_t>(plan, rng));
  return indices;
}

GptDataset::GptDataset(std::shared_ptr<const TokenSource> source, ElementRange range, GptDatasetOptions options,
                       Logger& log)
    : source_(std::move(source)), options_(std::move(options)) {
  MEGALITH_CHECK(range.begin >= 0 && range.begin <= range.end && range.end <= source_->num_sequences(),
                 "range {} to {}", range.begin, range.end);
  const IndexCacheKey key = cache_key(*source_, range, options_, count_tokens(*source_, range));
  std::vector<IndexArray> arrays = load_or_build_arrays(
      options_.cache_folder, key,
      [&] {
        GptIndices built = build_gpt_indices(*source_, range, options_);
        std::vector<IndexArray> list;
        list.push_back(std::move(built.document_index));
        list.push_back(std::move(built.sample_index));
        list.push_back(std::move(built.shuffle_index));
        return list;
      },
      log);
  indices_ = {std::move(arrays[0]), std::move(arrays[1]), std::move(arrays[2])};
  check_shapes();
}

void GptDataset::check_shapes() const {
  if (indices_.document_index.columns() != 1 || indices_.shuffle_index.columns() != 1 ||
      indices_.sample_index.columns() != 2 || indices_.sample_index.rows() != indices_.shuffle_index.rows() + 1) {
    throw UserError(fmt::format("the index cache of {} does not fit together", source_->name()),
                    "delete the folder " + options_.cache_folder.value_or("").string());
  }
}

void GptDataset::read(int64_t index, std::span<int64_t> out) const {
  MEGALITH_CHECK(static_cast<int64_t>(out.size()) == options_.sequence_length + kExtra, "{} places for {} + 1 tokens",
                 out.size(), options_.sequence_length);
  MEGALITH_CHECK(index >= 0 && index < num_samples(), "sample {} of {}", index, num_samples());
  const auto check_index = [&](bool holds) {
    if (!holds) {
      throw UserError(fmt::format("the index cache of {} is damaged (sample {})", source_->name(), index),
                      "delete the folder " + options_.cache_folder.value_or("").string());
    }
  };
  const int64_t row = indices_.shuffle_index.at(index);
  check_index(row >= 0 && row < num_samples());
  const int64_t first = indices_.sample_index.at(row, 0), last = indices_.sample_index.at(row + 1, 0);
  check_index(first >= 0 && first <= last && last < indices_.document_index.rows());

  size_t filled = 0;
  for (int64_t position = first; position <= last; ++position) {
    const int64_t sequence = indices_.document_index.at(position);
    check_index(sequence >= 0 && sequence < source_->num_sequences());
    const int64_t begin = position == first ? indices_.sample_index.at(row, 1) : 0;
    const int64_t end =
        position == last ? indices_.sample_index.at(row + 1, 1) + kExtra : source_->sequence_length(sequence);
    check_index(begin >= 0 && begin <= end && end <= source_->sequence_length(sequence) &&
                filled + static_cast<size_t>(end - begin) <= out.size());
    const std::span<int64_t> part = out.subspan(filled, static_cast<size_t>(end - begin));
    source_->read(sequence, begin, end - begin, part.data());
    for (const int64_t token : part) {
      if (token < 0 || token >= options_.vocab_size) {
        throw UserError(
            fmt::format("{} holds the token id {}, but the vocabulary has {} ids", source_->describe(sequence), token,
                        options_.vocab_size),
            "the data was made with another tokenizer: prepare it again, or set the vocabulary size to fit");
      }
    }
    filled += part.size();
  }
  std::fill(out.begin() + static_cast<std::ptrdiff_t>(filled), out.end(), options_.pad_id);
}

}  // namespace megalith
