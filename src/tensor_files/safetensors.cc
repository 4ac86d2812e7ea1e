#include "tensor_files/safetensors.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "core/error.h"
#include "core/json.h"
#include "storage/object_mirror.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kMaxHeaderBytes = 100'000'000;  // the reference implementation's limit
constexpr size_t kMaxDims = 64;                   // most that our tensors can have

struct DtypeRow {
  std::string_view name;
  int64_t bits;
  std::optional<at::ScalarType> scalar_type;
};

constexpr std::array<DtypeRow, 22> kDtypes = {{
    {"BOOL", 8, at::kBool},
    {"F4", 4, std::nullopt},
    {"F6_E2M3", 6, std::nullopt},
    {"F6_E3M2", 6, std::nullopt},
    {"U8", 8, at::kByte},
    {"I8", 8, at::kChar},
    {"F8_E5M2", 8, at::kFloat8_e5m2},
    {"F8_E4M3", 8, at::kFloat8_e4m3fn},
    {"F8_E8M0", 8, at::kFloat8_e8m0fnu},
    {"F8_E4M3FNUZ", 8, at::kFloat8_e4m3fnuz},
    {"F8_E5M2FNUZ", 8, at::kFloat8_e5m2fnuz},
    {"I16", 16, at::kShort},
    {"U16", 16, at::kUInt16},
    {"F16", 16, at::kHalf},
    {"BF16", 16, at::kBFloat16},
    {"I32", 32, at::kInt},
    {"U32", 32, at::kUInt32},
    {"F32", 32, at::kFloat},
    {"C64", 64, at::kComplexFloat},
    {"F64", 64, at::kDouble},
    {"I64", 64, at::kLong},
    {"U64", 64, at::kUInt64},
}};

const DtypeRow& row_of(SafetensorsDtype dtype) { return kDtypes[static_cast<size_t>(dtype)]; }

// Names come from the file: shown as in JSON, and truncated.
std::string shown(std::string_view name) {
  constexpr size_t kShown = 200;
  if (name.size() > kShown) return dump_json(Json(std::string(name.substr(0, kShown)) + "..."));
  return dump_json(Json(std::string(name)));
}

const char* const kDamagedRemedy = "the file is damaged or was cut while it was copied: fetch it again";

// Builds the table of tensors while parsing. The general parser would keep the last of duplicate names and accept any
// nesting; this one knows the three levels.
class HeaderReader final : public nlohmann::json_sax<Json> {
 public:
  struct Entry {
    std::string name;
    std::optional<SafetensorsDtype> dtype;
    std::optional<std::vector<int64_t>> shape;
    std::optional<std::vector<int64_t>> offsets;
    int64_t begin = 0, end = 0;  // the two offsets, once complete
  };

  explicit HeaderReader(const fs::path& path) : path_(path) {}

  std::vector<Entry> entries;
  std::map<std::string, std::string> metadata;

  bool null() override { unexpected("null"); }
  bool boolean(bool) override { unexpected("true or false"); }
  bool number_integer(int64_t) override { unexpected("a negative number"); }
  bool number_float(double, const std::string&) override { unexpected("a fraction"); }
  bool binary(Json::binary_t&) override { unexpected("binary data"); }

  bool number_unsigned(uint64_t value) override {
    if (level_ != Level::kList) unexpected("a number");
    if (value > static_cast<uint64_t>(INT64_MAX)) fail(fmt::format("{} {} is too large", field_, value));
    if (list_.size() == kMaxDims) fail(fmt::format("{} has more than {} numbers", field_, kMaxDims));
    list_.push_back(static_cast<int64_t>(value));
    return true;
  }

  bool string(std::string& value) override {
    if (level_ == Level::kMetadata) {
      if (!metadata.emplace(field_, value).second) fail(fmt::format("__metadata__ has {} twice", shown(field_)));
      return true;
    }
    if (level_ != Level::kTensor || field_ != "dtype") unexpected("a text");
    Entry& entry = entries.back();
    entry.dtype = parse_safetensors_dtype(value);
    if (!entry.dtype) fail(fmt::format("dtype {} is unknown", shown(value)));
    return true;
  }

  bool start_object(size_t) override {
    if (level_ == Level::kStart) {
      level_ = Level::kRoot;
    } else if (level_ == Level::kRoot) {
      level_ = name_ == "__metadata__" ? Level::kMetadata : Level::kTensor;
      if (level_ == Level::kTensor)
        entries.push_back({.name = name_, .dtype = {}, .shape = {}, .offsets = {}, .begin = 0, .end = 0});
    } else {
      unexpected("an object");
    }
    return true;
  }

