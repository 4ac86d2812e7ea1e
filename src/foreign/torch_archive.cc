#include "foreign/torch_archive.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "core/error.h"
#include "core/release_pages.h"

namespace megalith {
namespace {

constexpr std::string_view kLocalHeader = "PK\x03\x04", kDirectoryHeader = "PK\x01\x02", kEndRecord = "PK\x05\x06",
                           kLongEndRecord = "PK\x06\x06", kLongEndLocator = "PK\x06\x07";
constexpr size_t kEndRecordBytes = 22, kMostEntries = 10'000'000, kMostComment = 65535;

constexpr TorchDtype kTorchDtypes[] = {
    {SafetensorsDtype::kF32, "FloatStorage", "float32"}, {SafetensorsDtype::kF64, "DoubleStorage", "float64"},
    {SafetensorsDtype::kF16, "HalfStorage", "float16"},  {SafetensorsDtype::kBf16, "BFloat16Storage", "bfloat16"},
    {SafetensorsDtype::kI64, "LongStorage", "int64"},    {SafetensorsDtype::kI32, "IntStorage", "int32"},
    {SafetensorsDtype::kI16, "ShortStorage", "int16"},   {SafetensorsDtype::kI8, "CharStorage", "int8"},
    {SafetensorsDtype::kU8, "ByteStorage", "uint8"},     {SafetensorsDtype::kBool, "BoolStorage", "bool"},
    {SafetensorsDtype::kU8, "UntypedStorage", "uint8"},  {SafetensorsDtype::kU8, "storage.UntypedStorage", "uint8"},
};

// Little-endian fields of zip records; nothing beyond the end.
class Fields {
 public:
  Fields(std::string_view bytes, uint64_t at) : bytes_(bytes), at_(at) {}

  template <typename Number>
  std::optional<Number> take() {
    if (at_ > bytes_.size() || sizeof(Number) > bytes_.size() - at_) return std::nullopt;
    Number number;
    std::memcpy(&number, bytes_.data() + at_, sizeof(Number));
    at_ += sizeof(Number);
    return number;
  }
  std::optional<std::string_view> text(uint64_t count) {
    if (at_ > bytes_.size() || count > bytes_.size() - at_) return std::nullopt;
    const std::string_view taken = bytes_.substr(at_, count);
    at_ += count;
    return taken;
  }
  bool skip(uint64_t count) { return text(count).has_value(); }

