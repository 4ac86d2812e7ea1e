#include "data/prepare_input.h"

#include <fmt/format.h>
#include <glob.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>

#include "core/error.h"
#include "core/file.h"
#include "core/number_of.h"
#include "core/strings.h"
#include "core/visible_text.h"
#include "data/arrow_source.h"
#include "hub/text_files.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

constexpr size_t kChunkBytes = size_t{256} * 1024;
constexpr size_t kMostEndings = 8;
constexpr size_t kLongLineBytes = size_t{1} << 20;

PrepareInput input_of(const std::string& path, bool is_plain_text) {
  PrepareInput input{path, is_plain_text};
  if (path == "-") return input;
  input.bytes = file_bytes(path);
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0) input.modified_ns = info.st_mtim.tv_sec * 1'000'000'000 + info.st_mtim.tv_nsec;
  const std::string_view name = without_compression_ending(path);
  input.is_rows = is_rows_file(path);
  if (input.is_rows && is_plain_text) {
    throw UserError(fmt::format("{} holds rows, and plain_text is given", path),
                    "leave plain_text out, and name the column of the texts with --json_keys");
  }
  input.is_plain_text = is_plain_text || lower_case(fs::path(name).extension().string()) == ".txt";
  return input;
}

// "the folder set: 3 files skipped, which are no texts by their names: 2 .json, 1 without an ending".
std::string describe_skipped(const std::string& folder, const std::map<std::string, int64_t>& endings) {
  int64_t count = 0;
  std::vector<std::string> parts;
  for (const auto& [ending, number] : endings) {
    count += number;
    parts.push_back(fmt::format("{} {}", number, ending));
  }
  if (parts.size() > kMostEndings) {
    parts.resize(kMostEndings);
    parts.emplace_back("…");
  }
  return fmt::format("the folder {}: {} skipped, by their endings: {}", folder, number_of(count, "file", "files"),
                     join(parts, ", "));
}

void count_skipped(const fs::path& file, std::map<std::string, int64_t>& endings) {
  const std::string name = file.filename().string();
  const bool is_hidden = name.starts_with('.') || name.starts_with('_');
  const std::string ending = lower_case(file.extension().string());
  ++endings[is_hidden ? "hidden" : ending.empty() ? "without an ending" : visible_text(ending)];
}

std::vector<std::string> texts_below(const std::string& folder, std::vector<std::string>* skipped) {
  std::vector<std::string> paths;
  std::map<std::string, int64_t> endings;
  for (auto entry = fs::recursive_directory_iterator(folder); entry != fs::recursive_directory_iterator(); ++entry) {
    if (entry->is_directory() && entry->path().filename().string().starts_with('.')) {
      entry.disable_recursion_pending();
    } else if (entry->is_regular_file() && is_texts_name(entry->path().string())) {
      paths.push_back(entry->path().string());
    } else if (entry->is_regular_file()) {
      count_skipped(entry->path(), endings);
    }
  }
  if (skipped != nullptr && !endings.empty()) skipped->push_back(describe_skipped(folder, endings));
  std::sort(paths.begin(), paths.end());
  if (paths.empty()) {
    throw UserError(endings.empty() ? fmt::format("the folder {} holds no texts", folder)
                                    : fmt::format("no texts in {}", describe_skipped(folder, endings)),
                    "files are found by their endings: .jsonl, .ndjson, .txt (also compressed), .parquet, .arrow, "
                    ".feather, .csv, .tsv; others can be named one by one, or by a pattern such as 'data/*.json'");
  }
  return paths;
}

// memchr is vectorised everywhere.
int64_t count_lines(std::string_view text) {
  int64_t count = 0;
  for (size_t at = text.find('\n'); at != std::string_view::npos; at = text.find('\n', at + 1)) ++count;
  return count;
}

}  // namespace

std::vector<PrepareInput> find_inputs(const std::vector<std::string>& patterns, bool all_plain,
                                      std::vector<std::string>* skipped) {
  if (patterns.empty()) throw UserError("no input is given", "name JSON lines or text files with --input");
  std::vector<PrepareInput> inputs;
  for (const std::string& pattern : patterns) {
    std::vector<std::string> paths;
    if (pattern != "-" && fs::is_directory(pattern)) {
      paths = texts_below(pattern, skipped);
    } else if (pattern == "-" || fs::exists(pattern) || pattern.find_first_of("*?[") == std::string::npos) {
      paths = {pattern};
    } else {
      glob_t found{};
      if (::glob(pattern.c_str(), 0, nullptr, &found) == 0)
        paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
      ::globfree(&found);
      if (paths.empty()) throw UserError(fmt::format("no file matches the input {}", pattern));
    }
    for (const std::string& path : paths) inputs.push_back(input_of(path, all_plain));
  }
  const auto num_standard = std::count_if(inputs.begin(), inputs.end(), [](const auto& i) { return i.path == "-"; });
  if (num_standard > 1) throw UserError("standard input is named more than once", "give --input - once");
  return inputs;
}

int64_t total_bytes(const std::vector<PrepareInput>& inputs) {
  int64_t total = 0;
  for (const PrepareInput& input : inputs) {
    if (input.path == "-") return 0;
    total += input.bytes;
  }
  return total;
}

