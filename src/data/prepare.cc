// `megalith prepare`; see prepare.h.
//
// One thread reads and writes, the workers tokenise. Lines travel in chunks; the chunks are written in the order in
// which they were read, so the result does not depend on the number of workers, and at most a few chunks are in memory.
#include "data/prepare.h"

#include <fmt/format.h>
#include <glob.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "core/strings.h"
#include "data/indexed_dataset.h"
#include "tokenizer/utf8.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

constexpr size_t kMaxProblems = 100;  // of each kind are listed
constexpr size_t kChunkBytes = 256 * 1024;

struct Input {
  std::string path;
  bool is_plain_text = false;
  int64_t bytes = 0;
};

// A stretch of one input and what became of it.
struct Chunk {
  const Input* input = nullptr;
  std::string_view text;  // whole lines, or a whole plain-text file; a view of the mapped input
  int64_t first_line = 1;

  struct Document {
    int64_t line = 0;
    std::vector<std::vector<int32_t>> ids;  // one a key
  };
  std::vector<Document> documents;
  std::vector<int64_t> empty_lines;
  std::vector<std::pair<int64_t, std::string>> broken_lines;
  std::exception_ptr error;
  bool is_done = false;
};

std::vector<Input> find_inputs(const PrepareOptions& options) {
  if (options.input.empty()) throw UserError("no input is given", "name JSON lines or text files with --input");
  std::vector<Input> inputs;
  for (const std::string& pattern : options.input) {
    std::vector<std::string> paths;
    if (fs::exists(pattern) || pattern.find_first_of("*?[") == std::string::npos) {
      paths = {pattern};
    } else {
      glob_t found{};
      if (::glob(pattern.c_str(), 0, nullptr, &found) == 0)
        paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
      ::globfree(&found);
      if (paths.empty()) throw UserError(fmt::format("no file matches the input {}", pattern));
    }
    for (const std::string& path : paths) {
      const std::string extension = lower_case(fs::path(path).extension().string());
      if (extension == ".gz" || extension == ".xz" || extension == ".zst" || extension == ".bz2") {
        throw UserError(fmt::format("the input {} is compressed, which is not supported", path), "decompress it first");
      }
      inputs.push_back({path, options.plain_text || extension == ".txt", file_bytes(path)});
    }
  }
  return inputs;
}

// Turns the lines of a chunk into ids; what is wrong with a line becomes part of the result.
class Encoder {
 public:
  Encoder(const PrepareOptions& options, const Tokenizer& tokenizer) : options_(options), tokenizer_(tokenizer) {
    if (options.append_eod) eod_ = require_eod(tokenizer);
  }

