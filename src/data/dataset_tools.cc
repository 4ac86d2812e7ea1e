// Merging, checking and measuring data sets; see dataset_tools.h.
#include "data/dataset_tools.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>

#include "core/error.h"
#include "core/strings.h"
#include "data/indexed_writer.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

constexpr size_t kMaxFaults = 20;
constexpr int64_t kBarColumns = 40;

bool is_same_file(const std::string& a, const std::string& b) {
  std::error_code ignored;
  return fs::equivalent(a, b, ignored);
}

}  // namespace

MergeReport merge_data_sets(const std::vector<std::string>& prefixes, const std::string& output_prefix, Logger& log) {
  std::vector<IndexedDataset> inputs;
  int64_t total = 0;
  for (const std::string& prefix : prefixes) {
    inputs.emplace_back(prefix);
    const IndexedDataset& added = inputs.back();
    total += added.num_tokens();
    if (added.token_type() != inputs[0].token_type()) {
      throw UserError(
          fmt::format("{} has tokens of {} bytes (type {}), {} of {} (type {})", inputs[0].name(),
                      token_bytes_of(inputs[0].token_type()), static_cast<int>(inputs[0].token_type()), added.name(),
                      token_bytes_of(added.token_type()), static_cast<int>(added.token_type())),
          "they were made with tokenizers of different sizes: prepare them again with one tokenizer");
    }
    if (is_same_file(added.name() + ".bin", data_prefix(output_prefix) + ".bin")) {
      throw UserError(fmt::format("{} is an input and the output", added.name()), "choose another output_prefix");
    }
  }
  if (inputs.empty()) throw UserError("no data set to merge", "name their prefixes with --input_prefixes");
  IndexedDatasetWriter writer(output_prefix, inputs[0].token_type());
  Progress progress(log, "merge", std::max<int64_t>(total, 1), "tokens");
  for (const IndexedDataset& input : inputs) {
    for (int64_t d = 0; d < input.num_documents(); ++d) {
      int64_t tokens = 0;
      for (int64_t i = input.document_begin(d); i < input.document_begin(d + 1); ++i) {
        writer.add_raw_sequence(input.sequence_bytes(i));
        tokens += input.sequence_length(i);
      }
      writer.end_document();
      progress.advance(tokens);
    }
  }
  progress.finish();
  writer.finish();
  return {writer.num_documents(), writer.num_sequences(), writer.num_tokens()};
}

CheckReport check_data_set(const std::string& prefix, std::optional<int64_t> vocab_size, Logger& log) {
  CheckReport report;
  const auto fault = [&](std::string text) {
    if (report.faults.size() < kMaxFaults) report.faults.push_back(std::move(text));
  };
  std::optional<IndexedDataset> data;
  try {
    data.emplace(prefix);
  } catch (const UserError& error) {
    fault(error.message());
    return report;
  }
  report.documents = data->num_documents();
  report.sequences = data->num_sequences();
  report.tokens = data->num_tokens();
  for (int64_t d = 0; d < report.documents; ++d) {
    if (data->document_begin(d) == data->document_begin(d + 1)) ++report.empty_documents;
  }
  if (const int64_t unused = data->num_unused_bin_bytes(); unused > 0) {
    fault(fmt::format("{}.bin has {} bytes that belong to no sequence", data->name(), unused));
  } else if (unused < 0) {
    fault(fmt::format("{}.idx: sequences overlap by {} bytes", data->name(), -unused));
  }
  if (const int64_t rest = data->num_trailing_index_bytes(); rest != 0 && rest != report.sequences) {
    fault(fmt::format("{}.idx has {} bytes behind its arrays", data->name(), rest));
  }
  Progress progress(log, "check", std::max<int64_t>(report.tokens, 1), "tokens");
  int64_t smallest = INT64_MAX, largest = INT64_MIN;
  std::vector<int64_t> ids(1 << 16);
  for (int64_t i = 0; i < report.sequences; ++i) {
    const int64_t length = data->sequence_length(i);
    for (int64_t begin = 0; begin < length;) {
      const int64_t count = std::min<int64_t>(length - begin, static_cast<int64_t>(ids.size()));
      data->read(i, begin, count, ids.data());
      const auto [low, high] = std::minmax_element(ids.begin(), ids.begin() + count);
      smallest = std::min(smallest, *low);
      largest = std::max(largest, *high);
      const auto report_id = [&](auto at) {
        fault(fmt::format("{}: token {} has the id {}{}", data->describe(i), begin + (at - ids.begin()), *at,
                          *at < 0 ? "" : fmt::format(", but the vocabulary has {} ids", *vocab_size)));
      };
      if (*low < 0) report_id(low);
      if (vocab_size && *high >= *vocab_size) report_id(high);
      begin += count;
      progress.advance(count);
    }
  }
  progress.finish();
  if (report.tokens > 0) report.smallest_id = smallest, report.largest_id = largest;
  return report;
}

LengthHistogram measure_lengths(const IndexedDataset& data) {
  LengthHistogram histogram;
  histogram.shortest = data.num_sequences() > 0 ? INT64_MAX : 0;
  for (int64_t i = 0; i < data.num_sequences(); ++i) {
    const int64_t length = data.sequence_length(i);
    const size_t row = length == 0 ? 0 : 1 + static_cast<size_t>(std::bit_width(static_cast<uint64_t>(length - 1)));
    if (histogram.counts.size() <= row) histogram.counts.resize(row + 1);
    ++histogram.counts[row];
    histogram.shortest = std::min(histogram.shortest, length);
    histogram.longest = std::max(histogram.longest, length);
  }
  histogram.mean =
      static_cast<double>(data.num_tokens()) / static_cast<double>(std::max<int64_t>(data.num_sequences(), 1));
  return histogram;
}

std::string draw(const LengthHistogram& histogram) {
  std::string text;
  const int64_t most =
      histogram.counts.empty() ? 0 : *std::max_element(histogram.counts.begin(), histogram.counts.end());
  bool has_begun = false;
  for (size_t row = 0; row < histogram.counts.size(); ++row) {
    const int64_t count = histogram.counts[row];
    has_begun = has_begun || count > 0;
    if (!has_begun) continue;
    const int64_t high = row == 0 ? 0 : int64_t{1} << (row - 1), low = row < 2 ? high : high / 2 + 1;
    const std::string label = low == high ? std::to_string(low) : fmt::format("{} … {}", low, high);
    // "…" has three bytes and one column.
    const size_t width = low == high ? 25 : 27;
    const int64_t bar = most == 0 ? 0 : (count * kBarColumns + most - 1) / most;
    text += fmt::format("  {:>{}}  {:>7}  {}\n", label, width, format_count(static_cast<double>(count)),
                        std::string(static_cast<size_t>(bar), '#'));
  }
  return text;
}

}  // namespace megalith
