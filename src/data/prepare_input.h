// The inputs of `prepare` as chunks of whole lines, in order, resumable at any place.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/checksum.h"
#include "data/text_source.h"

namespace megalith {

struct PrepareInput {
  std::string path;  // "-": standard input
  bool is_plain_text = false;
  bool is_rows = false;                // Parquet, Arrow, CSV: rows are documents, columns texts
  int64_t bytes = 0, modified_ns = 0;  // 0 for standard input
  std::string name() const { return path == "-" ? "standard input" : path; }
};

// Files, patterns, folders and "-"; UserError for what does not exist. all_plain: plain text whatever the names say. A
// folder means the text files in it and below, in name order, without hidden ones.
//   skipped  gets a line for each folder with skipped files: how many, by extension
std::vector<PrepareInput> find_inputs(const std::vector<std::string>& patterns, bool all_plain,
                                      std::vector<std::string>* skipped = nullptr);

// Sum over inputs; 0 if one is standard input.
int64_t total_bytes(const std::vector<PrepareInput>& inputs);

// A reading position; bytes of text, after decompression.
struct InputPosition {
  size_t input = 0;
  int64_t offset = 0;
  int64_t line = 1;
  int64_t input_bytes = 0;  // raw bytes of this input read to get here
  uint64_t checksum = 0;    // of the text before; 0 if it need not be read again
};

struct InputChunk {
  const PrepareInput* input = nullptr;
  std::string text;  // whole lines, or a whole plain-text file
  int64_t first_line = 1;
  bool is_too_long = false;  // the chunk's one line exceeded the limit: no text
  bool is_one_line = false;  // one long line
  InputPosition end;         // start of the next chunk
  int64_t input_bytes = 0;   // raw bytes of the input in this chunk
};

class ChunkReader {
 public:
  // columns         of inputs with rows: those that hold the texts
  // max_line_bytes  longer lines are left out; longer plain-text files are errors
  // inputs must outlive the reader and its chunks.
  ChunkReader(const std::vector<PrepareInput>& inputs, std::vector<std::string> columns, int64_t max_line_bytes,
              const InputPosition& position);

  // The next chunk; null at the end. UserError for unreadable inputs, and for one that changed since it was read
  // before.
  std::unique_ptr<InputChunk> next();

 private:
  void open();
  bool read_block();
  std::unique_ptr<InputChunk> next_plain_text();

  const std::vector<PrepareInput>& inputs_;
  std::vector<std::string> columns_;
  int64_t max_line_bytes_;
  InputPosition position_;
  std::unique_ptr<TextSource> source_;
  bool is_seekable_ = false;  // then no checksum is kept
  StreamingChecksum checksum_;
  std::string pending_;  // read, not yet handed out
  int64_t source_bytes_ = 0;
};

}  // namespace megalith
