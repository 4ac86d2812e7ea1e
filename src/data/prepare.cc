// `megalith prepare`; see prepare.h.
//
// One thread reads and writes, the workers tokenise: what they hand over are the bytes of the output. Lines travel in
// chunks; the chunks are written in the order in which they were read, so the result does not depend on the number of
// workers, and at most a few chunks are in memory.
#include "data/prepare.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <thread>

#include "core/error.h"
#include "core/strings.h"
#include "core/time.h"
#include "data/indexed_writer.h"
#include "data/prepare_encoder.h"
#include "data/prepare_input.h"
#include "data/prepare_state.h"
#include "data/prepared_outputs.h"

namespace megalith {
namespace {

constexpr size_t kMaxProblems = 100;  // of each kind are listed

EncoderOptions encoder_options(const PrepareOptions& options) {
  return {.json_keys = options.json_keys,
          .append_eod = options.append_eod,
          .add_special_tokens = options.add_special_tokens,
          .split_sentences = options.split_sentences,
          .keep_newlines = options.keep_newlines,
          .spill_prefix = (prepare_folder_of(options.output_prefix) / "long").string(),
          .max_line_memory = options.max_line_memory};
}

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

class Preparation {
 public:
  Preparation(const PrepareOptions& options, std::vector<PrepareInput> inputs, std::string job,
              const Tokenizer& tokenizer, Logger& log)
      : inputs_(std::move(inputs)),
        options_(options),
        log_(log),
        type_(token_type_for(tokenizer.vocab_size())),
        encoder_(encoder_options(options), tokenizer, type_),
        job_(std::move(job)),
        folder_(options.output_prefix) {
    for (std::string& prefix : output_prefixes(options)) outputs_.push_back({.prefix = std::move(prefix)});
    take_up();
  }

  PrepareReport run() {
    const auto num_workers = options_.workers.value_or(std::max(1u, std::thread::hardware_concurrency()));
    int64_t total_bytes = 0;
    bool is_size_known = true;
    for (const PrepareInput& input : inputs_) {
      total_bytes += input.bytes;
      is_size_known = is_size_known && input.path != "-";
    }
    ProgressSettings settings;
    settings.line_every_s = 1e9;  // without a terminal the lines come every log_interval documents
    Progress progress(log_, "prepare", is_size_known ? std::max<int64_t>(total_bytes - state_.input_bytes, 1) : 0,
                      "bytes", settings);
    ChunkReader reader(inputs_, options_.json_keys, options_.max_line_memory / kLineMemory, state_.position);
    {
      EncoderPool pool(num_workers, encoder_);
      const size_t max_pending = static_cast<size_t>(num_workers) * 4;
      // A longer line is done with before the next one is read.
      const size_t max_bytes = std::max<size_t>(static_cast<size_t>(num_workers) * (16 << 20), 64 << 20);
      while (std::unique_ptr<InputChunk> chunk = reader.next()) {
        while (pool.num_pending() >= max_pending) write(pool.take(), progress);
        pool.give(std::move(chunk));
        while (pool.pending_bytes() > max_bytes) write(pool.take(), progress);
      }
      while (pool.num_pending() > 0) write(pool.take(), progress);
    }
    progress.finish();
    finish();
    return std::move(state_.report);
  }

 private:
  // Goes on from an unfinished run of the same job, when there is one.
  void take_up() {
    const size_t num_writers = outputs_.size();
    if (auto found = folder_.load(job_, num_writers, log_)) {
      try {
        for (size_t i = 0; i < num_writers; ++i) {
          writers_.emplace_back(outputs_[i].prefix, type_, folder_.part(i), found->writers[i]);
        }
        state_ = std::move(*found);
        state_.report.resumed_at = state_.report.documents;
        log_.info("going on behind document {}, where the last run stopped", state_.report.documents);
        return;
      } catch (const std::exception& error) {
        log_.warn("{}: beginning anew", error.what());
        writers_.clear();
        folder_.clear();
      }
    }
    for (size_t i = 0; i < num_writers; ++i) {
      writers_.emplace_back(outputs_[i].prefix, type_, folder_.part(i), IndexedDatasetWriter::Position{});
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
    for (size_t key = 0; key < writers_.size(); ++key) {
      const EncodedChunk::Output& output = encoded.outputs[key];
      writers_[key].add_documents(output.tokens.file(), output.tokens.behind_file(), output.lengths, output.sequences);
    }
    progress.advance(encoded.chunk->input_bytes);
    state_.position = encoded.chunk->end;
    state_.input_bytes += encoded.chunk->input_bytes;
    if (since_stored_.elapsed_s() >= options_.store_every_s) store();
  }

  void store() {
    state_.writers.clear();
    for (IndexedDatasetWriter& writer : writers_) state_.writers.push_back(writer.checkpoint());
    PrepareState stored = state_;
    stored.report.elapsed_s += watch_.elapsed_s();
    folder_.store(job_, stored);
    since_stored_ = Stopwatch();
  }

  void finish() {
    PrepareReport& report = state_.report;
    if (report.documents == 0) {
      folder_.remove();
      const std::string reason = report.broken_lines.empty()
                                     ? "the input is empty"
                                     : fmt::format("line {} of {}: {}", report.broken_lines[0].line,
                                                   report.broken_lines[0].file, report.broken_lines[0].reason);
      throw UserError(
          fmt::format("no document could be read from {} ({})", inputs_[0].name(), reason),
          "input is one JSON object a line with the text under --json_keys, or plain text with --plain_text");
    }
    // With its state on disk a run that is killed between the files below is taken up, whatever they are by then.
    store();
    for (size_t i = 0; i < writers_.size(); ++i) {
      outputs_[i].documents = writers_[i].num_documents();
      outputs_[i].sequences = writers_[i].num_sequences();
      outputs_[i].tokens = writers_[i].num_tokens();
      outputs_[i].bytes = writers_[i].num_tokens() * token_bytes_of(type_);
      forget_prepared(outputs_[i].prefix);
      writers_[i].finish();
      record_prepared(outputs_[i], job_);
    }
    folder_.remove();
    report.outputs = std::move(outputs_);
    report.input_bytes = state_.input_bytes;
    report.elapsed_s += watch_.elapsed_s();
  }

  const Stopwatch watch_;
  std::vector<PrepareInput> inputs_;
  const PrepareOptions& options_;
  Logger& log_;
  TokenType type_;
  ChunkEncoder encoder_;
  std::string job_;
  PrepareFolder folder_;
  std::vector<PrepareReport::Output> outputs_;
  std::vector<IndexedDatasetWriter> writers_;
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
      .at_least(1)
      .at_most(4096);
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
  std::string job = job_of(options, inputs, tokenizer);
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
  return Preparation(options, std::move(inputs), std::move(job), tokenizer, log).run();
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