  bool key(std::string& key) override {
    if (level_ == Level::kRoot) {
      field_.clear();
      name_ = key;
      if (!names_.insert(key).second) fail("the name appears twice");
      return true;
    }
    if (level_ == Level::kTensor) {
      const Entry& entry = entries.back();
      const bool is_known = key == "dtype" || key == "shape" || key == "data_offsets";
      if (!is_known) fail(fmt::format("unknown field {}", shown(key)));
      if ((key == "dtype" && entry.dtype) || (key == "shape" && entry.shape) ||
          (key == "data_offsets" && entry.offsets)) {
        fail(fmt::format("{} appears twice", key));
      }
    }
    field_ = key;
    return true;
  }

  bool end_object() override {
    if (level_ == Level::kTensor) {
      Entry& entry = entries.back();
      if (!entry.dtype) fail("dtype is missing");
      if (!entry.shape) fail("shape is missing");
      if (!entry.offsets) fail("data_offsets is missing");
      if (entry.offsets->size() != 2)
        fail(fmt::format("data_offsets has {} numbers, expected 2", entry.offsets->size()));
      entry.begin = entry.offsets->front();
      entry.end = entry.offsets->back();
    }
    level_ = level_ == Level::kRoot ? Level::kDone : Level::kRoot;
    return true;
  }

  bool start_array(size_t) override {
    if (level_ != Level::kTensor || field_ == "dtype") unexpected("a list");
    level_ = Level::kList;
    list_.clear();
    return true;
  }

  bool end_array() override {
    (field_ == "shape" ? entries.back().shape : entries.back().offsets) = list_;
    level_ = Level::kTensor;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const Json::exception&) override {
    throw UserError(fmt::format("{}: the header is not valid JSON at byte {} of the file", path_.string(),
                                8 + (position == 0 ? 0 : position - 1)),
                    kDamagedRemedy);
  }

 private:
  enum class Level { kStart, kRoot, kTensor, kList, kMetadata, kDone };

  [[noreturn]] void fail(const std::string& reason) const {
    throw UserError(fmt::format("{}: tensor {}: {}", path_.string(), shown(name_), reason), kDamagedRemedy);
  }
  [[noreturn]] void unexpected(std::string_view found) const {
    if (level_ == Level::kStart) {
      throw UserError(fmt::format("{}: the header is {}, expected an object", path_.string(), found), kDamagedRemedy);
    }
    const std::string where = field_.empty() ? "its entry" : shown(field_);
    const std::string_view expected = level_ == Level::kMetadata || field_ == "dtype" ? "a text"
                                      : field_.empty()                                ? "an object"
                                      : level_ == Level::kList                        ? "a whole number"
                                                                                      : "a list of whole numbers";
    fail(fmt::format("{} holds {}, expected {}", where, found, expected));
  }

  const fs::path& path_;
  Level level_ = Level::kStart;
  std::string name_, field_;
  std::vector<int64_t> list_;
  std::set<std::string> names_;
};

}  // namespace

std::string_view name_of(SafetensorsDtype dtype) { return row_of(dtype).name; }
int64_t bits_of(SafetensorsDtype dtype) { return row_of(dtype).bits; }
std::optional<at::ScalarType> scalar_type_of(SafetensorsDtype dtype) { return row_of(dtype).scalar_type; }

std::optional<SafetensorsDtype> parse_safetensors_dtype(std::string_view name) {
  for (size_t i = 0; i < kDtypes.size(); ++i) {
    if (kDtypes[i].name == name) return static_cast<SafetensorsDtype>(i);
  }
  return std::nullopt;
}

SafetensorsDtype safetensors_dtype_of(at::ScalarType dtype) {
  for (size_t i = 0; i < kDtypes.size(); ++i) {
    if (kDtypes[i].scalar_type == dtype) return static_cast<SafetensorsDtype>(i);
  }
  throw UserError(fmt::format("safetensors files cannot hold tensors of type {}", c10::toString(dtype)));
}

std::optional<int64_t> safetensors_bytes(SafetensorsDtype dtype, std::span<const int64_t> shape) {
  int64_t bits = bits_of(dtype);
  for (const int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(bits, extent, &bits)) return std::nullopt;
  }
  if (bits % 8 != 0) return std::nullopt;
  return bits / 8;
}

