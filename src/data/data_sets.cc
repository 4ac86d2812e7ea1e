// From options to batches; see data_sets.h. Source: megatron/core/datasets/blended_megatron_dataset_builder.py.
#include "data/data_sets.h"

#include <ATen/ops/tensor.h>

#include <cmath>
#include <map>
#include <thread>

#include "core/error.h"
#include "core/on_threads.h"
#include "data/blend.h"
#include "data/gpt_dataset.h"
#include "data/indexed_dataset.h"
#include "data/throw_errors.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

constexpr const char* kMockSplit = "1,1,1";

class Builder {
 public:
  Builder(const DataOptions& options, const DataSetup& setup, const SampleMaker& maker, Logger& log)
      : options_(options), setup_(setup), maker_(maker), log_(log) {}

  // A split of a blend; null if its weight is 0. split_text is empty for a split with its own blend.
  std::unique_ptr<SampleSource> build(const BlendSpec& blend, Split split, const std::string& split_text) {
    const std::optional<int64_t> wanted = setup_.num_samples[static_cast<size_t>(split)];
    if (!split_text.empty() && parse_split(split_text)[static_cast<size_t>(split)] == 0) return nullptr;
    if (!split_text.empty() && !options_.split && split != Split::kTrain && has_empty_part(blend, split, split_text)) {
      // With default shares it is no error if a small data set lacks this split.
      log_.note("the data set is too small for a {} split by the default {}: there is none", split_name(split),
                split_text);
      return nullptr;
    }
    // As in Megatron: a per-split path ignores its only data set's weight; in data_path the weight makes it a blend.
    if (blend.is_single() || (split_text.empty() && blend.prefixes.size() == 1)) {
      return build_one(open(blend.prefixes[0]), split, split_text, wanted);
    }

    std::vector<double> weights = blend.weights;
    std::vector<std::optional<int64_t>> held(blend.prefixes.size());
    std::optional<int64_t> size;
    if (!weights.empty() && wanted) {
      weights = normalize_weights(weights);
      size = 0;
      for (size_t i = 0; i < held.size(); ++i) {
        const double target = std::ceil(static_cast<double>(*wanted) * weights[i]);
        held[i] = static_cast<int64_t>(std::ceil(target * (1 + options_.mid_level_dataset_surplus)));
        *size += static_cast<int64_t>(target);
      }
    }
    std::vector<std::unique_ptr<SampleSource>> parts = build_parts(blend, split, split_text, held);
    if (weights.empty()) {
      // Unweighted data sets each give one pass, mixed in proportion to length.
      int64_t available = 0;
      for (const auto& part : parts) {
        weights.push_back(static_cast<double>(part->num_samples()));
        available += part->num_samples();
      }
      if (wanted) size = std::min(*wanted, available);
    } else if (!size) {
      size = exhaustible_size(parts, normalize_weights(weights));
    }
    return std::make_unique<BlendedDataset>(std::move(parts), weights, size, split, blend_cache_folder(), log_);
  }

  std::unique_ptr<SampleSource> build_one(std::shared_ptr<const TokenSource> source, Split split,
                                          const std::string& split_text, std::optional<int64_t> num_samples) const {
    SampleRequest request;
    request.split = split;
    request.split_text = split_text;
    request.num_samples = num_samples;
    request.seed = setup_.seed;
    request.sequence_length = setup_.sequence_length;
    request.is_mock = options_.mock_data;
    if (options_.data_cache_path) {
      request.cache_folder = *options_.data_cache_path;
    } else if (!request.is_mock) {
      request.cache_folder = fs::path(source->name()) / "cache" / fmt::format("{}_indices", maker_.class_name());
    }
    const ElementRange range = range_of(*source, split, split_text);
    return maker_.make(std::move(source), range, request, log_);
  }

  // Maps a data set once for all splits.
  std::shared_ptr<const TokenSource> open(const std::string& path) {
    std::shared_ptr<const TokenSource>& source = open_[data_prefix(path)];
    if (!source) source = std::make_shared<IndexedDataset>(path);
    return source;
  }

 private:
  ElementRange range_of(const TokenSource& source, Split split, const std::string& split_text) const {
    const int64_t num_elements = maker_.num_elements(source);
    if (split_text.empty()) return {0, num_elements};
    return split_ranges(parse_split(split_text), num_elements)[static_cast<size_t>(split)].value_or(ElementRange{});
  }

