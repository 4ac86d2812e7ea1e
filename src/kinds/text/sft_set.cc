#include "kinds/text/sft_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/checksum.h"
#include "core/error.h"
#include "core/file.h"
#include "core/number_of.h"
#include "core/strings.h"
#include "core/time.h"
#include "data/ordered_map.h"
#include "data/prepare_state.h"
#include "data/throw_errors.h"

namespace megalith {
namespace {

constexpr size_t kBytesAtOnce = size_t{64} << 20;
constexpr size_t kMostErrors = 20;
constexpr size_t kShownReasons = 3;
constexpr uint8_t kOfBadAnswer = 2;
constexpr int64_t kMostRows = int64_t{1} << 53;

struct EncodedRow {
  SftLine line;
  SftSample sample;
  std::optional<UserError> error;
};

OrderedJson to_json(const SftReport& report) {
  return {{"form", static_cast<int>(report.form)},
          {"samples", report.samples},
          {"tokens", report.tokens},
          {"counted", report.counted},
          {"num_without_loss", report.num_without_loss},
          {"num_without_thoughts", report.num_without_thoughts},
          {"num_without_end", report.num_without_end},
          {"num_unread", report.num_unread},
          {"num_bad", report.num_bad},
          {"bad_rows", report.bad_rows},
          {"longest", report.longest},
          {"longest_place", report.longest_place},
          {"encoder", report.encoder},
          {"tokenizer", report.tokenizer}};
}

SftReport report_of(const Json& json, const std::string& path) {
  SftReport report;
  report.form = static_cast<SftForm>(json_get_whole(json, "form", 0, static_cast<int64_t>(SftForm::kTokens), path));
  report.samples = json_get<int64_t>(json, "samples", path);
  report.tokens = json_get<int64_t>(json, "tokens", path);
  report.counted = json_get<int64_t>(json, "counted", path);
  report.num_without_loss = json_get<int64_t>(json, "num_without_loss", path);
  report.num_without_thoughts = json_get_or<int64_t>(json, "num_without_thoughts", 0, path);
  report.num_without_end = json_get_or<int64_t>(json, "num_without_end", 0, path);
  if (const Json* unread = find_member(json, "num_unread", path)) {
    for (const auto& [what, count] : unread->items()) report.num_unread[what] = json_as<int64_t>(count, path);
  }
  report.num_bad = json_get_or<int64_t>(json, "num_bad", 0, path);
  report.bad_rows = json_get_or<std::vector<std::string>>(json, "bad_rows", {}, path);
  report.longest = json_get<int64_t>(json, "longest", path);
  report.longest_place = json_get<std::string>(json, "longest_place", path);
  report.encoder = json_get<std::string>(json, "encoder", path);
  report.tokenizer = json_get<std::string>(json, "tokenizer", path);
  return report;
}

SftReport load_report(const std::string& prefix) {
  const std::string path = prefix + ".json";
  return report_of(load_json(path), path);
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
    if (sample.form != SftForm::kText) {
      throw UserError(fmt::format("{}: nothing of the row is learned", line.where()),
                      "it has no answer, or marks and masks take none; --skip_bad_rows N leaves such rows out");
    }
    ++report_.num_without_loss;
    return false;
  }
  const auto length = static_cast<int64_t>(sample.tokens.size());
  ++report_.samples;
  report_.tokens += length;
  report_.counted += counted;
  report_.num_without_thoughts += sample.num_without_thoughts;
  report_.num_without_end += sample.num_without_end;
  for (const auto& [what, count] : sample.num_unread) report_.num_unread[what] += count;
  num_outside_ += std::count(sample.weights.begin(), sample.weights.end(), uint8_t{0});
  if (length > report_.longest) {
    report_.longest = length;
    report_.longest_place = line.where();
  }
  return true;
}

bool SftTally::skip(const UserError& error) {
  if (report_.num_bad == most_bad_) return false;
  ++report_.num_bad;
  if (report_.bad_rows.size() < kShownReasons) report_.bad_rows.push_back(error.message());
  return true;
}

void SftTally::check() const {
  if (num_rows() == report_.num_bad && !report_.bad_rows.empty()) {
    throw UserError(fmt::format("no row can be used, and skip_bad_rows left out {}: {}",
                                number_of(report_.num_bad, "row", "rows"), report_.bad_rows[0]),
                    "correct the rows, or leave skip_bad_rows out to see what is wrong with more of them");
  }
  if (num_rows() == 0) {
    throw UserError("the set has no rows", "name files with a JSON object on each line, a JSON list, or a table");
  }
  if (report_.samples == 0) {
    throw UserError(fmt::format("no token of the {} rows counts in the loss", report_.num_without_loss),
                    "look at a row: megalith inspect sft --sft_data_path FILE --load_hf MODEL");
  }
  if (has_questions(report_.form) && !trains_on_input_ && num_outside_ == 0) {
    throw UserError(
        fmt::format("every token of the {} rows counts in the loss, though they have questions", report_.samples),
        "the questions are empty, or the template leaves them out; train_on_input takes them on purpose");
  }
}

void encode_sft_rows(SftReader& reader, const SftEncoder& encoder, SftTally& tally,
                     const std::function<void(const SftSample&, const SftLine&, bool is_learned)>& on_sample) {
  std::vector<UserError> errors;
  const auto encode = [&](EncodedRow& row) {
    try {
      row.sample = encoder.encode(row.line);
    } catch (const UserError& error) {
      row.error = error;
    }
  };
  const auto take = [&](const EncodedRow& row) {
    if (errors.size() >= kMostErrors) return;
    bool is_learned = false;
    try {
      if (row.error) throw UserError(*row.error);
      if (!errors.empty()) return;
      is_learned = tally.add(row.sample, row.line);
    } catch (const UserError& error) {
      if (!errors.empty() || !tally.skip(error)) errors.push_back(error);
      return;
    }
    on_sample(row.sample, row.line, is_learned);
  };
  const int64_t num_threads = std::clamp<int64_t>(std::thread::hardware_concurrency(), 1, 16);
  OrderedMap<EncodedRow> map(num_threads, kBytesAtOnce, encode, take);
  while (errors.size() < kMostErrors) {
    std::optional<SftLine> line = reader.next();
    if (!line) break;
    const size_t num_bytes = line->json.size();
    map.give({std::move(*line), {}, {}}, num_bytes);
  }
  map.finish();
  throw_errors(errors);
}

SftReport prepare_sft(SftReader& reader, const SftEncoder& encoder, const SftOptions& options, int64_t vocab_size,
                      const std::string& prefix, Logger& log, double store_every_s) {
  OrderedJson job = {
      {"inputs", inputs_to_json(reader.inputs())}, {"encoder", encoder.identity()}, {"vocab_size", vocab_size}};
  if (!reader.parts().empty()) job["parts"] = reader.parts();
  ResumableOutputs outputs(prefix, {{prefix, token_type_for(vocab_size)}, {prefix + "_mask", TokenType::kUint8}},
                           dump_json(job));
  SftTally tally(options);
  const bool goes_on = outputs.take_up(
      [&](const Json& state, const std::string& where) {
        const auto count = [&](const char* key) { return json_get_whole(state, key, 0, kMostRows, where); };
        tally = SftTally(options, report_of(get_member(state, "report", where), where), count("outside"));
      },
      log);
  if (goes_on) {
    log.info("going on after row {}, where the last run stopped", tally.num_rows());
    for (int64_t i = 0; i < tally.num_rows(); ++i) reader.next();
  } else {
    tally = SftTally(options);
  }
  Stopwatch since_stored;
  const auto store = [&] {
    outputs.store({{"report", to_json(tally.report())}, {"outside", tally.num_outside()}});
    since_stored = Stopwatch();
  };
  Progress progress(log, "prepare", total_bytes(reader.inputs()), "bytes");
  IndexedDatasetWriter &tokens = outputs.writers()[0], &mask = outputs.writers()[1];
  std::vector<uint8_t> weights;
  encode_sft_rows(reader, encoder, tally, [&](const SftSample& sample, const SftLine&, bool is_learned) {
    progress.set(reader.input_bytes());
    if (!is_learned) return;
    const std::span all(sample.tokens);
    weights = sample.weights;
    if (sample.is_bad) std::ranges::replace(weights, uint8_t{1}, kOfBadAnswer);
    const size_t cut = sample.form == SftForm::kPairs ? sample.rejected_begin : all.size();
    for (const auto& [begin, end] : {std::pair{size_t{0}, cut}, std::pair{cut, all.size()}}) {
      if (begin == end) continue;
      tokens.add_sequence(all.subspan(begin, end - begin));
      mask.add_raw_sequence(std::as_bytes(std::span(weights).subspan(begin, end - begin)));
    }
    tokens.end_document();
    mask.end_document();
    if (since_stored.elapsed_s() >= store_every_s) store();
  });
  progress.finish();
  if (reader.num_repeated() > 0) log.note("{}", repeated_rows_text(reader.num_repeated()));
  tally.check();
  store();
  SftReport report = tally.report();
  report.encoder = encoder.identity();
  report.tokenizer = encoder.tokenizer().name();
  // A set without its report counts as absent, so a half-replaced one is never read.
  remove_tree(prefix + ".json");
  tokens.finish();
  mask.finish();
  write_file_atomic(prefix + ".json", dump_json_pretty(to_json(report)));
  outputs.remove();
  return report;
}

bool is_prepared_sft(const std::string& path) {
  const std::string prefix = data_prefix(path);
  return std::filesystem::exists(prefix + ".json") && std::filesystem::exists(prefix + "_mask.idx");
}

SftReport check_prepared_sft(const std::string& prefix, const SftEncoder& encoder) {
  SftReport report = load_report(prefix);
  if (report.encoder == encoder.identity()) return report;
  throw UserError(
      fmt::format("{} was prepared otherwise than this run reads rows: with the tokenizer {}, another chat template, "
                  "sft_conversation_format, sft_column, train_on_input or other options of rows",
                  prefix, report.tokenizer),
      fmt::format("this run's tokenizer is {}; give the options that 'prepare --sft' had, or prepare the rows again",
                  encoder.tokenizer().name()));
}

SftSet::SftSet(const std::string& prefix)
    : prefix_(prefix), tokens_(prefix), mask_(prefix + "_mask"), report_(load_report(prefix)) {
  bool fits = tokens_.num_sequences() == mask_.num_sequences() && tokens_.num_tokens() == mask_.num_tokens() &&
              mask_.token_type() == TokenType::kUint8;
  fits = fits && std::ranges::equal(tokens_.length_bytes(), mask_.length_bytes());
  fits = fits && num_samples() == report_.samples && num_sequences() % sequences_per_sample() == 0;
  for (int64_t i = 0; fits && is_rated() && i < tokens_.num_sequences(); ++i) {
    const std::span<const std::byte> mask = mask_.sequence_bytes(i);
    const auto answer = std::ranges::find_if(mask, [](std::byte weight) { return weight != std::byte{0}; });
    question_lengths_.push_back(answer - mask.begin());
    fits = answer != mask.end();  // rows without an answer are left out
  }
  if (!fits) {
    throw UserError(fmt::format("{}.bin, {}_mask.bin and {}.json do not belong together", prefix, prefix, prefix),
                    "delete them: they are made again from the rows");
  }
}

int64_t SftSet::length(int64_t sample) const {
  int64_t length = 0;
  for (int64_t i = 0; i < sequences_per_sample(); ++i) length += sequence_length(sample * sequences_per_sample() + i);
  return length;
}

int64_t SftSet::sequence_length(int64_t sequence) const {
  if (!is_rated()) return tokens_.sequence_length(sequence);
  const int64_t sample = sequence / 2;
  if (sequence % 2 == 0) return tokens_.sequence_length(sample);
  const int64_t other = sample_before(sample);
  return question_lengths_.at(static_cast<size_t>(sample)) + tokens_.sequence_length(other) -
         question_lengths_.at(static_cast<size_t>(other));
}

int64_t SftSet::longest() const {
  if (!is_rated()) return report_.longest;
  int64_t longest = 0;
  for (int64_t i = 0; i < num_samples(); ++i) longest = std::max(longest, length(i));
  return longest;
}

bool SftSet::is_bad(int64_t sample) const {
  return mask_.sequence_bytes(sample)[static_cast<size_t>(question_lengths_.at(static_cast<size_t>(sample)))] ==
         std::byte{kOfBadAnswer};
}

std::string SftSet::lengths_identity() const {
  const std::string of_sequences = checksum128(tokens_.length_bytes()).hex();
  if (!is_rated()) return of_sequences;
  return of_sequences + checksum128(std::as_bytes(std::span(question_lengths_))).hex();
}

void SftSet::read_stored(int64_t sequence, int64_t offset, int64_t count, int64_t* tokens, uint8_t* weights) const {
  if (count == 0) return;
  tokens_.read(sequence, offset, count, tokens);
  const std::span<const std::byte> mask = mask_.sequence_bytes(sequence);
  std::memcpy(weights, mask.data() + offset, static_cast<size_t>(count));
}

void SftSet::read(int64_t sequence, int64_t offset, int64_t count, int64_t* tokens, uint8_t* weights) const {
  if (!is_rated()) return read_stored(sequence, offset, count, tokens, weights);
  const int64_t sample = sequence / 2;
  if (sequence % 2 == 0) {
    read_stored(sample, offset, count, tokens, weights);
  } else {
    const int64_t other = sample_before(sample), question = question_lengths_[static_cast<size_t>(sample)];
    const int64_t of_question = std::clamp<int64_t>(question - offset, 0, count);
    read_stored(sample, offset, of_question, tokens, weights);
    const int64_t in_answer = std::max<int64_t>(offset - question, 0);
    read_stored(other, question_lengths_[static_cast<size_t>(other)] + in_answer, count - of_question,
                tokens + of_question, weights + of_question);
  }
  for (int64_t i = 0; i < count; ++i) weights[i] = weights[i] > 0 ? 1 : 0;
}

std::string repeated_rows_text(int64_t num_repeated) {
  return fmt::format("sft_deduplicate leaves out {} that repeat others", number_of(num_repeated, "row", "rows"));
}

std::string describe(const SftReport& report) {
  std::string text = fmt::format(
      "{} of {}: {} tokens, {} of them in the loss ({:.1f} %), {} a sample on average, {} the longest ({})\n",
      number_of(report.samples, "sample", "samples"), sft_form_name(report.form), report.tokens, report.counted,
      100.0 * static_cast<double>(report.counted) / static_cast<double>(std::max<int64_t>(report.tokens, 1)),
      report.tokens / std::max<int64_t>(report.samples, 1), report.longest, report.longest_place);
  if (report.num_without_thoughts > 0) {
    text += number_of(report.num_without_thoughts, "answer", "answers") +
            " learned without the thoughts before </think>, which the chat template leaves out\n";
  }
  if (report.num_without_end > 0) {
    text += number_of(report.num_without_end, "answer", "answers") +
            " learned without an end, of which the chat template writes none: the model will not learn to stop\n";
  }
  for (const auto& [what, count] : report.num_unread) {
    text += fmt::format("not learned: {}, {}, which the chat template does not read there\n", what,
                        count == 1 ? "once" : fmt::format("{} times", count));
  }
  for (const std::string& reason : report.bad_rows) text += "left out: " + reason + "\n";
  if (report.num_bad > 0) text += number_of(report.num_bad, "row", "rows") + " left out by skip_bad_rows\n";
  if (report.num_without_loss > 0) {
    text += fmt::format("{} left out, because nothing in {} counts in the loss\n",
                        report.num_without_loss == 1 ? "1 row is" : fmt::format("{} rows are", report.num_without_loss),
                        report.num_without_loss == 1 ? "it" : "them");
  }
  return text;
}

}  // namespace megalith
