// `megalith prepare`; see prepare.h.
//
// One thread reads and writes; workers tokenise into output bytes. Chunks of lines are written in reading order, so
// results do not depend on the number of workers, and at most a few chunks are in memory.
#include "data/prepare.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/error.h"
#include "core/strings.h"
#include "core/time.h"
#include "data/indexed_writer.h"
#include "data/ordered_map.h"
#include "data/prepare_encoder.h"
#include "data/prepare_input.h"
#include "data/prepare_state.h"
#include "data/prepared_outputs.h"

namespace megalith {
namespace {

constexpr size_t kMaxProblems = 100;

// Checks the options before anything is made on disk.
void check_options(const PrepareOptions& options, const std::vector<PrepareInput>& inputs) {
  if (options.output_prefix.empty()) throw UserError("no output_prefix is given", "name it with --output_prefix");
  if (options.json_keys.empty()) {
    throw UserError("json_keys is empty", "name the key that holds the text, such as --json_keys text");
  }
  if (options.keep_newlines && !options.split_sentences) {
    throw UserError("keep_newlines is given without split_sentences",
                    "it says what becomes of line breaks between sentences; whole documents keep them always");
  }
  const auto plain_text = std::find_if(inputs.begin(), inputs.end(), [](const auto& i) { return i.is_plain_text; });
  if (plain_text != inputs.end() && options.json_keys.size() > 1) {
    throw UserError(
        fmt::format("json_keys has {} keys, but {} is plain text", options.json_keys.size(), plain_text->name()),
        "prepare plain text by itself");
  }
}

std::vector<std::string> output_prefixes(const PrepareOptions& options) {
  const std::string level = options.split_sentences ? "sentence" : "document";
  std::vector<std::string> prefixes;
  for (const std::string& key : options.json_keys) {
    prefixes.push_back(fmt::format("{}_{}_{}", options.output_prefix, key, level));
  }
  return prefixes;
}

std::vector<ResumableOutputs::Output> outputs_of(const PrepareOptions& options, TokenType type) {
  std::vector<ResumableOutputs::Output> outputs;
  for (std::string& prefix : output_prefixes(options)) outputs.push_back({std::move(prefix), type});
  return outputs;
}

class Preparation {
 public:
  Preparation(const PrepareOptions& options, std::vector<PrepareInput> inputs, const std::string& job,
              const Tokenizer& tokenizer, Logger& log)
      : inputs_(std::move(inputs)),
        options_(options),
        log_(log),
        type_(token_type_for(tokenizer.vocab_size())),
        encoder_(options, (prepare_folder_of(options.output_prefix) / "long").string(), tokenizer, type_),
        job_(job),
        outputs_(options.output_prefix, outputs_of(options, type_), job) {
    const bool goes_on = outputs_.take_up(
        [&](const Json& json, const std::string& where) { state_ = prepare_state_of(json, where); }, log_);
    if (!goes_on) {
      state_ = {};
      return;
    }
    state_.report.resumed_at = state_.report.documents;
    log_.info("going on after document {}, where the last run stopped", state_.report.documents);
  }

  PrepareReport run() {
    const auto num_workers = options_.workers.value_or(std::max(1u, std::thread::hardware_concurrency()));
    ProgressSettings settings;
    settings.line_every_s = 1e9;  // without a terminal lines come every log_interval documents
    const int64_t total = total_bytes(inputs_);
    Progress progress(log_, "prepare", total == 0 ? 0 : std::max<int64_t>(total - state_.input_bytes, 1), "bytes",
                      settings);
    ChunkReader reader(inputs_, options_.json_keys, options_.max_line_memory / kLineMemory, state_.position);
    OrderedMap<EncodedChunk> map(
        num_workers, std::max<size_t>(static_cast<size_t>(num_workers) * (16 << 20), 64 << 20),
        [&](EncodedChunk& chunk) { encode(chunk); }, [&](const EncodedChunk& chunk) { write(chunk, progress); });
    while (std::unique_ptr<InputChunk> chunk = reader.next()) {
      const size_t num_bytes = chunk->text.size();
      map.give({.chunk = std::move(chunk)}, num_bytes);
    }
    map.finish();
    progress.finish();
    finish();
    return std::move(state_.report);
  }

