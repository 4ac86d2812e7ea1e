// Text from a file or from standard input, decompressed on the way. The first bytes tell whether it is gzip, xz or
// zstd, not the name. Memory is constant for any size.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace megalith {

class TextSource {
 public:
  virtual ~TextSource() = default;

  // Writes the next bytes of the text to out and returns how many; 0 at the end. UserError, with the name and the byte
  // of the input, for data that are damaged, cut or cannot be read.
  virtual size_t read(std::span<char> out) = 0;
  // Bytes of the input (compressed, where it is) that were taken so far.
  virtual int64_t input_bytes() const = 0;
  // Goes to byte `offset` of the text without reading what lies before it, when the input allows that; only before the
  // first read().
  virtual bool try_seek(int64_t offset) { return false; }
};

// "-" is standard input. UserError when the file cannot be opened.
std::unique_ptr<TextSource> open_text(const std::string& path);
// The same over an open descriptor, which is closed at the end; `name` is for messages.
std::unique_ptr<TextSource> open_text(int descriptor, std::string name);

// "a.jsonl.gz" → "a.jsonl": the name without an ending that says how it is compressed.
std::string_view without_compression_ending(std::string_view path);

}  // namespace megalith