SafetensorsFile::SafetensorsFile(const fs::path& path) : file_(std::make_shared<MappedFile>(path)) {
  const auto size = static_cast<int64_t>(file_->size());
  fill_mirrored(path, 0, std::min<int64_t>(size, 8));
  if (size < 8) {
    throw UserError(fmt::format("{} has {} bytes; a safetensors file has at least 8", path.string(), size),
                    kDamagedRemedy);
  }
  uint64_t header_bytes = 0;
  for (int i = 7; i >= 0; --i)
    header_bytes = header_bytes << 8 | static_cast<uint8_t>(file_->text()[static_cast<size_t>(i)]);
  if (header_bytes > static_cast<uint64_t>(kMaxHeaderBytes) || static_cast<int64_t>(header_bytes) > size - 8) {
    throw UserError(
        fmt::format("{}: the first 8 bytes announce a header of {} bytes, the file has {} (at most {} are allowed)",
                    path.string(), header_bytes, size, kMaxHeaderBytes),
        "either this is no safetensors file, or it was cut while it was copied: fetch it again");
  }
  fill_mirrored(path, 0, 8 + static_cast<int64_t>(header_bytes));
  const std::string_view header = file_->text().substr(8, header_bytes);
  if (header.empty() || header.front() != '{') {
    throw UserError(fmt::format("{}: the header at byte 8 does not start with '{{'", path.string()), kDamagedRemedy);
  }
  HeaderReader reader(file_->path());
  Json::sax_parse(header.begin(), header.end(), &reader);
  metadata_ = std::move(reader.metadata);

  // The data must be covered completely, each byte once.
  const int64_t data_start = 8 + static_cast<int64_t>(header_bytes);
  const int64_t data_bytes = size - data_start;
  std::vector<HeaderReader::Entry*> ordered;
  for (HeaderReader::Entry& entry : reader.entries) ordered.push_back(&entry);
  std::sort(ordered.begin(), ordered.end(),
            [](const auto* a, const auto* b) { return std::pair(a->begin, a->end) < std::pair(b->begin, b->end); });
  int64_t covered = 0;
  for (HeaderReader::Entry* ordered_entry : ordered) {
    HeaderReader::Entry& entry = *ordered_entry;
    const int64_t begin = entry.begin, end = entry.end;
    const auto refuse = [&](const std::string& reason) {
      throw UserError(fmt::format("{}: tensor {}: {}", path.string(), shown(entry.name), reason), kDamagedRemedy);
    };
    if (begin > end) refuse(fmt::format("data_offsets [{}, {}] run backwards", begin, end));
    if (end > data_bytes) {
      refuse(fmt::format("its data ends at byte {}, but the file has {} bytes of data", end, data_bytes));
    }
    const std::optional<int64_t> expected = safetensors_bytes(*entry.dtype, *entry.shape);
    if (!expected) {
      refuse(fmt::format("shape [{}] of {} is too large, or not a whole number of bytes", fmt::join(*entry.shape, ", "),
                         name_of(*entry.dtype)));
    }
    if (*expected != end - begin) {
      refuse(fmt::format("shape [{}] of {} takes {} bytes, data_offsets [{}, {}] give {}",
                         fmt::join(*entry.shape, ", "), name_of(*entry.dtype), *expected, begin, end, end - begin));
    }
    if (begin < covered)
      refuse(fmt::format("its data starts at byte {}, inside another tensor's that ends at {}", begin, covered));
    if (begin > covered) refuse(fmt::format("bytes {} to {} before its data belong to no tensor", covered, begin));
    covered = end;
    tensors_.emplace(std::move(entry.name), SafetensorsTensor{.dtype = *entry.dtype,
                                                              .shape = std::move(*entry.shape),
                                                              .offset = data_start + begin,
                                                              .num_bytes = end - begin});
  }
  if (covered != data_bytes) {
    throw UserError(fmt::format("{}: the last {} of {} data bytes belong to no tensor", path.string(),
                                data_bytes - covered, data_bytes),
                    kDamagedRemedy);
  }
}

const SafetensorsTensor* SafetensorsFile::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

FileTensor SafetensorsFile::place(const SafetensorsTensor& tensor) const {
  return {.file = file_,
          .dtype = tensor.dtype,
          .shape = tensor.shape,
          .strides = row_major(tensor.shape),
          .offset = tensor.offset,
          .num_bytes = tensor.num_bytes};
}

std::span<const std::byte> FileTensor::bytes() const {
  fill_mirrored(file->path(), offset, num_bytes);
  return file->bytes().subspan(static_cast<size_t>(offset), static_cast<size_t>(num_bytes));
}

at::Tensor FileTensor::view() const {
  const std::optional<at::ScalarType> known = scalar_type_of(dtype);
  if (!known) {
    throw UserError(fmt::format("{}: tensors of type {} cannot be read", file->path().string(), name_of(dtype)),
                    "convert the file to BF16");
  }
  const at::ScalarType type = *known;
  const auto options = at::TensorOptions().dtype(type);
  if (num_bytes == 0) return at::empty(shape, options);
  // A mirror's holes are filled by who knows which rows are read (checkpoint/tensor_store.cc).
  const std::byte* data = file->bytes().data() + offset;
  const auto count = num_bytes / static_cast<int64_t>(c10::elementSize(type));
  at::Tensor elements;
  if (reinterpret_cast<uintptr_t>(data) % c10::elementSize(type) == 0) {
    elements = at::from_blob(
        const_cast<std::byte*>(data), {count}, [kept = file](void*) {}, options);
  } else {
    elements = at::empty({count}, options);
    std::memcpy(elements.mutable_data_ptr(), data, static_cast<size_t>(num_bytes));
  }
  return elements.as_strided(shape, strides);
}

std::vector<int64_t> row_major(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  return strides;
}

}  // namespace megalith