 private:
  std::string_view bytes_;
  uint64_t at_;
};

}  // namespace

const TorchDtype& torch_dtype(SafetensorsDtype dtype) {
  const auto* row = std::ranges::find(kTorchDtypes, dtype, &TorchDtype::dtype);
  if (row == std::end(kTorchDtypes)) {
    throw UserError(fmt::format("tensors of type {} have no place in torch's files", name_of(dtype)),
                    "convert them to BF16");
  }
  return *row;
}

bool is_zip(std::string_view bytes) { return bytes.starts_with(kLocalHeader); }

FileTensor sub_tensor(const FileTensor& whole, const Box& box) {
  FileTensor part = whole;
  const int64_t element = bits_of(whole.dtype) / 8;
  int64_t last = 0;
  for (size_t d = 0; d < box.extent.size(); ++d) {
    part.offset += box.offset[d] * whole.strides[d] * element;
    last += (box.extent[d] - 1) * whole.strides[d];
  }
  part.shape = box.extent;
  part.num_bytes = box.is_empty() ? 0 : (last + 1) * element;
  return part;
}

void TorchArchive::fail(const std::string& reason) const {
  throw UserError(fmt::format("{}: {}", what_, reason),
                  "the file is damaged or was cut while it was copied: copy or save it again");
}

TorchArchive::TorchArchive(const std::filesystem::path& path)
    : file_(std::make_shared<MappedFile>(path)), what_(path.string()) {
  read_directory(0, static_cast<int64_t>(file_->size()));
}

TorchArchive::TorchArchive(std::shared_ptr<const MappedFile> file, int64_t offset, int64_t length, std::string what)
    : file_(std::move(file)), what_(std::move(what)) {
  const auto size = static_cast<int64_t>(file_->size());
  if (offset < 0 || length < 0 || offset > size || length > size - offset) {
    fail(fmt::format("{} bytes from {} are asked for, but the file has {}", length, offset, size));
  }
  read_directory(offset, length);
}

std::string_view TorchArchive::text(const Entry& entry) const {
  return file_->text().substr(static_cast<size_t>(entry.offset), static_cast<size_t>(entry.size));
}

void TorchArchive::read_directory(int64_t offset, int64_t length) {
  const std::string_view all = file_->text().substr(static_cast<size_t>(offset), static_cast<size_t>(length));
  if (!is_zip(all)) fail("it is no zip file, as torch.save has written since PyTorch 1.6");
  // The end record is last, before a comment.
  const size_t least = all.size() > kEndRecordBytes + kMostComment ? all.size() - kEndRecordBytes - kMostComment : 0;
  const size_t end_in_rest = all.substr(least).rfind(kEndRecord);  // without reading a large file that was cut
  if (end_in_rest == std::string_view::npos) fail("the zip file has no end record");
  const size_t end = least + end_in_rest;
  Fields last(all, end + 10);
  const auto short_count = last.take<uint16_t>();
  last.skip(4);
  const auto short_start = last.take<uint32_t>();
  if (!short_count || !short_start || !last.skip(2)) fail("the zip file's end record is cut off");
  uint64_t count = *short_count, start = *short_start;
  // Large archives have a longer record, which a locator right before the end record points to.
  if (end >= 20 && all.substr(end - 20).starts_with(kLongEndLocator)) {
    const auto record = Fields(all, end - 12).take<uint64_t>();
    if (!record || *record > all.size() || !all.substr(*record).starts_with(kLongEndRecord)) {
      fail("the zip file's end record is damaged");
    }
    Fields fields(all, *record + 32);
    const auto long_count = fields.take<uint64_t>();
    fields.skip(8);
    const auto long_start = fields.take<uint64_t>();
    if (!long_count || !long_start) fail("the zip file's end record is cut off");
    count = *long_count;
    start = *long_start;
  }
  if (count > kMostEntries || start > all.size()) fail("the zip file's directory is damaged");

  Fields directory(all, start);
  std::string root;
  for (uint64_t i = 0; i < count; ++i) {
    const auto signature = directory.text(4);
    if (signature != kDirectoryHeader) fail(fmt::format("entry {} of the zip file's directory is damaged", i));
    directory.skip(6);
    const auto method = directory.take<uint16_t>();
    directory.skip(8);
    const auto stored = directory.take<uint32_t>(), whole = directory.take<uint32_t>();
    const auto name_bytes = directory.take<uint16_t>(), extra_bytes = directory.take<uint16_t>(),
               comment_bytes = directory.take<uint16_t>();
    directory.skip(8);
    const auto short_offset = directory.take<uint32_t>();
    if (!short_offset) fail("the zip file's directory is cut off");
    const auto name = directory.text(*name_bytes), extra = directory.text(*extra_bytes);
    if (!name || !extra || !directory.skip(*comment_bytes)) fail("the zip file's directory is cut off");
    uint64_t size = *whole, stored_size = *stored, header = *short_offset;
    for (Fields more(*extra, 0); auto id = more.take<uint16_t>();) {
      const auto bytes = more.take<uint16_t>();
      const auto content = bytes ? more.text(*bytes) : std::nullopt;
      if (!content) break;
      if (*id != 1) continue;
      Fields values(*content, 0);
      // Only those that did not fit, in this order.
      for (uint64_t* value : {&size, &stored_size, &header}) {
        if (*value == UINT32_MAX) *value = values.take<uint64_t>().value_or(UINT64_MAX);
      }
    }
    if (*method != 0) fail(fmt::format("{} is compressed, which torch.save does not do", *name));
    if (size != stored_size || header > all.size() || !all.substr(header).starts_with(kLocalHeader)) {
      fail(fmt::format("the zip file's entry {} is damaged", *name));
    }
    Fields local(all, header + 26);
    const auto local_name = local.take<uint16_t>(), local_extra = local.take<uint16_t>();
    if (!local_extra) fail("the zip file is cut off");
    const uint64_t data = header + 30 + *local_name + *local_extra;
    if (data > all.size() || size > all.size() - data) fail(fmt::format("the zip file's entry {} is cut off", *name));
    // All are in one folder, named after the file.
    const size_t slash = name->find('/');
    const std::string_view below = slash == std::string_view::npos ? *name : name->substr(slash + 1);
    const Entry entry{.offset = offset + static_cast<int64_t>(data), .size = static_cast<int64_t>(size)};
    if (!entries_.emplace(below, entry).second) fail(fmt::format("the zip file has {} twice", *name));
  }
  const auto pickle = entries_.find("data.pkl");
  if (pickle == entries_.end()) fail("the zip file has no data.pkl");
  if (const auto order = entries_.find("byteorder"); order != entries_.end() && text(order->second) != "little") {
    fail(fmt::format("its numbers are in byte order '{}', not little", text(order->second).substr(0, 20)));
  }
  pickle_ = std::make_unique<Pickle>(text(pickle->second), what_ + ": data.pkl");
  // A page of each entry was looked at, and its neighbours came along: a folder has thousands of entries.
  release_pages(*file_, offset, length);
}

std::optional<FileTensor> TorchArchive::tensor(const PickleValue& value) const {
  using Kind = PickleValue::Kind;
  const PickleValue* made = &value;
  // A Parameter's, or a subclass's: the tensor is an argument.
  for (int i = 0; i < 3; ++i) {
    if (made->is_object("torch._utils._rebuild_parameter") && !made->items.empty()) {
      made = made->items[0];
    } else if (made->is_object("torch._tensor._rebuild_from_type_v2") && made->items.size() == 4) {
      // func, type, args, state: args of the function are the tensor's.
      const PickleValue& function = *made->items[0];
      if (!function.is(Kind::kName) || function.text != "torch._utils._rebuild_tensor_v2") return std::nullopt;
      made = made->items[2];
      break;
    } else {
      break;
    }
  }
  const bool is_rebuilt = made->is_object("torch._utils._rebuild_tensor_v2") ||
                          made->is_object("torch._utils._rebuild_tensor") || (made != &value && made->is(Kind::kTuple));
  if (!is_rebuilt) return std::nullopt;
  if (made->items.size() < 4 || !made->items[0]->is(Kind::kStored)) fail("a tensor without a storage");
  const PickleValue& id = *made->items[0]->items[0];
  // ("storage", class, key, device, number of elements)
  if (!id.is(Kind::kTuple) || id.items.size() < 5 || !id.items[1]->is(Kind::kName) || !id.items[2]->is(Kind::kText)) {
    fail("a storage without a key");
  }
  const std::string_view storage = id.items[1]->text, key = id.items[2]->text;
  constexpr std::string_view kTorch = "torch.";
  const auto* row = std::ranges::find_if(kTorchDtypes, [&](const TorchDtype& one) {
    return storage.starts_with(kTorch) && storage.substr(kTorch.size()) == one.storage;
  });
  if (row == std::end(kTorchDtypes)) fail(fmt::format("a tensor in a {}, which is not read", storage));
  const auto count = id.items[4]->whole(), first = made->items[1]->whole();
  // Checked before they are copied: many tensors may share one long tuple.
  const auto sizes = [&](const PickleValue& list) -> std::optional<std::vector<int64_t>> {
    return list.items.size() > kMostDims ? std::nullopt : list.whole_numbers();
  };
  const auto shape = sizes(*made->items[2]), strides = sizes(*made->items[3]);
  if (!count || !first || !shape || !strides || shape->size() != strides->size()) {
    fail(fmt::format("the tensor in storage {} has no shape", key));
  }
  const auto entry = entries_.find(fmt::format("data/{}", key));
  if (entry == entries_.end()) fail(fmt::format("storage {} is missing", key));
  const int64_t element = bits_of(row->dtype) / 8;
  const auto bad = [&] {
    fail(fmt::format("the tensor [{}] of {} elements from {} does not fit storage {} of {} bytes",
                     fmt::join(*shape, ", "), name_of(row->dtype), *first, key, entry->second.size));
  };
  int64_t needed = 0;
  if (*count < 0 || *first < 0 || __builtin_mul_overflow(*count, element, &needed)) bad();
  if (needed > entry->second.size) bad();
  bool is_empty = false;
  int64_t last = *first, elements = 1;
  for (size_t d = 0; d < shape->size(); ++d) {
    int64_t reach = 0;
    // Extents of an empty tensor too, as its strides are computed from them.
    const int64_t extent = std::max<int64_t>((*shape)[d], 1);
    if ((*shape)[d] < 0 || (*strides)[d] < 0 || __builtin_mul_overflow(elements, extent, &elements)) bad();
    if ((*shape)[d] == 0) {
      is_empty = true;
      continue;
    }
    if (__builtin_mul_overflow((*shape)[d] - 1, (*strides)[d], &reach)) bad();
    if (__builtin_add_overflow(last, reach, &last)) bad();
  }
  if (!is_empty && last >= *count) bad();
  return FileTensor{.file = file_,
                    .dtype = row->dtype,
                    .shape = *shape,
                    .strides = *strides,
                    .offset = entry->second.offset + (is_empty ? 0 : *first * element),
                    .num_bytes = is_empty ? 0 : (last - *first + 1) * element};
}

std::optional<double> TorchArchive::number(const PickleValue& value) const {
  if (const auto plain = value.number()) return plain;
  const auto found = tensor(value);
  if (!found || found->num_bytes == 0) return std::nullopt;
  const at::Tensor view = found->view();
  if (view.numel() != 1) return std::nullopt;
  return view.item<double>();
}

}  // namespace megalith
