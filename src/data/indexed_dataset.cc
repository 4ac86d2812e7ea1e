// Megatron's indexed data set; see indexed_dataset.h.
#include "data/indexed_dataset.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/error.h"
#include "storage/object_mirror.h"

namespace megalith {
namespace {

static_assert(std::endian::native == std::endian::little, "the files are little-endian");

constexpr std::string_view kIndexMagic = kIndexFileMagic;
constexpr size_t kHeaderBytes = 34;
constexpr uint64_t kVersion = kIndexFileVersion;

// Arrays follow a header of 34 bytes: nothing is aligned.
template <typename T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

template <typename T>
void widen(const std::byte* from, int64_t count, int64_t* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = load<T>(from + i * static_cast<int64_t>(sizeof(T)));
}

constexpr const char* kDamaged = "the file is damaged: copy it again, or make it anew with 'megalith prepare'";

}  // namespace

int64_t token_bytes_of(TokenType type) {
  switch (type) {
    case TokenType::kUint8:
    case TokenType::kInt8:
      return 1;
    case TokenType::kInt16:
    case TokenType::kUint16:
      return 2;
    case TokenType::kInt32:
    case TokenType::kFloat32:
      return 4;
    case TokenType::kInt64:
    case TokenType::kFloat64:
      return 8;
  }
  return 0;
}

TokenType token_type_for(int64_t vocab_size) { return vocab_size < 65500 ? TokenType::kUint16 : TokenType::kInt32; }

std::string data_prefix(std::string_view path) {
  if (path.ends_with(".bin") || path.ends_with(".idx")) path.remove_suffix(4);
  return std::string(path);
}

IndexedDataset::IndexedDataset(std::string_view path) : prefix_(data_prefix(path)) {
  for (const char* extension : {".idx", ".bin"}) {
    if (!std::filesystem::exists(prefix_ + extension)) {
      throw UserError(fmt::format("data set {}: {}{} does not exist", prefix_, prefix_, extension),
                      "give the prefix of a .bin and .idx pair; 'megalith prepare' makes one");
    }
  }
  index_ = MappedFile(prefix_ + ".idx");
  bin_ = MappedFile(prefix_ + ".bin", MappedFile::Access::kRandom);
  check_index();
}

void IndexedDataset::check_index() {
  const std::string name = prefix_ + ".idx";
  const std::byte* data = index_.bytes().data();
  if (index_.size() < kHeaderBytes || index_.text().substr(0, kIndexMagic.size()) != kIndexMagic) {
    throw UserError(fmt::format("{} is not a Megatron index file (it does not begin with MMIDIDX)", name),
                    "data_path takes the prefix of a .bin and .idx pair made by 'megalith prepare' or preprocess_data");
  }
  if (const auto version = load<uint64_t>(data + 9); version != kVersion) {
    throw UserError(fmt::format("{} has version {}; version {} is supported", name, version, kVersion), kDamaged);
  }
  const auto code = load<uint8_t>(data + 17);
  if (code < 1 || code > 8) throw UserError(fmt::format("{} has the unknown token type {}", name, code), kDamaged);
  type_ = static_cast<TokenType>(code);
  if (type_ == TokenType::kFloat32 || type_ == TokenType::kFloat64) {
    throw UserError(fmt::format("{} holds floating-point numbers, not token ids", name));
  }
  const auto num_sequences = load<uint64_t>(data + 18), num_boundaries = load<uint64_t>(data + 26);
  // Counts are checked singly first: the sum cannot overflow.
  const uint64_t room = index_.size() - kHeaderBytes;
  if (num_sequences > room / 12 || num_boundaries > room / 8 || num_sequences * 12 + num_boundaries * 8 > room) {
    throw UserError(
        fmt::format("{} is too short: it has {} bytes, but {} sequences and {} document boundaries need more", name,
                    index_.size(), num_sequences, num_boundaries),
        kDamaged);
  }
  num_sequences_ = static_cast<int64_t>(num_sequences);
  num_boundaries_ = static_cast<int64_t>(num_boundaries);
  lengths_ = data + kHeaderBytes;
  offsets_ = lengths_ + num_sequences * 4;
  boundaries_ = offsets_ + num_sequences * 8;

  const int64_t item_bytes = token_bytes_of(type_);
  const auto bin_bytes = static_cast<int64_t>(bin_.size());
  int64_t needed_bytes = 0;
  for (int64_t i = 0; i < num_sequences_; ++i) {
    const int64_t length = load<int32_t>(lengths_ + i * 4), offset = load<int64_t>(offsets_ + i * 8);
    if (length < 0 || offset < 0 || offset > INT64_MAX / 2) {
      throw UserError(fmt::format("{}: sequence {} has length {} and offset {}", name, i, length, offset), kDamaged);
    }
    needed_bytes = std::max(needed_bytes, offset + length * item_bytes);  // below 2^62 + 2^34
    num_tokens_ += length;                                                // overflow would take a file of 2^35 bytes
  }
  if (needed_bytes > bin_bytes) {
    throw UserError(fmt::format("{}.bin is {} bytes shorter than {} says ({} tokens of {} bytes)", prefix_,
                                needed_bytes - bin_bytes, name, num_tokens_, item_bytes),
                    "the file was probably cut while copying: copy it again, or make it anew with 'megalith prepare'");
  }
  int64_t previous = 0;
  for (int64_t i = 0; i < num_boundaries_; ++i) {
    const int64_t boundary = document_begin(i);
    if (boundary < previous || boundary > num_sequences_ || (i == 0 && boundary != 0)) {
      throw UserError(fmt::format("{}: document boundary {} is {}, after {}, with {} sequences", name, i, boundary,
                                  previous, num_sequences_),
                      kDamaged);
    }
    previous = boundary;
  }
  if (num_boundaries_ == 0 || previous != num_sequences_) {
    throw UserError(fmt::format("{}: the last of {} document boundaries is {}, but there are {} sequences", name,
                                num_boundaries_, previous, num_sequences_),
                    kDamaged);
  }
  forget_index_pages();
}

void IndexedDataset::forget_index_pages() const {
  constexpr size_t kLargeIndex = size_t{64} << 20;  // smaller files are not mapped under AddressSanitizer
  if (index_.size() > kLargeIndex) {
    ::madvise(const_cast<std::byte*>(index_.bytes().data()), index_.size(), MADV_DONTNEED);
  }
}

int64_t IndexedDataset::sequence_length(int64_t sequence) const {
  MEGALITH_CHECK(sequence >= 0 && sequence < num_sequences_, "sequence {} of {}", sequence, num_sequences_);
  return load<int32_t>(lengths_ + sequence * 4);
}

void IndexedDataset::read_lengths(int64_t begin, int64_t end, int32_t* out) const {
  MEGALITH_CHECK(begin >= 0 && begin <= end && end <= num_sequences_, "sequences {} to {} of {}", begin, end,
                 num_sequences_);
  if (begin < end) std::memcpy(out, lengths_ + begin * 4, static_cast<size_t>(end - begin) * 4);
  forget_index_pages();
}

std::span<const std::byte> IndexedDataset::length_bytes() const {
  return {lengths_, static_cast<size_t>(num_sequences_) * sizeof(int32_t)};
}

int64_t IndexedDataset::document_begin(int64_t document) const {
  MEGALITH_CHECK(document >= 0 && document < num_boundaries_, "document {} of {}", document, num_boundaries_);
  return load<int64_t>(boundaries_ + document * 8);
}

void IndexedDataset::read(int64_t sequence, int64_t offset, int64_t count, int64_t* out) const {
  const int64_t length = sequence_length(sequence);
  MEGALITH_CHECK(offset >= 0 && count >= 0 && offset <= length && count <= length - offset,
                 "{}: sequence {}: {} + {} of {} tokens", prefix_, sequence, offset, count, length);
  const int64_t begin = load<int64_t>(offsets_ + sequence * 8) + offset * token_bytes_of(type_);
  fill_mirrored(bin_.path(), begin, count * token_bytes_of(type_));
  const std::byte* from = bin_.bytes().data() + begin;
  switch (type_) {
    case TokenType::kUint8:
      return widen<uint8_t>(from, count, out);
    case TokenType::kInt8:
      return widen<int8_t>(from, count, out);
    case TokenType::kInt16:
      return widen<int16_t>(from, count, out);
    case TokenType::kUint16:
      return widen<uint16_t>(from, count, out);
    case TokenType::kInt32:
      return widen<int32_t>(from, count, out);
    case TokenType::kInt64:
      return widen<int64_t>(from, count, out);
    default:
      MEGALITH_CHECK(false, "{}: token type {}", prefix_, static_cast<int>(type_));
  }
}

std::string IndexedDataset::describe(int64_t sequence) const {
  // The last document that begins at or before the sequence (empty ones begin where the next does).
  int64_t low = 0, high = num_documents();
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (document_begin(middle) <= sequence ? low : high) = middle;
  }
  return fmt::format("{}.bin, document {}", prefix_, low);
}

std::span<const std::byte> IndexedDataset::sequence_bytes(int64_t sequence) const {
  const int64_t length = sequence_length(sequence);
  const int64_t begin = load<int64_t>(offsets_ + sequence * 8), num_bytes = length * token_bytes_of(type_);
  fill_mirrored(bin_.path(), begin, num_bytes);
  return bin_.bytes().subspan(static_cast<size_t>(begin), static_cast<size_t>(num_bytes));
}

int64_t IndexedDataset::num_unused_bin_bytes() const {
  return static_cast<int64_t>(bin_.size()) - num_tokens_ * token_bytes_of(type_);
}

int64_t IndexedDataset::num_trailing_index_bytes() const {
  return static_cast<int64_t>(index_.size()) - static_cast<int64_t>(kHeaderBytes) - num_sequences_ * 12 -
         num_boundaries_ * 8;
}

}  // namespace megalith