ChunkReader::ChunkReader(const std::vector<PrepareInput>& inputs, std::vector<std::string> columns,
                         int64_t max_line_bytes, const InputPosition& position)
    : inputs_(inputs), columns_(std::move(columns)), max_line_bytes_(max_line_bytes), position_(position) {
  if (position_.input < inputs_.size()) open();
}

void ChunkReader::open() {
  const PrepareInput& input = inputs_[position_.input];
  source_ = input.is_rows ? open_rows(input.path, columns_) : open_text(input.path);
  checksum_ = StreamingChecksum();
  pending_.clear();
  // Standard input may be a file, but perhaps not the last run's.
  is_seekable_ = input.path != "-" && source_->try_seek(position_.offset);
  // Input is read in blocks, so the last run had read past the position.
  source_bytes_ = position_.input_bytes;
  if (is_seekable_) return;
  std::string block(kChunkBytes, '\0');
  for (int64_t left = position_.offset; left > 0;) {
    const size_t count =
        source_->read(std::span(block).first(static_cast<size_t>(std::min<int64_t>(left, kChunkBytes))));
    if (count == 0) {
      throw UserError(fmt::format("{} ends before byte {} of its text, which was read the last time", input.name(),
                                  position_.offset),
                      "give the same input again, or remove the folder of the unfinished run to begin anew");
    }
    checksum_.update(std::string_view(block).substr(0, count));
    left -= static_cast<int64_t>(count);
  }
  if (position_.offset > 0 && checksum_.sum64() != position_.checksum) {
    throw UserError(fmt::format("the first {} bytes of {} are not those that were read the last time", position_.offset,
                                input.name()),
                    "give the same input again, or remove the folder of the unfinished run to begin anew");
  }
}

// Appends to pending_; false at the end.
bool ChunkReader::read_block() {
  const size_t before = pending_.size();
  pending_.resize(before + kChunkBytes);
  const size_t count = source_->read(std::span(pending_).subspan(before));
  pending_.resize(before + count);
  return count > 0;
}

std::unique_ptr<InputChunk> ChunkReader::next() {
  while (position_.input < inputs_.size()) {
    if (inputs_[position_.input].is_plain_text) return next_plain_text();
    auto chunk = std::make_unique<InputChunk>();
    chunk->input = &inputs_[position_.input];
    chunk->first_line = position_.line;
    // To the last line break once there is enough; else on to the end of a line.
    bool is_end = false;
    size_t searched = 0, cut = std::string::npos;
    int64_t dropped = 0;
    while (!is_end && cut == std::string::npos) {
      if (pending_.size() < kChunkBytes || searched == pending_.size()) is_end = !read_block();
      if (pending_.size() < kChunkBytes && !is_end) continue;
      chunk->is_one_line = searched >= kLongLineBytes;
      const std::string_view fresh = std::string_view(pending_).substr(searched);
      const size_t found = chunk->is_one_line ? fresh.find('\n') : fresh.rfind('\n');
      if (found != std::string_view::npos) cut = searched + found + 1;
      searched = pending_.size();
      if (cut == std::string::npos && static_cast<int64_t>(searched) > max_line_bytes_) {
        chunk->is_too_long = true;
        if (!is_seekable_) checksum_.update(pending_);
        dropped += static_cast<int64_t>(searched);
        pending_.clear();
        searched = 0;
      }
    }
    if (chunk->is_too_long) {
      // Drop the rest of the line; the next chunk begins after it.
      const size_t line_end = pending_.find('\n');
      cut = line_end == std::string::npos ? pending_.size() : line_end + 1;
    } else if (cut == std::string::npos) {
      cut = pending_.size();
    }
    if (cut == 0 && dropped == 0) {  // end of this input
      ++position_.input;
      position_ = {position_.input};
      if (position_.input < inputs_.size()) open();
      continue;
    }
    // Moves the buffer into the chunk, copying only the unfinished last line.
    std::string rest = pending_.substr(cut);
    chunk->text = std::move(pending_);
    chunk->text.resize(cut);
    pending_ = std::move(rest);
    if (!is_seekable_) checksum_.update(chunk->text);
    position_.offset += dropped + static_cast<int64_t>(cut);
    position_.line += chunk->is_too_long ? 1 : count_lines(chunk->text);
    position_.checksum = is_seekable_ ? 0 : checksum_.sum64();
    if (chunk->is_too_long) chunk->text.clear();
    chunk->input_bytes = std::max<int64_t>(source_->input_bytes() - source_bytes_, 0);
    source_bytes_ += chunk->input_bytes;
    position_.input_bytes = source_bytes_;
    chunk->end = position_;
    return chunk;
  }
  return nullptr;
}

std::unique_ptr<InputChunk> ChunkReader::next_plain_text() {
  auto chunk = std::make_unique<InputChunk>();
  chunk->input = &inputs_[position_.input];
  while (read_block()) {
    if (static_cast<int64_t>(pending_.size()) > max_line_bytes_) {
      throw UserError(fmt::format("{} is longer than {}, and a plain-text file is one document", chunk->input->name(),
                                  format_bytes(max_line_bytes_)),
                      "divide it, or write its documents as JSON lines");
    }
  }
  chunk->text = std::move(pending_);
  pending_.clear();
  chunk->input_bytes = source_->input_bytes();
  position_ = {position_.input + 1};
  chunk->end = position_;
  if (position_.input < inputs_.size()) open();
  return chunk;
}

}  // namespace megalith
