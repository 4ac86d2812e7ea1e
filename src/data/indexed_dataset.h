// Megatron's indexed data set: token ids in {prefix}.bin, their boundaries in {prefix}.idx.
//
// .bin is all sequences' tokens back to back. .idx holds "MMIDIDX\0\0", u64 version 1, u8 type, u64 N sequences, u64 D
// document boundaries, i32[N] lengths in tokens, i64[N] byte offsets in .bin, i64[D] boundaries as sequence numbers
// (first 0, last N), little-endian, unaligned. Source: megatron/core/datasets/indexed_dataset.py.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/file.h"
#include "data/token_source.h"

namespace megalith {

inline constexpr std::string_view kIndexFileMagic("MMIDIDX\0\0", 9);
inline constexpr uint64_t kIndexFileVersion = 1;

// Type codes of .idx.
enum class TokenType : uint8_t { kUint8 = 1, kInt8, kInt16, kInt32, kInt64, kFloat64, kFloat32, kUint16 };

int64_t token_bytes_of(TokenType type);
// As Megatron's writer: u16 below 65500 ids, else i32.
TokenType token_type_for(int64_t vocab_size);

// "x", "x.bin" and "x.idx" name the prefix "x".
std::string data_prefix(std::string_view path);

// Memory-mapped; opening checks every boundary against both files' sizes.
class IndexedDataset final : public TokenSource {
 public:
  // UserError for a file that is missing, truncated, not of this format, or has impossible boundaries.
  explicit IndexedDataset(std::string_view path);

  int64_t num_sequences() const override { return num_sequences_; }
  int64_t sequence_length(int64_t sequence) const override;
  void read_lengths(int64_t begin, int64_t end, int32_t* out) const override;
  // i32 lengths of all sequences, as in .idx.
  std::span<const std::byte> length_bytes() const;
  void read(int64_t sequence, int64_t offset, int64_t count, int64_t* out) const override;
  std::string name() const override { return prefix_; }
  std::string describe(int64_t sequence) const override;

  int64_t num_documents() const override { return num_boundaries_ - 1; }
  int64_t document_begin(int64_t document) const override;
  int64_t num_tokens() const { return num_tokens_; }
  TokenType token_type() const { return type_; }
  // A sequence's bytes, as in .bin.
  std::span<const std::byte> sequence_bytes(int64_t sequence) const;
  // Bytes of .bin and .idx outside sequences and arrays (an .idx of images and text has some).
  int64_t num_unused_bin_bytes() const;
  int64_t num_trailing_index_bytes() const;

 private:
  void check_index();
  // Drops a large index's pages from this process; they stay in the system's cache.
  void forget_index_pages() const;

  std::string prefix_;
  MappedFile index_, bin_;
  TokenType type_ = TokenType::kInt32;
  int64_t num_sequences_ = 0, num_boundaries_ = 0, num_tokens_ = 0;
  const std::byte* lengths_ = nullptr;
  const std::byte* offsets_ = nullptr;
  const std::byte* boundaries_ = nullptr;
};

}  // namespace megalith