 private:
  void encode(EncodedChunk& chunk) const {
    try {
      encoder_.encode(chunk);
    } catch (const SpillFailed& failure) {
      throw UserError(failure.error);
    }
  }

  void write(const EncodedChunk& encoded, Progress& progress) {
    PrepareReport& report = state_.report;
    const std::string file = encoded.chunk->input->name();
    const auto list = [&](std::vector<InputProblem>& problems, int64_t& count, int64_t line, std::string reason) {
      ++count;
      if (problems.size() < kMaxProblems) problems.push_back({file, line, std::move(reason)});
    };
    for (const int64_t line : encoded.empty_lines) list(report.empty_lines, report.num_empty_lines, line, "");
    for (const auto& [line, reason] : encoded.broken_lines) {
      list(report.broken_lines, report.num_broken_lines, line, reason);
    }
    for (size_t d = 0; d < encoded.lines.size(); ++d) {
      const bool is_empty = std::all_of(encoded.outputs.begin(), encoded.outputs.end(),
                                        [d](const EncodedChunk::Output& output) { return output.sequences[d] == 0; });
      if (is_empty) list(report.empty_documents, report.num_empty_documents, encoded.lines[d], "");
      ++report.documents;
      if (!log_.is_terminal() && report.documents % options_.log_interval == 0) {
        log_.info("{} documents; {}", report.documents, progress.line());
      }
    }
    for (size_t key = 0; key < encoded.outputs.size(); ++key) {
      const EncodedChunk::Output& output = encoded.outputs[key];
      outputs_.writers()[key].add_documents(output.tokens.file(), output.tokens.behind_file(), output.lengths,
                                            output.sequences);
    }
    progress.advance(encoded.chunk->input_bytes);
    state_.position = encoded.chunk->end;
    state_.input_bytes += encoded.chunk->input_bytes;
    if (since_stored_.elapsed_s() >= options_.store_every_s) store();
  }

  void store() {
    PrepareState stored = state_;
    stored.report.elapsed_s += watch_.elapsed_s();
    outputs_.store(to_json(stored));
    since_stored_ = Stopwatch();
  }

  void finish() {
    PrepareReport& report = state_.report;
    if (report.documents == 0) {
      outputs_.remove();
      const std::string reason = report.broken_lines.empty()
                                     ? "the input is empty"
                                     : fmt::format("line {} of {}: {}", report.broken_lines[0].line,
                                                   report.broken_lines[0].file, report.broken_lines[0].reason);
      throw UserError(
          fmt::format("no document could be read from {} ({})", inputs_[0].name(), reason),
          "input is one JSON object a line with the text under --json_keys, or plain text with --plain_text");
    }
    // Stores the state, so that a run killed between the files below can resume.
    store();
    for (const std::string& prefix : output_prefixes(options_)) {
      IndexedDatasetWriter& writer = outputs_.writers()[report.outputs.size()];
      report.outputs.push_back({.prefix = prefix,
                                .documents = writer.num_documents(),
                                .tokens = writer.num_tokens(),
                                .sequences = writer.num_sequences(),
                                .bytes = writer.num_tokens() * token_bytes_of(type_)});
      forget_prepared(prefix);
      writer.finish();
      record_prepared(report.outputs.back(), job_);
    }
    outputs_.remove();
    report.input_bytes = state_.input_bytes;
    report.elapsed_s += watch_.elapsed_s();
  }