  // Opens a blend's data sets concurrently; throws the first bad one's error.
  std::vector<std::unique_ptr<SampleSource>> build_parts(const BlendSpec& blend, Split split,
                                                         const std::string& split_text,
                                                         const std::vector<std::optional<int64_t>>& held) {
    std::vector<std::shared_ptr<const TokenSource>> sources;
    for (const std::string& prefix : blend.prefixes) sources.push_back(open(prefix));
    std::vector<std::unique_ptr<SampleSource>> parts(sources.size());
    for_each_on_threads(parts.size(), std::max(1u, std::thread::hardware_concurrency()),
                        [&](size_t i) { parts[i] = build_one(sources[i], split, split_text, held[i]); });
    return parts;
  }

  bool has_empty_part(const BlendSpec& blend, Split split, const std::string& split_text) {
    for (const std::string& prefix : blend.prefixes) {
      if (range_of(*open(prefix), split, split_text).size() == 0) return true;
    }
    return false;
  }

  // One pass over a weighted blend ends where the first data set would run out.
  static int64_t exhaustible_size(const std::vector<std::unique_ptr<SampleSource>>& parts,
                                  const std::vector<double>& normalized) {
    double size = INFINITY;
    for (size_t i = 0; i < parts.size(); ++i) {
      // The greedy choice is never a whole sample ahead of its weight.
      size = std::min(size, static_cast<double>(parts[i]->num_samples() - 1) / normalized[i]);
    }
    return std::max<int64_t>(1, static_cast<int64_t>(size));
  }

  std::optional<fs::path> blend_cache_folder() const {
    return options_.data_cache_path ? std::optional<fs::path>(*options_.data_cache_path) : std::nullopt;
  }

  const DataOptions& options_;
  const DataSetup& setup_;
  const SampleMaker& maker_;
  Logger& log_;
  std::map<std::string, std::shared_ptr<const TokenSource>> open_;
};

// A blend's rows, with the number of their data set.
class BlendedRows final : public RowReader {
 public:
  // blend  read by rows
  BlendedRows(std::shared_ptr<RowReader> rows, const BlendedDataset& blend) : rows_(std::move(rows)), blend_(blend) {}

  int64_t num_rows() const override { return rows_->num_rows(); }
  std::string name() const override { return rows_->name(); }
  std::optional<DataSize> size() const override { return rows_->size(); }
  Batch read(std::span<const int64_t> rows) const override {
    Batch batch = rows_->read(rows);
    std::vector<int64_t> ids;
    for (const int64_t row : rows) ids.push_back(blend_.locate(row).first);
    batch.set(BatchField::of_rows(field::kSetIds, at::tensor(ids, at::kLong)));
    return batch;
  }

 private:
  std::shared_ptr<RowReader> rows_;
  const BlendedDataset& blend_;
};

const std::vector<std::string>& paths_of(const DataOptions& options, Split split) {
  return split == Split::kTrain   ? options.train_data_path
         : split == Split::kValid ? options.valid_data_path
                                  : options.test_data_path;
}

class TextSamples final : public SampleMaker {
 public:
  TextSamples(const DataOptions& options, const DataSetup& setup) : options_(options), setup_(setup) {}

  std::string_view class_name() const override { return "GPTDataset"; }
  int64_t num_elements(const TokenSource& source) const override { return source.num_sequences(); }
  std::unique_ptr<TokenSource> make_mock() const override {
    if (!setup_.eod || setup_.vocab_size == INT64_MAX) {
      throw UserError("mock_data needs the vocabulary size and the end-of-document id",
                      "give --vocab_size, a model preset, or --tokenizer_model");
    }
    return make_mock_source(setup_.vocab_size, *setup_.eod);
  }
  std::unique_ptr<SampleSource> make(std::shared_ptr<const TokenSource> source, ElementRange range,
                                     const SampleRequest& request, Logger& log) const override {
    const GptDatasetOptions gpt{request, setup_.vocab_size};
    return std::make_unique<GptDataset>(std::move(source), range, gpt, log);
  }
  std::shared_ptr<RowReader> rows_of(std::unique_ptr<SampleSource> samples) const override {
    return make_text_rows(std::move(samples), {.sequence_length = setup_.sequence_length,
                                               .eod = setup_.eod,
                                               .pad_id = setup_.pad_id,
                                               .reset_position_ids = options_.reset_position_ids,
                                               .reset_attention_mask = options_.reset_attention_mask,
                                               .eod_mask_loss = options_.eod_mask_loss});
  }

 private:
  const DataOptions& options_;
  const DataSetup& setup_;
};

}  // namespace

