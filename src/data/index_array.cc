// Index arrays and NumPy's .npy format; see index_array.h. Source: numpy/lib/format.py (version 1.0).
#include "data/index_array.h"

#include <fmt/format.h>
#include <unistd.h>

#include <charconv>

#include "core/error.h"
#include "core/file.h"
#include "core/system_call.h"

namespace megalith {
namespace {

constexpr std::string_view kNpyMagic("\x93NUMPY\x01\x00", 8);
constexpr size_t kAlignment = 64;
constexpr size_t kGrowthDigits = 21;  // NumPy leaves room to rewrite the first dimension in place

struct TypeInfo {
  std::string_view code;
  int64_t bytes;
};
constexpr TypeInfo kTypes[] = {{"<i2", 2}, {"<i4", 4}, {"<u4", 4}, {"<i8", 8}};

const TypeInfo& info_of(IndexArray::Type type) { return kTypes[static_cast<size_t>(type)]; }

// The text between `before` and `after` in a header, such as
// {'descr': '<i4', 'fortran_order': False, 'shape': (13, 2), }.
std::string_view between(std::string_view text, std::string_view before, std::string_view after) {
  const size_t start = text.find(before);
  if (start == std::string_view::npos) return {};
  const size_t end = text.find(after, start + before.size());
  if (end == std::string_view::npos) return {};
  return text.substr(start + before.size(), end - start - before.size());
}

// Everything before the values.
std::string npy_header(IndexArray::Type type, int64_t num_rows, int64_t columns) {
  const std::string rows = std::to_string(num_rows);
  std::string header = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({},{}), }}", info_of(type).code,
                                   rows, columns == 1 ? "" : fmt::format(" {}", columns));
  header.append(kGrowthDigits - std::min(kGrowthDigits, rows.size()), ' ');
  const size_t unpadded = kNpyMagic.size() + 2 + header.size() + 1;
  header.append(kAlignment - unpadded % kAlignment, ' ');
  header += '\n';
  const auto length = narrow<uint16_t>(header.size());
  const std::string_view length_bytes(reinterpret_cast<const char*>(&length), sizeof(length));
  return fmt::format("{}{}{}", kNpyMagic, length_bytes, header);
}

}  // namespace

NpyWriter::NpyWriter(std::filesystem::path path, IndexArray::Type type, int64_t rows, int64_t columns)
    : path_(std::move(path)),
      file_(path_.parent_path() / fmt::format(".{}.tmp-{}", path_.filename().string(), ::getpid()), 0),
      row_bytes_(columns * info_of(type).bytes) {
  const std::string header = npy_header(type, rows, columns);
  header_bytes_ = std::ssize(header);
  file_.write_at(0, std::as_bytes(std::span(header)));
}

NpyWriter::~NpyWriter() { try_remove_tree(file_.path()); }

void NpyWriter::write(int64_t first_row, std::span<const std::byte> values) {
  file_.write_at(header_bytes_ + first_row * row_bytes_, values);
}

void NpyWriter::commit() {
  file_.sync();
  rename_path(file_.path(), path_);
}

int64_t IndexArray::num_bytes() const { return rows_ * columns_ * info_of(type_).bytes; }

void IndexArray::save_npy(const std::filesystem::path& path) const {
  AtomicFile file(path);
  file.append(npy_header(type_, rows_, columns_));
  file.append_raw(data_, static_cast<size_t>(num_bytes()));
  file.commit();
}

IndexArray IndexArray::load_npy(const std::filesystem::path& path) {
  const auto fail = [&](std::string_view reason) {
    throw UserError(fmt::format("{}: {}", path.string(), reason), "delete the file: it is made anew");
  };
  IndexArray array;
  const auto file = std::make_shared<const MappedFile>(path, MappedFile::Access::kRandom);
  const std::string_view text = file->text();
  if (text.size() < kNpyMagic.size() + 2 || text.substr(0, kNpyMagic.size()) != kNpyMagic)
    fail("not an array of .npy version 1");
  uint16_t header_bytes = 0;
  std::memcpy(&header_bytes, text.data() + kNpyMagic.size(), sizeof(header_bytes));
  const size_t start = kNpyMagic.size() + 2 + header_bytes;
  if (start > text.size()) fail("the file is cut");
  const std::string_view header = text.substr(kNpyMagic.size() + 2, header_bytes);

  const std::string_view code = between(header, "'descr': '", "'");
  size_t type = 0;
  while (type < std::size(kTypes) && kTypes[type].code != code) ++type;
  if (type == std::size(kTypes)) fail(fmt::format("arrays of type '{}' are not read here", code));
  array.type_ = static_cast<Type>(type);
  if (between(header, "'fortran_order': ", ",") != "False") fail("the array is in Fortran order");

  const std::string_view shape = between(header, "'shape': (", ")");
  const char *at = shape.data(), *end = shape.data() + shape.size();
  const auto rows = std::from_chars(at, end, array.rows_);
  if (rows.ec != std::errc{} || rows.ptr == end || *rows.ptr != ',') fail("the shape is not understood");
  at = rows.ptr + 1;
  while (at < end && *at == ' ') ++at;
  if (at < end) {
    const auto columns = std::from_chars(at, end, array.columns_);
    if (columns.ec != std::errc{} || columns.ptr != end) fail("the shape is not understood");
  }
  const auto room = static_cast<int64_t>(text.size() - start);
  if (array.rows_ < 0 || array.columns_ < 1 || array.columns_ > 16 || array.rows_ > room || array.num_bytes() != room) {
    fail(fmt::format("{} bytes of values for {} rows of {}", room, array.rows_, array.columns_));
  }
  array.data_ = file->bytes().data() + start;
  array.owner_ = file;
  return array;
}

}  // namespace megalith