  void encode(Chunk& chunk) const {
    if (chunk.input->is_plain_text) {
      chunk.documents.push_back({1, {encode_text(chunk.text)}});
      return;
    }
    int64_t line_number = chunk.first_line;
    for (std::string_view rest = chunk.text; !rest.empty(); ++line_number) {
      const size_t end = std::min(rest.find('\n'), rest.size());
      encode_line(rest.substr(0, end), line_number, chunk);
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
  }

 private:
  std::vector<int32_t> encode_text(std::string_view text) const {
    std::vector<int32_t> ids = tokenizer_.encode(text, options_.add_special_tokens);
    // An empty document stays empty, as in Megatron.
    if (eod_ && !ids.empty()) ids.push_back(*eod_);
    return ids;
  }

  void encode_line(std::string_view line, int64_t number, Chunk& chunk) const {
    if (trim(line).empty()) {
      chunk.empty_lines.push_back(number);
      return;
    }
    try {
      // JSON must be UTF-8; a stray byte costs one character, not the document.
      const Json json = is_valid_utf8(line) ? parse_json(line, chunk.input->path)
                                            : parse_json(replace_invalid_utf8(line), chunk.input->path);
      Chunk::Document document{number, {}};
      for (const std::string& key : options_.json_keys) {
        document.ids.push_back(encode_text(json_get<std::string>(json, key, "the line")));
      }
      chunk.documents.push_back(std::move(document));
    } catch (const UserError& error) {
      // The place is reported beside it: leave the parser's own "file:1: " out.
      std::string reason = error.message();
      const std::string place = chunk.input->path + ":1: ";
      if (reason.starts_with(place)) reason.erase(0, place.size());
      chunk.broken_lines.emplace_back(number, std::move(reason));
    }
  }

  const PrepareOptions& options_;
  const Tokenizer& tokenizer_;
  std::optional<int32_t> eod_;
};

// Threads that encode chunks; the caller takes them back in the order in which it gave them.
class Workers {
 public:
  Workers(int64_t count, const Encoder& encoder) : encoder_(encoder) {
    for (int64_t i = 0; i < count; ++i) threads_.emplace_back([this] { run(); });
  }
  ~Workers() {
    {
      std::lock_guard lock(mutex_);
      is_stopping_ = true;
    }
    work_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  void give(std::unique_ptr<Chunk> chunk) {
    {
      std::lock_guard lock(mutex_);
      waiting_.push_back(chunk.get());
      in_order_.push_back(std::move(chunk));
    }
    work_.notify_one();
  }
  size_t num_pending() const { return in_order_.size(); }  // changed by the caller's thread alone
  // Waits for the oldest chunk; rethrows what its encoding threw.
  std::unique_ptr<Chunk> take() {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return in_order_.front()->is_done; });
    std::unique_ptr<Chunk> chunk = std::move(in_order_.front());
    in_order_.pop_front();
    if (chunk->error) std::rethrow_exception(chunk->error);
    return chunk;
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      work_.wait(lock, [&] { return is_stopping_ || !waiting_.empty(); });
      if (is_stopping_) return;
      Chunk& chunk = *waiting_.front();
      waiting_.pop_front();
      lock.unlock();
      try {
        encoder_.encode(chunk);
      } catch (...) {
        chunk.error = std::current_exception();
      }
      lock.lock();
      chunk.is_done = true;
      done_.notify_one();
    }
  }

  const Encoder& encoder_;
  std::mutex mutex_;
  std::condition_variable work_, done_;
  std::deque<Chunk*> waiting_;
  std::deque<std::unique_ptr<Chunk>> in_order_;
  std::vector<std::thread> threads_;
  bool is_stopping_ = false;
};

class Preparation {
 public:
  Preparation(const PrepareOptions& options, const Tokenizer& tokenizer, Logger& log)
      : options_(options), log_(log), inputs_(find_inputs(options)), encoder_(options, tokenizer) {
    if (options.output_prefix.empty()) throw UserError("no output_prefix is given", "name it with --output_prefix");
    std::vector<std::string> keys = options.json_keys;
    if (keys.empty())
      throw UserError("json_keys is empty", "name the key that holds the text, such as --json_keys text");
    const auto plain_text =
        std::find_if(inputs_.begin(), inputs_.end(), [](const Input& i) { return i.is_plain_text; });
    if (plain_text != inputs_.end() && keys.size() > 1) {
      throw UserError(fmt::format("json_keys has {} keys, but {} is plain text", keys.size(), plain_text->path),
                      "prepare plain text by itself");
    }
    const TokenType type = token_type_for(tokenizer.vocab_size());
    for (const std::string& key : keys) {
      report_.outputs.push_back({fmt::format("{}_{}_document", options.output_prefix, key), 0, 0});
      writers_.emplace_back(report_.outputs.back().prefix, type);
    }
    for (const Input& input : inputs_) report_.input_bytes += input.bytes;
  }

