// Text from a file or standard input, decompressed: gzip, xz and zstd are told by their first bytes, not names.
// Constant memory.
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

  // Writes the next bytes of text to out and returns how many; 0 at the end. UserError with the input's name and byte
  // offset for data damaged, truncated or unreadable.
  virtual size_t read(std::span<char> out) = 0;
  // Raw (compressed) input bytes read so far.
  virtual int64_t input_bytes() const = 0;
  // Skips to text offset `offset` without reading, if the input allows; only before the first read().
  virtual bool try_seek(int64_t offset) { return false; }
};

// "-" is standard input. UserError when the file cannot be opened.
std::unique_ptr<TextSource> open_text(const std::string& path);
// Owns the open descriptor; `name` is for messages.
std::unique_ptr<TextSource> open_text(int descriptor, std::string name);

// "a.jsonl.gz" → "a.jsonl".
std::string_view without_compression_ending(std::string_view path);

}  // namespace megalith