DataSets make_splits(const DataSetup& setup,
                     const std::function<std::unique_ptr<BatchSource>(Split, std::optional<int64_t>)>& make) {
  DataSets sets;
  for (const Split split : kSplits) {
    const std::optional<int64_t> num_samples = setup.num_samples[static_cast<size_t>(split)];
    if (num_samples != 0) sets.set(split, make(split, num_samples));
  }
  return sets;
}

void add_validation_sets(
    const DataOptions& options, const DataSetup& setup, DataSets& sets,
    const std::function<std::unique_ptr<BatchSource>(const std::string&, std::optional<int64_t>)>& make) {
  const std::optional<int64_t> num_samples = setup.num_samples[static_cast<size_t>(Split::kValid)];
  if (num_samples == 0) return;
  for (const ValidationSet& set : validation_sets(options)) {
    sets.valid_sets.emplace_back("validation-" + set.name, make(set.path, num_samples));
  }
}

std::vector<NamedSource> DataSets::evaluated(Split split) const {
  std::vector<NamedSource> sources;
  if (BatchSource* source = of(split)) {
    sources.push_back({split == Split::kTest ? "test" : split == Split::kValid ? "validation" : "train", source});
  }
  if (split != Split::kValid) return sources;
  for (const auto& [name, source] : valid_sets) sources.push_back({name, source.get()});
  return sources;
}

std::vector<BatchSource*> DataSets::all() const {
  std::vector<BatchSource*> sources;
  for (const Split split : kSplits) {
    for (const NamedSource& one : evaluated(split)) sources.push_back(one.source);
  }
  return sources;
}

DataSets make_data_sets(const DataOptions& options, const DataSetup& setup, Logger& log) {
  return make_data_sets(options, setup, TextSamples(options, setup), log);
}

DataSets make_data_sets(const DataOptions& given, const DataSetup& setup, const SampleMaker& maker, Logger& log) {
  throw_errors(check_data_options(given));
  const DataOptions options = with_listed_paths(given);
  check_data_set_names(options);
  MEGALITH_CHECK(setup.sequence_length > 0, "sequence length {}", setup.sequence_length);
  if (!options.data_path.empty() && !options.split) {
    log.note("split is not given: {} of data_path go to training, validation and test", kDefaultSplit);
  }

  Builder builder(options, setup, maker, log);
  std::shared_ptr<const TokenSource> mock;
  if (!options.mock_data && !options.has_paths()) throw no_data_error();
  if (options.mock_data) mock = maker.make_mock();

  const RowOrder order = options.dataloader_type == DataloaderType::kSingle ? RowOrder::kOnce
                         : options.no_data_sharding                         ? RowOrder::kShuffled
                                                                            : RowOrder::kSharded;
  const auto source_of = [&](Split split, std::unique_ptr<SampleSource> samples) {
    const std::string name = fmt::format("the {} split of {}", split_name(split), samples->name());
    const int64_t num_rows = samples->num_samples();
    const auto* blend = dynamic_cast<const BlendedDataset*>(samples.get());
    std::shared_ptr<RowReader> rows = maker.rows_of(std::move(samples));
    const bool has_names = split == Split::kTrain && !options.data_set_names.empty();
    if (has_names && blend != nullptr) rows = std::make_shared<BlendedRows>(std::move(rows), *blend);
    return std::make_unique<BatchSource>(std::move(rows), Order(order, num_rows, name));
  };
  const bool has_sets = !validation_sets(options).empty();
  DataSets sets = make_splits(setup, [&](Split split, std::optional<int64_t> num_samples) {
    std::unique_ptr<SampleSource> samples;
    if (has_sets && split == Split::kValid) return std::unique_ptr<BatchSource>();
    if (mock) {
      samples = builder.build_one(mock, split, kMockSplit, num_samples);
    } else if (!options.data_path.empty()) {
      samples =
          builder.build(parse_blend(options.data_path, "data_path"), split, options.split.value_or(kDefaultSplit));
    } else if (const auto& paths = paths_of(options, split); !paths.empty()) {
      samples = builder.build(parse_blend(paths, fmt::format("{}_data_path", split_name(split))), split, "");
    }
    return samples ? source_of(split, std::move(samples)) : nullptr;
  });
  add_validation_sets(options, setup, sets, [&](const std::string& path, std::optional<int64_t> num_samples) {
    return source_of(Split::kValid, builder.build_one(builder.open(path), Split::kValid, "", num_samples));
  });
  return sets;
}

}  // namespace megalith
