#include "kinds/flow/tar_reader.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "core/error.h"
#include "core/visible_text.h"

namespace megalith {
namespace {

constexpr int64_t kTarBlock = 512;

int64_t padding_of(int64_t size) { return (kTarBlock - size % kTarBlock) % kTarBlock; }

// A text that ends at its first zero byte.
std::string_view tar_text(std::string_view field) { return field.substr(0, field.find('\0')); }

// Octal digits between blanks and zeros, or GNU's 63 bits after a first byte of 0x80. Nothing for anything else.
std::optional<int64_t> tar_number(std::string_view field) {
  if (static_cast<uint8_t>(field[0]) == 0x80) {
    uint64_t value = 0;
    for (const char c : field.substr(1)) {
      if (value >> 55 != 0) return std::nullopt;
      value = value << 8 | static_cast<uint8_t>(c);
    }
    return static_cast<int64_t>(value);
  }
  const size_t begin = field.find_first_not_of(' ');
  if (begin == std::string_view::npos) return 0;
  field.remove_prefix(begin);
  field = field.substr(0, field.find_first_of(std::string_view(" \0", 2)));
  if (field.empty()) return 0;
  int64_t value = 0;
  const auto [end, code] = std::from_chars(field.data(), field.data() + field.size(), value, 8);
  if (code != std::errc() || end != field.data() + field.size() || value < 0) return std::nullopt;
  return value;
}

bool has_tar_checksum(std::string_view block) {
  const std::optional<int64_t> stored = tar_number(block.substr(148, 8));
  int64_t sum = 0;
  for (size_t i = 0; i < block.size(); ++i) sum += i >= 148 && i < 156 ? ' ' : static_cast<uint8_t>(block[i]);
  return stored == sum;
}

}  // namespace

bool is_tar(std::string_view beginning) {
  return beginning.size() >= kTarBlock && beginning.substr(257, 5) == "ustar" &&
         has_tar_checksum(beginning.substr(0, kTarBlock));
}

TarReader::TarReader(std::unique_ptr<TextSource> archive, std::string name, int64_t max_file_bytes)
    : archive_(std::move(archive)), name_(std::move(name)), max_file_bytes_(max_file_bytes) {}

void TarReader::fail(std::string_view reason) const {
  throw UserError(fmt::format("{} is a damaged tar archive: {} (byte {})", name_, reason, offset_),
                  "it was probably cut while copying: fetch it again");
}

size_t TarReader::read_fully(std::span<char> out) {
  size_t done = 0;
  while (done < out.size()) {
    const size_t count = archive_->read(out.subspan(done));
    if (count == 0) break;
    done += count;
  }
  offset_ += static_cast<int64_t>(done);
  return done;
}

std::string TarReader::content(int64_t size) {
  std::string bytes;
  // In pieces, so that a header with a false size takes no more memory than the archive has bytes.
  constexpr int64_t kPiece = int64_t{1} << 20;
  while (std::ssize(bytes) < size) {
    const size_t before = bytes.size();
    bytes.resize(before + static_cast<size_t>(std::min(kPiece, size - std::ssize(bytes))));
    if (read_fully(std::span(bytes).subspan(before)) < bytes.size() - before) fail("it ends within a file");
  }
  pass_over(padding_of(size));
  return bytes;
}

void TarReader::pass_over(int64_t size) {
  std::array<char, 16384> buffer;
  while (size > 0) {
    const auto piece = static_cast<size_t>(std::min<int64_t>(size, std::ssize(buffer)));
    if (read_fully(std::span(buffer).first(piece)) < piece) fail("it ends within a file");
    size -= static_cast<int64_t>(piece);
  }
}

std::optional<TarReader::Header> TarReader::next_header() {
  std::array<char, kTarBlock> bytes;
  const size_t count = read_fully(bytes);
  if (count == 0) return std::nullopt;
  if (count < bytes.size()) fail("it ends within a header");
  const std::string_view block(bytes.data(), bytes.size());
  // Two blocks of zeros end an archive; the rest is ignored.
  if (block.find_first_not_of('\0') == std::string_view::npos) return std::nullopt;
  if (!has_tar_checksum(block)) fail("the checksum of a header does not match");
  const std::optional<int64_t> size = tar_number(block.substr(124, 12));
  if (!size) fail("the size of a file is no number");
  Header header{std::string(tar_text(block.substr(0, 100))), *size, block[156]};
  const std::string_view folder = tar_text(block.substr(345, 155));
  // GNU's own format has other fields there.
  if (block.substr(257, 6) == std::string_view("ustar\0", 6) && !folder.empty()) {
    header.name = fmt::format("{}/{}", folder, header.name);
  }
  return header;
}

// Records "LENGTH KEY=VALUE\n", where the length includes itself.
void TarReader::take_records(std::string_view records, Extension& extension) const {
  while (!records.empty()) {
    size_t length = 0;
    const auto [end, code] = std::from_chars(records.data(), records.data() + records.size(), length);
    const auto digits = static_cast<size_t>(end - records.data());
    if (code != std::errc() || length > records.size() || length < digits + 3 || records[digits] != ' ' ||
        records[length - 1] != '\n') {
      fail("a pax record is not one");
    }
    const std::string_view record = records.substr(digits + 1, length - digits - 2);
    const size_t equals = record.find('=');
    if (equals == std::string_view::npos) fail("a pax record has no value");
    const std::string_view key = record.substr(0, equals), value = record.substr(equals + 1);
    if (key == "path") extension.name = value;
    if (key == "size") {
      int64_t size = 0;
      const auto [stop, wrong] = std::from_chars(value.data(), value.data() + value.size(), size);
      if (wrong != std::errc() || stop != value.data() + value.size() || size < 0) fail("a pax size is no number");
      extension.size = size;
    }
    if (key.starts_with("GNU.sparse.")) fail("it holds a sparse file, which is not read");
    records.remove_prefix(length);
  }
}

std::optional<TarFile> TarReader::next() {
  Extension extension;
  constexpr int64_t kMaxExtension = int64_t{1} << 20;
  while (std::optional<Header> header = next_header()) {
    const char type = header->type;
    if (type == 'x' || type == 'L') {
      if (header->size > kMaxExtension) fail("a name is too long");
      const std::string text = content(header->size);
      if (type == 'x') take_records(text, extension);
      if (type == 'L') extension.name = tar_text(text);
      continue;
    }
    if (type == 'S') fail("it holds a sparse file, which is not read");
    const Extension said = std::exchange(extension, {});
    const bool is_file = type == '0' || type == '\0' || type == '7';
    // Links, devices and folders have no content, whatever their size field says.
    const bool has_content = is_file || (type != '1' && type != '2' && type != '3' && type != '4' && type != '5' &&
                                         type != '6');
    const int64_t size = has_content ? said.size.value_or(header->size) : 0;
    if (!is_file) {
      pass_over(size);
      pass_over(padding_of(size));
      continue;
    }
    const std::string name = said.name.value_or(header->name);
    if (size > max_file_bytes_) {
      fail(fmt::format("{} says that it has {} bytes, and at most {} are read", visible_text(name), size,
                       max_file_bytes_));
    }
    return TarFile{name, content(size)};
  }
  return std::nullopt;
}

}  // namespace megalith
