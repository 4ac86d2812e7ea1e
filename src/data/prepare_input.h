// The inputs of `prepare` as chunks of whole lines, in order and from any place on, so that work can be taken up again.
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
  std::string path;  // "-" is standard input
  bool is_plain_text = false;
  bool is_rows = false;                // Parquet, Arrow, CSV: a document is a row, and its texts are columns
  int64_t bytes = 0, modified_ns = 0;  // 0 for standard input
  std::string name() const { return path == "-" ? "standard input" : path; }
};

// Files, patterns, folders and "-"; UserError for what does not exist. all_plain: plain text whatever the names say.
// A folder stands for the files of texts in it and below it, in the order of their names; hidden ones are left out.
//   skipped  gets a line for each folder with files that were left out: how many, by their endings
std::vector<PrepareInput> find_inputs(const std::vector<std::string>& patterns, bool all_plain,
                                      std::vector<std::string>* skipped = nullptr);

// The inputs' sum; 0 when one is standard input.
int64_t total_bytes(const std::vector<PrepareInput>& inputs);

// Where reading is: bytes are those of the text, after decompression.
struct InputPosition {
  size_t input = 0;  // which of the inputs
  int64_t offset = 0;
  int64_t line = 1;         // number of the line that begins there
  int64_t input_bytes = 0;  // of this input, as it lies there, that were taken to get here
  uint64_t checksum = 0;    // of the text before it; 0 where the text before it need not be read again
};

// A stretch of one input.
struct InputChunk {
  const PrepareInput* input = nullptr;
  std::string text;  // whole lines, or a whole plain-text file
  int64_t first_line = 1;
  bool is_too_long = false;  // the one line of this chunk was longer than allowed: its text is left out
  bool is_one_line = false;  // a long one, by itself
  InputPosition end;         // where the next chunk begins
  int64_t input_bytes = 0;   // of the input, as it lies there, that this chunk took
};

class ChunkReader {
 public:
  // columns         of inputs with rows: the names of those that hold the texts
  // max_line_bytes  longer lines are left out; longer plain-text files are errors
  // The inputs outlive the reader and its chunks.
  ChunkReader(const std::vector<PrepareInput>& inputs, std::vector<std::string> columns, int64_t max_line_bytes,
              const InputPosition& position);

  // The next chunk, or nothing at the end. UserError for inputs that cannot be read, and for an input that is not the
  // one that was read before.
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
  std::string pending_;  // read and not yet handed out
  int64_t source_bytes_ = 0;
};

}  // namespace megalith