  const Stopwatch watch_;
  std::vector<PrepareInput> inputs_;
  const PrepareOptions& options_;
  Logger& log_;
  TokenType type_;
  ChunkEncoder encoder_;
  const std::string job_;
  ResumableOutputs outputs_;
  PrepareState state_;
  Stopwatch since_stored_;
};

std::string list_lines(const std::vector<InputProblem>& problems, int64_t count) {
  std::vector<std::string> places;
  for (const InputProblem& problem : problems) {
    if (places.size() == 10) break;
    places.push_back(fmt::format("{}:{}", problem.file, problem.line));
  }
  std::string text = join(places, ", ");
  if (count > static_cast<int64_t>(places.size()))
    text += fmt::format(" and {} more", count - static_cast<int64_t>(places.size()));
  return text;
}

}  // namespace

void PrepareOptions::visit(OptionVisitor& v) {
  v.group("Input and output");
  v.field(
      "input", input,
      "JSON lines, plain text, Parquet, Arrow, CSV or TSV: files, folders, patterns such as 'data/*.jsonl', or - for "
      "standard input; texts also compressed (.gz, .xz, .zst).");
  v.field("output_prefix", output_prefix,
          "The outputs are {output_prefix}_{key}_document.bin and .idx, or with split_sentences "
          "{output_prefix}_{key}_sentence.bin and .idx.");
  v.field("json_keys", json_keys, "Keys or columns whose texts are tokenised, each into its own output.");
  v.field("plain_text", plain_text, "The input is plain text, one document a file; files named .txt always are.");
  v.field("split_sentences", split_sentences, "Make each sentence a sequence of its document: for BERT, T5 and ICT.");
  v.field("keep_newlines", keep_newlines, "split_sentences: keep the line breaks behind a sentence in it.");
  v.field("append_eod", append_eod, "End each document with the end-of-document token.");
  v.field("add_special_tokens", add_special_tokens, "Also add the tokens that the tokenizer puts around a text.");
  v.field("workers", workers, "Number of threads that tokenise. Default: the number of processors.")
      .alias("num_workers")
      .within(1, 4096);
  v.field("log_interval", log_interval, "Documents between progress lines when not on a terminal.").at_least(1);
  v.field("overwrite", overwrite,
          "Replace outputs that are there already. Without it those of the same inputs and options are kept, and "
          "others are an error.");
  tokenizer.visit_standalone(v);
  hub.visit(v);
}

PrepareReport prepare_data(const PrepareOptions& options, const Tokenizer& tokenizer, Logger& log) {
  std::vector<std::string> skipped;
  std::vector<PrepareInput> inputs = find_inputs(options.input, options.plain_text, &skipped);
  for (const std::string& line : skipped) log.note("{}", line);
  check_options(options, inputs);
  const std::string job = job_of(options, inputs, tokenizer);
  if (!options.overwrite && !holds_unfinished(options.output_prefix, job)) {
    const bool is_repeatable =
        std::none_of(inputs.begin(), inputs.end(), [](const PrepareInput& input) { return input.path == "-"; });
    if (auto outputs = find_prepared(output_prefixes(options), job, is_repeatable)) {
      PrepareReport report;
      report.documents = outputs->front().documents;
      report.outputs = std::move(*outputs);
      report.was_finished = true;
      return report;
    }
  }
  return Preparation(options, std::move(inputs), job, tokenizer, log).run();
}

std::string describe(const PrepareReport& report) {
  std::string text = fmt::format("{} documents from {} of input in {}", report.documents,
                                 format_bytes(report.input_bytes), format_duration(report.elapsed_s));
  if (report.was_finished) {
    text = "finished before, from the same inputs and options: nothing was made anew (--overwrite does)";
  }
  if (report.resumed_at > 0) text += fmt::format(", {} of them in an earlier run", report.resumed_at);
  text += "\n";
  for (const auto& output : report.outputs) {
    text += fmt::format("  {}.bin: {} tokens in {} documents", output.prefix, output.tokens, output.documents);
    if (output.sequences > output.documents) text += fmt::format(" of {} sequences", output.sequences);
    text += fmt::format(", {}\n", format_bytes(output.bytes));
  }
  if (report.num_empty_lines > 0) {
    text += fmt::format("  skipped {} empty lines: {}\n", report.num_empty_lines,
                        list_lines(report.empty_lines, report.num_empty_lines));
  }
  if (report.num_empty_documents > 0) {
    text += fmt::format("  {} documents are empty: {}\n", report.num_empty_documents,
                        list_lines(report.empty_documents, report.num_empty_documents));
  }
  if (report.num_broken_lines > 0) {
    text += fmt::format("  skipped {} broken lines: {}\n", report.num_broken_lines,
                        list_lines(report.broken_lines, report.num_broken_lines));
    for (size_t i = 0; i < std::min<size_t>(report.broken_lines.size(), 3); ++i) {
      const InputProblem& problem = report.broken_lines[i];
      text += fmt::format("    {}:{}: {}\n", problem.file, problem.line, problem.reason);
    }
  }
  return text;
}

}  // namespace megalith
