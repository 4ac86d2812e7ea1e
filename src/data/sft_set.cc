// See sft_set.h.
#include "data/sft_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/checksum.h"
#include "core/error.h"
#include "core/file.h"
#include "core/strings.h"
#include "data/indexed_writer.h"

namespace megalith {
namespace {

constexpr size_t kRowsAtOnce = 1024, kBytesAtOnce = size_t{64} << 20;
constexpr size_t kMostErrors = 20;

struct EncodedRow {
  SftLine line;
  SftSample sample;
  std::optional<UserError> error;
};

void encode_all(std::vector<EncodedRow>& rows, const SftEncoder& encoder) {
  std::atomic<size_t> next{0};
  std::exception_ptr failure;
  std::mutex failure_mutex;
  const auto work = [&] {
    for (size_t i = next++; i < rows.size(); i = next++) {
      try {
        rows[i].sample = encoder.encode(rows[i].line);
      } catch (const UserError& error) {
        rows[i].error = error;
      } catch (...) {
        const std::lock_guard lock(failure_mutex);
        failure = std::current_exception();
      }
    }
  };
  {
    const size_t count = std::clamp<size_t>(std::thread::hardware_concurrency(), 1, 16);
    std::vector<std::jthread> threads;
    for (size_t i = 1; i < std::min(count, rows.size()); ++i) threads.emplace_back(work);
    work();
  }
  if (failure) std::rethrow_exception(failure);
}

OrderedJson to_json(const SftReport& report) {
  return {{"form", static_cast<int>(report.form)},
          {"samples", report.samples},
          {"tokens", report.tokens},
          {"counted", report.counted},
          {"num_without_loss", report.num_without_loss},
          {"longest", report.longest},
          {"longest_place", report.longest_place},
          {"encoder", report.encoder},
          {"tokenizer", report.tokenizer}};
}

SftReport report_of(const std::string& path) {
  const Json json = load_json(path);
  SftReport report;
  report.form = static_cast<SftForm>(json_get_whole(json, "form", 0, static_cast<int64_t>(SftForm::kPairs), path));
  report.samples = json_get<int64_t>(json, "samples", path);
  report.tokens = json_get<int64_t>(json, "tokens", path);
  report.counted = json_get<int64_t>(json, "counted", path);
  report.num_without_loss = json_get<int64_t>(json, "num_without_loss", path);
  report.longest = json_get<int64_t>(json, "longest", path);
  report.longest_place = json_get<std::string>(json, "longest_place", path);
  report.encoder = json_get<std::string>(json, "encoder", path);
  report.tokenizer = json_get<std::string>(json, "tokenizer", path);
  return report;
}

}  // namespace

bool SftTally::add(const SftSample& sample, const SftLine& line) {
  const bool is_first = report_.samples + report_.num_without_loss == 0;
  if (is_first) report_.form = sample.form;
  if (sample.form != report_.form) {
    throw UserError(fmt::format("{}: the row is one of {}, and those before are {}", line.where(),
                                sft_form_name(sample.form), sft_form_name(report_.form)),
                    "a set has rows of one form: divide it into sets");
  }
  const int64_t counted = sample.num_counted();
  if (counted == 0) {
    ++report_.num_without_loss;
    return false;
  }
  const auto length = static_cast<int64_t>(sample.tokens.size());
  ++report_.samples;
  report_.tokens += length;
  report_.counted += counted;
  num_outside_ += std::count(sample.weights.begin(), sample.weights.end(), uint8_t{0});
  if (length > report_.longest) {
    report_.longest = length;
    report_.longest_place = line.where();
  }
  return true;
}

void SftTally::check() const {
  if (report_.samples + report_.num_without_loss == 0) {
    throw UserError("the set has no rows", "name files with a JSON object on each line, a JSON list, or a table");
  }
  if (report_.samples == 0) {
    throw UserError(fmt::format("no token of the {} rows counts in the loss", report_.num_without_loss),
                    "look at a row: megalith inspect sft --sft_data_path FILE --load_hf MODEL");
  }
  const bool has_questions = report_.form != SftForm::kText && !trains_on_input_;
  if (has_questions && num_outside_ == 0) {
    throw UserError(
        fmt::format("every token of the {} rows counts in the loss, though they have questions", report_.samples),
        "the questions are empty, or the template leaves them out; train_on_input takes them on purpose");
  }
}

void encode_sft_rows(SftReader& reader, const SftEncoder& encoder,
                     const std::function<void(const SftSample&, const SftLine&)>& on_sample) {
  std::vector<UserError> errors;
  for (bool has_more = true; has_more && errors.size() < kMostErrors;) {
    std::vector<EncodedRow> rows;
    for (size_t num_bytes = 0; rows.size() < kRowsAtOnce && num_bytes < kBytesAtOnce;) {
      std::optional<SftLine> line = reader.next();
      has_more = line.has_value();
      if (!has_more) break;
      num_bytes += line->json.size();
      rows.push_back({std::move(*line), {}, {}});
    }
    encode_all(rows, encoder);
    for (EncodedRow& row : rows) {
      try {
        if (row.error) throw UserError(*row.error);
        if (errors.empty()) on_sample(row.sample, row.line);
      } catch (const UserError& error) {
        if (errors.size() < kMostErrors) errors.push_back(error);
      }
    }
  }
  if (errors.size() == 1) throw errors[0];
  if (!errors.empty()) throw UserErrors(std::move(errors));
}

SftReport prepare_sft(SftReader& reader, const SftEncoder& encoder, const SftOptions& options, int64_t vocab_size,
                      const std::string& prefix) {
  IndexedDatasetWriter tokens(prefix, token_type_for(vocab_size)), mask(prefix + "_mask", TokenType::kUint8);
  SftTally tally(options.train_on_input);
  encode_sft_rows(reader, encoder, [&](const SftSample& sample, const SftLine& line) {
    if (!tally.add(sample, line)) return;
    const std::span all(sample.tokens);
    const std::span weights(sample.weights);
    const size_t cut = sample.form == SftForm::kPairs ? sample.rejected_begin : all.size();
    for (const auto& [begin, end] : {std::pair{size_t{0}, cut}, std::pair{cut, all.size()}}) {
      if (begin == end) continue;
      tokens.add_sequence(all.subspan(begin, end - begin));
      mask.add_raw_sequence(std::as_bytes(weights.subspan(begin, end - begin)));
    }
    tokens.end_document();
    mask.end_document();
  });
  tally.check();
  tokens.finish();
  mask.finish();
  SftReport report = tally.report();
  report.encoder = encoder.identity();
  report.tokenizer = encoder.tokenizer().name();
  write_file_atomic(prefix + ".json", dump_json_pretty(to_json(report)));
  return report;
}

bool is_prepared_sft(const std::string& path) {
  const std::string prefix = data_prefix(path);
  return std::filesystem::exists(prefix + ".json") && std::filesystem::exists(prefix + "_mask.idx");
}

void check_prepared_sft(const std::string& prefix, const SftEncoder& encoder) {
  const SftReport report = report_of(prefix + ".json");
  if (report.encoder == encoder.identity()) return;
  throw UserError(
      fmt::format("{} was prepared otherwise than this run reads rows: with the tokenizer {}, another chat template, "
                  "sft_conversation_format, sft_column or train_on_input",
                  prefix, report.tokenizer),
      fmt::format("this run's tokenizer is {}; give the options that 'prepare --sft' had, or prepare the rows again",
                  encoder.tokenizer().name()));
}

SftSet::SftSet(const std::string& prefix)
    : prefix_(prefix), tokens_(prefix), mask_(prefix + "_mask"), report_(report_of(prefix + ".json")) {
  bool fits = tokens_.num_sequences() == mask_.num_sequences() && tokens_.num_tokens() == mask_.num_tokens() &&
              mask_.token_type() == TokenType::kUint8;
  fits = fits && std::ranges::equal(tokens_.length_bytes(), mask_.length_bytes());
  fits = fits && num_samples() == report_.samples && tokens_.num_sequences() % sequences_per_sample() == 0;
  if (!fits) {
    throw UserError(fmt::format("{}.bin, {}_mask.bin and {}.json do not belong together", prefix, prefix, prefix),
                    "delete them: they are made again from the rows");
  }
}

int64_t SftSet::length(int64_t sample) const {
  int64_t length = 0;
  for (int64_t i = 0; i < sequences_per_sample(); ++i) {
    length += tokens_.sequence_length(sample * sequences_per_sample() + i);
  }
  return length;
}

std::string SftSet::lengths_identity() const { return checksum128(tokens_.length_bytes()).hex(); }

void SftSet::read(int64_t sequence, int64_t offset, int64_t count, int64_t* tokens, uint8_t* weights) const {
  tokens_.read(sequence, offset, count, tokens);
  const std::span<const std::byte> mask = mask_.sequence_bytes(sequence);
  std::memcpy(weights, mask.data() + offset, static_cast<size_t>(count));
}

std::string describe(const SftReport& report) {
  std::string text = fmt::format(
      "{} of {}: {} tokens, {} of them in the loss ({:.1f} %), {} a sample on average, {} the longest ({})\n",
      report.samples == 1 ? "1 sample" : fmt::format("{} samples", report.samples), sft_form_name(report.form),
      report.tokens, report.counted,
      100.0 * static_cast<double>(report.counted) / static_cast<double>(std::max<int64_t>(report.tokens, 1)),
      report.tokens / std::max<int64_t>(report.samples, 1), report.longest, report.longest_place);
  if (report.num_without_loss > 0) {
    text += fmt::format("{} left out, because nothing in {} counts in the loss\n",
                        report.num_without_loss == 1 ? "1 row is" : fmt::format("{} rows are", report.num_without_loss),
                        report.num_without_loss == 1 ? "it" : "them");
  }
  return text;
}

}  // namespace megalith