  PrepareReport run() {
    const Stopwatch watch;
    const auto num_workers = options_.workers.value_or(std::max(1u, std::thread::hardware_concurrency()));
    ProgressSettings settings;
    settings.line_every_s = 1e9;  // without a terminal the lines come every log_interval documents
    Progress progress(log_, "prepare", report_.input_bytes, "bytes", settings);
    {
      MappedFile file;  // outlives the workers, which read from it
      Workers workers(num_workers, encoder_);
      const size_t max_pending = static_cast<size_t>(num_workers) * 4;
      const auto write_one = [&] { write(*workers.take(), progress); };
      for (const Input& input : inputs_) {
        while (workers.num_pending() > 0) write_one();
        file = MappedFile(input.path, MappedFile::Access::kSequential);
        std::string_view rest = file.text();
        int64_t line = 1;
        if (input.is_plain_text) {
          workers.give(make_chunk(input, rest, 1));
          continue;
        }
        while (!rest.empty()) {
          const size_t end =
              rest.size() <= kChunkBytes ? rest.size() : std::min(rest.find('\n', kChunkBytes), rest.size() - 1) + 1;
          const std::string_view text = rest.substr(0, end);
          rest.remove_prefix(end);
          while (workers.num_pending() >= max_pending) write_one();
          workers.give(make_chunk(input, text, line));
          line += std::count(text.begin(), text.end(), '\n');
        }
      }
      while (workers.num_pending() > 0) write_one();
    }
    progress.finish();
    if (report_.documents == 0) {
      const std::string reason = report_.broken_lines.empty()
                                     ? "the input is empty"
                                     : fmt::format("line {} of {}: {}", report_.broken_lines[0].line,
                                                   report_.broken_lines[0].file, report_.broken_lines[0].reason);
      throw UserError(
          fmt::format("no document could be read from {} ({})", inputs_[0].path, reason),
          "input is one JSON object a line with the text under --json_keys, or plain text with --plain_text");
    }
    for (IndexedDatasetWriter& writer : writers_) writer.finish();
    for (size_t i = 0; i < writers_.size(); ++i) {
      report_.outputs[i].documents = writers_[i].num_documents();
      report_.outputs[i].tokens = writers_[i].num_tokens();
    }
    report_.elapsed_s = watch.elapsed_s();
    return std::move(report_);
  }

 private:
  static std::unique_ptr<Chunk> make_chunk(const Input& input, std::string_view text, int64_t first_line) {
    auto chunk = std::make_unique<Chunk>();
    chunk->input = &input;
    chunk->text = text;
    chunk->first_line = first_line;
    return chunk;
  }

  void write(const Chunk& chunk, Progress& progress) {
    const std::string& file = chunk.input->path;
    const auto list = [&](std::vector<InputProblem>& problems, int64_t& count, int64_t line, std::string reason) {
      ++count;
      if (problems.size() < kMaxProblems) problems.push_back({file, line, std::move(reason)});
    };
    for (const int64_t line : chunk.empty_lines) list(report_.empty_lines, report_.num_empty_lines, line, "");
    for (const auto& [line, reason] : chunk.broken_lines) {
      list(report_.broken_lines, report_.num_broken_lines, line, reason);
    }
    for (const Chunk::Document& document : chunk.documents) {
      bool is_empty = true;
      for (size_t key = 0; key < writers_.size(); ++key) {
        if (!document.ids[key].empty()) {
          writers_[key].add_sequence(document.ids[key]);
          is_empty = false;
        }
        writers_[key].end_document();
      }
      if (is_empty) list(report_.empty_documents, report_.num_empty_documents, document.line, "");
      ++report_.documents;
      if (!log_.is_terminal() && report_.documents % options_.log_interval == 0) {
        log_.info("{} documents; {}", report_.documents, progress.line());
      }
    }
    progress.advance(static_cast<int64_t>(chunk.text.size()));
  }

  const PrepareOptions& options_;
  Logger& log_;
  std::vector<Input> inputs_;
  Encoder encoder_;
  std::vector<IndexedDatasetWriter> writers_;
  PrepareReport report_;
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
  v.field("input", input, "JSON lines or plain text: files, or patterns such as 'data/*.jsonl'.");
  v.field("output_prefix", output_prefix, "Outputs are {output_prefix}_{key}_document.bin and .idx.");
  v.field("json_keys", json_keys, "Keys whose texts are tokenised, each into its own output.");
  v.field("plain_text", plain_text, "The input is plain text, one document a file; files named .txt always are.");
  v.field("append_eod", append_eod, "End each document with the end-of-document token.");
  v.field("add_special_tokens", add_special_tokens, "Also add what the tokenizer puts around a text.");
  v.field("workers", workers, "Threads that tokenise; all processors when not given.").at_least(1).at_most(4096);
  v.field("log_interval", log_interval, "Documents between progress lines when not on a terminal.").at_least(1);
  tokenizer.visit_standalone(v);
}

PrepareReport prepare_data(const PrepareOptions& options, const Tokenizer& tokenizer, Logger& log) {
  return Preparation(options, tokenizer, log).run();
}

std::string describe(const PrepareReport& report) {
  std::string text = fmt::format("{} documents from {} of input in {}\n", report.documents,
                                 format_bytes(report.input_bytes), format_duration(report.elapsed_s));
  for (const auto& output : report.outputs) {
    text += fmt::format("  {}.bin: {} tokens in {} documents\n", output.prefix, output.tokens, output.documents);
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
