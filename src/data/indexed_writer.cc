// Writing .bin and .idx files; see indexed_writer.h.
#include "data/indexed_writer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "core/error.h"
#include "core/file.h"
#include "core/system_call.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

constexpr const char* kPartEndings[] = {".bin", ".lengths", ".documents"};

// Hidden; unique to process and object.
std::string temporary_prefix(const std::string& prefix, const void* owner) {
  const fs::path path(prefix);
  return (path.parent_path() /
          fmt::format(".{}.tmp-{}-{:x}", path.filename().string(), ::getpid(), reinterpret_cast<uintptr_t>(owner)))
      .string();
}

std::string with_folder(std::string prefix) {
  const fs::path folder = fs::path(prefix).parent_path();
  if (!folder.empty()) make_directories(folder);
  return prefix;
}

}  // namespace

IndexedDatasetWriter::IndexedDatasetWriter(std::string_view path, TokenType type) try
    : IndexedDatasetWriter(path, type, temporary_prefix(with_folder(data_prefix(path)), this), Position{}) {
  keeps_parts_ = false;
} catch (...) {  // a throwing constructor runs no destructor
  const std::string work_prefix = temporary_prefix(data_prefix(path), this);
  for (const char* ending : kPartEndings) try_remove_tree(work_prefix + ending);
}

IndexedDatasetWriter::IndexedDatasetWriter(std::string_view path, TokenType type, const std::string& work_prefix,
                                           const Position& position)
    : prefix_(data_prefix(path)), type_(type), keeps_parts_(true), position_(position) {
  constexpr int64_t kMost = INT64_MAX / 16;
  MEGALITH_CHECK(position.num_tokens >= 0 && position.num_tokens < kMost && position.num_sequences >= 0 &&
                     position.num_sequences < kMost && position.num_documents >= 0 && position.num_documents < kMost,
                 "{} tokens in {} sequences", position.num_tokens, position.num_sequences);
  parts_.push_back({SpoolFile(work_prefix + kPartEndings[0], position.num_tokens * token_bytes_of(type)),
                    SpoolFile(work_prefix + kPartEndings[1], position.num_sequences * 4),
                    SpoolFile(work_prefix + kPartEndings[2], position.num_documents * 8)});
}

IndexedDatasetWriter::~IndexedDatasetWriter() {
  if (!parts_.empty() && !keeps_parts_) remove_parts();
}

void IndexedDatasetWriter::remove_parts() {
  for (const SpoolFile* part : {&parts_[0].bin, &parts_[0].lengths, &parts_[0].documents})
    try_remove_tree(part->path());
}

void append_tokens(std::span<const int32_t> ids, TokenType type, std::vector<std::byte>& bytes) {
  MEGALITH_CHECK(type == TokenType::kUint16 || type == TokenType::kInt32, "token type {}", static_cast<int>(type));
  const size_t before = bytes.size();
  if (type == TokenType::kInt32) {
    const auto from = std::as_bytes(ids);
    bytes.insert(bytes.end(), from.begin(), from.end());
    return;
  }
  bytes.resize(before + ids.size() * sizeof(uint16_t));
  uint32_t all = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto token = static_cast<uint16_t>(ids[i]);
    all |= static_cast<uint32_t>(ids[i]);
    std::memcpy(bytes.data() + before + i * sizeof(token), &token, sizeof(token));
  }
  MEGALITH_CHECK(all <= UINT16_MAX, "an id does not fit two bytes: all of them or-ed are {:#x}", all);
}

void IndexedDatasetWriter::add_sequence(std::span<const int32_t> ids) {
  bytes_.clear();
  append_tokens(ids, type_, bytes_);
  add_raw_sequence(bytes_);
}

void IndexedDatasetWriter::add_documents(SpoolFile* first_tokens, std::span<const std::byte> tokens,
                                         std::span<const int32_t> lengths, std::span<const int32_t> sequences) {
  const int64_t num_bytes = std::ssize(tokens) + (first_tokens == nullptr ? 0 : first_tokens->size());
  int64_t num_tokens = 0;
  for (const int32_t length : lengths) num_tokens += length;
  const int64_t num_sequences = std::accumulate(sequences.begin(), sequences.end(), int64_t{0});
  MEGALITH_CHECK(
      num_tokens * token_bytes_of(type_) == num_bytes && num_sequences == static_cast<int64_t>(lengths.size()),
      "{} bytes for {} tokens, {} lengths for {} sequences", num_bytes, num_tokens, lengths.size(), num_sequences);
  if (first_tokens != nullptr) first_tokens->copy_to(parts_[0].bin);
  parts_[0].bin.append(tokens);
  parts_[0].lengths.append(std::as_bytes(lengths));
  position_.num_tokens += num_tokens;
  for (const int32_t count : sequences) {
    position_.num_sequences += count;
    end_document();
  }
}

void IndexedDatasetWriter::add_raw_sequence(std::span<const std::byte> bytes) {
  count_sequence(static_cast<size_t>(div_exact(static_cast<int64_t>(bytes.size()), token_bytes_of(type_))));
  parts_[0].bin.append(bytes);
}

void IndexedDatasetWriter::count_sequence(size_t length) {
  if (length > INT32_MAX) {
    throw UserError(fmt::format("a sequence of {} tokens does not fit {}.idx (at most {})", length, prefix_, INT32_MAX),
                    "split the document");
  }
  const auto narrow_length = static_cast<int32_t>(length);
  parts_[0].lengths.append(std::as_bytes(std::span(&narrow_length, 1)));
  ++position_.num_sequences;
  position_.num_tokens += narrow_length;
}

void IndexedDatasetWriter::end_document() {
  parts_[0].documents.append(std::as_bytes(std::span(&position_.num_sequences, 1)));
  ++position_.num_documents;
}

IndexedDatasetWriter::Position IndexedDatasetWriter::checkpoint() {
  for (SpoolFile* part : {&parts_[0].bin, &parts_[0].lengths, &parts_[0].documents}) part->sync();
  return position_;
}

void IndexedDatasetWriter::finish() {
  checkpoint();
  AtomicFile index(prefix_ + ".idx");
  const auto put = [&](auto value) { index.append_raw(&value, sizeof(value)); };
  index.append(kIndexFileMagic);
  put(kIndexFileVersion);
  put(static_cast<uint8_t>(type_));
  put(static_cast<uint64_t>(position_.num_sequences));
  put(static_cast<uint64_t>(position_.num_documents + 1));
  {
    const MappedFile lengths(parts_[0].lengths.path(), MappedFile::Access::kSequential);
    const MappedFile documents(parts_[0].documents.path(), MappedFile::Access::kSequential);
    index.append(lengths.bytes());
    int64_t offset = 0;
    for (size_t at = 0; at < lengths.size(); at += 4) {
      int32_t length = 0;
      std::memcpy(&length, lengths.bytes().data() + at, sizeof(length));
      put(offset);
      offset += length * token_bytes_of(type_);
    }
    put(int64_t{0});
    index.append(documents.bytes());
  }
  // An old index goes first, the new one comes last: an index always matches its .bin.
  index.flush();
  remove_tree(prefix_ + ".idx");
  rename_path(parts_[0].bin.path(), prefix_ + ".bin");
  index.commit();
  remove_parts();
  parts_.clear();
}

}  // namespace megalith
