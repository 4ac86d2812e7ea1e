#include "kinds/encoder/sentence_mapping.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>
#include <vector>

#include "core/error.h"

namespace megalith {
namespace {

struct MappedDocument {
  int64_t number = 0;  // index among the documents
  int64_t first = 0;   // index of its first sentence
  std::span<const int32_t> lengths;

  bool has_long_sentence() const {
    return std::ranges::any_of(lengths, [](int32_t length) { return length > kLongSentence; });
  }
};

MappedDocument document_at(const DocumentSentences& documents, int64_t number) {
  const auto at = static_cast<size_t>(number);
  const int64_t first = documents.begins[at], count = documents.begins[at + 1] - first;
  return {number, first,
          documents.lengths.subspan(static_cast<size_t>(first - documents.begins[0]), static_cast<size_t>(count))};
}

int64_t num_documents_of(const DocumentSentences& documents) { return std::ssize(documents.begins) - 1; }

// As in helpers.cpp: BERT and T5 accept a document of one long sentence if samples may have one sentence.
bool gives_samples(const MappedDocument& document, int64_t min_sentences, LongSingle long_single) {
  const int64_t count = std::ssize(document.lengths);
  const bool may_be_long = count == 1 && long_single == LongSingle::kTaken;
  return count >= min_sentences && count > 0 && (may_be_long || !document.has_long_sentence());
}

std::vector<bool> used_documents(const DocumentSentences& documents, int64_t min_sentences, LongSingle long_single) {
  std::vector<bool> is_used;
  for (int64_t number = 0; number < num_documents_of(documents); ++number) {
    is_used.push_back(gives_samples(document_at(documents, number), min_sentences, long_single));
  }
  return is_used;
}

struct MappedSample {
  int64_t document = 0;  // as MappedDocument::number
  int64_t begin = 0, end = 0, target = 0;
  int64_t number = 0;  // within the epoch
};

// Calls add(sample) for every sample in order, until an epoch ends with enough.
//   draw_target  target of a document's next sample; called once more after the last one, as in Megatron
//   is_enough    whether a sample may end with this many sentences left after it
template <typename DrawTarget, typename IsEnough, typename Add>
void walk_documents(const DocumentSentences& documents, const std::vector<bool>& is_used, const MappingOptions& options,
                    const DrawTarget& draw_target, const IsEnough& is_enough, const Add& add) {
  int64_t num_samples = 0;
  do {
    const int64_t before = num_samples;
    for (int64_t number = 0; number < num_documents_of(documents); ++number) {
      if (!is_used[static_cast<size_t>(number)]) continue;
      const MappedDocument document = document_at(documents, number);
      int64_t target = draw_target(document), length = 0, begin = 0;
      const int64_t count = std::ssize(document.lengths);
      for (int64_t i = 0; i < count; ++i) {
        length += document.lengths[static_cast<size_t>(i)];
        const int64_t left = count - i - 1;
        if (left > 0 && !(length >= target && is_enough(left) && i + 1 - begin >= options.min_sentences)) continue;
        add(MappedSample{number, document.first + begin, document.first + i + 1, target, num_samples - before});
        ++num_samples;
        begin = i + 1;
        length = 0;
        target = draw_target(document);
      }
    }
    if (num_samples == before) return;
  } while (options.num_samples && num_samples < *options.num_samples);
}

// Fisher-Yates shuffle of rows, with Megatron's generator.
template <typename T>
IndexArray shuffled_rows_of(std::vector<T> values, int64_t columns, uint32_t seed) {
  std::mt19937_64 generator(uint64_t{seed} + 1);
  for (int64_t i = std::ssize(values) / columns - 1; i > 0; --i) {
    const auto j = static_cast<int64_t>(generator() % static_cast<uint64_t>(i + 1));
    std::swap_ranges(values.begin() + i * columns, values.begin() + (i + 1) * columns, values.begin() + j * columns);
  }
  return IndexArray::of(std::move(values), columns);
}

// fill(push) calls push(value) for every number of the rows.
template <typename Fill>
IndexArray rows_from(const Fill& fill, int64_t columns, const MappingOptions& options) {
  const auto collect = [&]<typename T>(std::vector<T> values) {
    fill([&](int64_t value) { values.push_back(static_cast<T>(value)); });
    return shuffled_rows_of(std::move(values), columns, options.seed);
  };
  return options.has_wide_numbers ? collect(std::vector<int64_t>{}) : collect(std::vector<uint32_t>{});
}

}  // namespace

LeftOut count_left_out(const DocumentSentences& documents, int64_t min_sentences, LongSingle long_single) {
  LeftOut left_out;
  for (int64_t number = 0; number < num_documents_of(documents); ++number) {
    const MappedDocument document = document_at(documents, number);
    if (gives_samples(document, min_sentences, long_single)) continue;
    const bool is_short = std::ssize(document.lengths) < std::max<int64_t>(min_sentences, 1);
    ++(is_short ? left_out.too_few_sentences : left_out.long_sentence);
  }
  return left_out;
}

IndexArray build_sentence_mapping(const DocumentSentences& documents, double short_seq_prob,
                                  const MappingOptions& options) {
  MEGALITH_CHECK(options.max_length > 1, "samples of {} tokens", options.max_length);
  const uint64_t ratio = short_seq_prob > 0 ? static_cast<uint64_t>(std::round(1.0 / short_seq_prob)) : 0;
  std::mt19937 generator(options.seed);
  const auto draw_target = [&](const MappedDocument&) -> int64_t {
    if (ratio == 0) return options.max_length;
    const uint64_t drawn = generator();
    if (drawn % ratio != 0) return options.max_length;
    return 2 + static_cast<int64_t>(drawn % static_cast<uint64_t>(options.max_length - 1));
  };
  const std::vector<bool> is_used = used_documents(documents, options.min_sentences, LongSingle::kTaken);
  const auto fill = [&](const auto& push) {
    walk_documents(
        documents, is_used, options, draw_target, [](int64_t left) { return left > 1; },
        [&](const MappedSample& sample) {
          for (const int64_t value : {sample.begin, sample.end, sample.target}) push(value);
        });
  };
  return rows_from(fill, 3, options);
}

IndexArray build_block_mapping(const DocumentSentences& documents, std::span<const int32_t> title_lengths,
                               int64_t first_document, const MappingOptions& options) {
  const auto num_titles = std::ssize(title_lengths);
  MEGALITH_CHECK(num_titles == 0 || num_titles == num_documents_of(documents), "{} titles", num_titles);
  const std::vector<bool> is_used = used_documents(documents, options.min_sentences, LongSingle::kLeftOut);
  const auto target_of = [&](const MappedDocument& document) {
    return options.max_length - (num_titles == 0 ? 0 : title_lengths[static_cast<size_t>(document.number)]);
  };
  const auto fill = [&](const auto& push) {
    walk_documents(
        documents, is_used, options, target_of, [&](int64_t left) { return left >= options.min_sentences; },
        [&](const MappedSample& sample) {
          for (const int64_t value : {sample.begin, sample.end, first_document + sample.document, sample.number}) {
            push(value);
          }
        });
  };
  return rows_from(fill, 4, options);
}

}  // namespace megalith
