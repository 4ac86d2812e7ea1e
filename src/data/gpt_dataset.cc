#include "data/gpt_dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <thread>

#include "core/checksum.h"
#include "core/error.h"
#include "core/json.h"
#include "core/number_of.h"
#include "core/strings.h"
#include "data/dataset_identity.h"
#include "data/index_cache.h"

namespace megalith {
namespace {

constexpr int64_t kExtra = 1;  // a sample of s tokens needs s + 1: the last label
constexpr int64_t kMaxDocumentIndex = INT64_C(1) << 38;

std::string class_name_of(const GptDatasetOptions& options) {
  return options.is_mock ? "MockGPTDataset" : "GPTDataset";
}

std::vector<int32_t> lengths_of(const TokenSource& source, ElementRange range) {
  std::vector<int32_t> lengths(static_cast<size_t>(range.size()));
  source.read_lengths(range.begin, range.end, lengths.data());
  return lengths;
}

EpochPlan checked_plan(const TokenSource& source, ElementRange range, const std::vector<int32_t>& lengths,
                       const GptDatasetOptions& options) {
  MEGALITH_CHECK(options.sequence_length > 0, "sequence length {}", options.sequence_length);
  const int64_t tokens_per_epoch = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  const std::string split_words = options.split_text.empty() ? "" : fmt::format(", split \"{}\"", options.split_text);
  if (tokens_per_epoch == 0) {
    throw UserError(fmt::format("the {} split of {} is empty (sequences {} to {} of {}{})", split_name(options.split),
                                source.name(), range.begin, range.end, source.num_sequences(), split_words),
                    "give it a larger weight in --split, more data, or (for validation) --eval_iters 0");
  }
  if (source.num_sequences() > INT32_MAX) {
    throw UserError(fmt::format("{} has {} sequences, more than the index can hold ({})", source.name(),
                                source.num_sequences(), INT32_MAX),
                    "divide it into several data sets and blend them with --data_path");
  }
  const EpochPlan plan = plan_epochs(tokens_per_epoch, options.sequence_length, options.num_samples);
  if (plan.num_samples == 0) {
    throw UserError(fmt::format("the {} split of {} has {} tokens, too few for one sample of seq_length {} + 1",
                                split_name(options.split), source.name(), tokens_per_epoch, options.sequence_length),
                    "give it a larger weight in --split, more data, or a shorter --seq_length");
  }
  if (plan.num_epochs > kMaxDocumentIndex / range.size()) {
    throw UserError(fmt::format("{} of the {} split of {} are {} passes over its {} tokens",
                                number_of(options.num_samples.value_or(0), "sample", "samples"),
                                split_name(options.split), source.name(), plan.num_epochs, tokens_per_epoch),
                    "train for fewer iterations, or give it more data");
  }
  return plan;
}

int num_builders() { return static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1u, 32u)); }

GptIndices build_checked(ElementRange range, const std::vector<int32_t>& lengths, const EpochPlan& plan,
                         const GptDatasetOptions& options) {
  return build_gpt_indices(lengths, range, plan, options.sequence_length, options.seed, num_builders());
}

}  // namespace

GptIndices build_gpt_indices(const TokenSource& source, ElementRange range, const GptDatasetOptions& options) {
  const std::vector<int32_t> lengths = lengths_of(source, range);
  return build_checked(range, lengths, checked_plan(source, range, lengths, options), options);
}

std::string index_notice(const std::string& name, int64_t documents, int64_t samples) {
  // Shuffling accesses memory randomly: 20 to 100 ns an entry, by array size.
  constexpr double kSecondsAnEntry = 60e-9;
  const double seconds = static_cast<double>(documents + samples) * kSecondsAnEntry;
  if (seconds < 2) return "";
  return fmt::format("building the sample index of {}: {} documents and {} samples are put in order, about {}", name,
                     format_count(static_cast<double>(documents)), format_count(static_cast<double>(samples)),
                     format_duration(seconds));
}

GptDataset::GptDataset(std::shared_ptr<const TokenSource> source, ElementRange range, GptDatasetOptions options,
                       Logger& log)
    : source_(std::move(source)), options_(std::move(options)) {
  MEGALITH_CHECK(range.begin >= 0 && range.begin <= range.end && range.end <= source_->num_sequences(),
                 "range {} to {}", range.begin, range.end);
  const std::vector<int32_t> lengths = lengths_of(*source_, range);
  const EpochPlan plan = checked_plan(*source_, range, lengths, options_);
  if (!options_.is_mock) {
    const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
    size_ = {range.size(), tokens, static_cast<double>(tokens) / static_cast<double>(options_.sequence_length)};
  }
  OrderedJson description = megatron_description(class_name_of(options_), *source_, options_);
  IndexCacheKey key{class_name_of(options_),
                    std::string(split_name(options_.split)),
                    {},
                    {"document_index", "sample_index", "shuffle_index"},
                    {},
                    {}};
  identity_ = dump_json(description);
  key.megatron_description = identity_;
  // The same path may hold new data tomorrow.
  description["data"] = {{"sequences", {range.begin, range.end}},
                         {"lengths", checksum128(std::as_bytes(std::span(lengths))).hex()},
                         {"keep_partial", false}};  // a former option; keeps hashes
  key.description = description.dump(4);
  key.fits = [&](const std::vector<IndexArray>& arrays) {
    return arrays[0].columns() == 1 && arrays[0].rows() == range.size() * plan.num_epochs && arrays[1].columns() == 2 &&
           arrays[1].rows() == plan.num_samples + 1 && arrays[2].columns() == 1 && arrays[2].rows() == plan.num_samples;
  };
  const auto give_notice = [&] {
    const std::string notice = index_notice(source_->name(), range.size() * plan.num_epochs, plan.num_samples);
    if (!notice.empty()) log.info("{}", notice);
  };
  key.build_files = [&](const std::vector<std::filesystem::path>& paths) {
    give_notice();
    write_gpt_indices(lengths, range, plan, options_.sequence_length, options_.seed, num_builders(),
                      {.document_index = paths[0], .sample_index = paths[1], .shuffle_index = paths[2]});
  };
  std::vector<IndexArray> arrays = load_or_build_arrays(
      options_.cache_folder, key,
      [&] {
        give_notice();
        GptIndices built = build_checked(range, lengths, plan, options_);
        std::vector<IndexArray> list;
        list.push_back(std::move(built.document_index));
        list.push_back(std::move(built.sample_index));
        list.push_back(std::move(built.shuffle_index));
        return list;
      },
      log);
  indices_ = {std::move(arrays[0]), std::move(arrays[1]), std::move(arrays[2])};
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
  check_index(filled == out.size());
}

}  // namespace megalith
