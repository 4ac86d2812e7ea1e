#include "gguf/gguf_file.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <numeric>
#include <type_traits>

#include "core/error.h"

namespace megalith {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr int64_t kAlignment = 32;

// GGUF's numbers of value types.
enum class ValueType : uint32_t { kUint32 = 4, kInt32 = 5, kFloat32 = 6, kBool = 7, kString = 8, kArray = 9 };

template <typename T>
constexpr ValueType type_of() {
  if constexpr (std::is_same_v<T, uint32_t>) return ValueType::kUint32;
  if constexpr (std::is_same_v<T, int32_t>) return ValueType::kInt32;
  if constexpr (std::is_same_v<T, float>) return ValueType::kFloat32;
  if constexpr (std::is_same_v<T, bool>) return ValueType::kBool;
  return ValueType::kString;
}

template <typename T>
void append(std::string& out, const T& value) {
  if constexpr (std::is_same_v<T, std::string>) {
    append(out, static_cast<uint64_t>(value.size()));
    out += value;
  } else {
    out.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
}

template <typename T>
void append_value(std::string& out, const T& value) {
  append(out, static_cast<uint32_t>(type_of<T>()));
  append(out, value);
}

template <typename T>
void append_value(std::string& out, const std::vector<T>& values) {
  append(out, static_cast<uint32_t>(ValueType::kArray));
  append(out, static_cast<uint32_t>(type_of<T>()));
  append(out, static_cast<uint64_t>(values.size()));
  for (const T& value : values) append(out, value);
}

bool is_empty(const GgufValue& value) {
  return std::visit(
      [](const auto& held) {
        if constexpr (requires { held.empty(); }) return held.empty();
        return false;
      },
      value);
}

}  // namespace

void GgufKeys::set(std::string_view key, GgufValue value) {
  if (is_empty(value)) return;
  const auto found = std::ranges::find(entries_, key, &std::pair<std::string, GgufValue>::first);
  if (found == entries_.end()) {
    entries_.emplace_back(key, std::move(value));
  } else {
    found->second = std::move(value);
  }
}

void GgufKeys::move_to_end(std::string_view key) {
  const auto found = std::ranges::find(entries_, key, &std::pair<std::string, GgufValue>::first);
  if (found != entries_.end()) std::rotate(found, found + 1, entries_.end());
}

int64_t GgufTensorInfo::num_elements() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

int64_t GgufTensorInfo::num_bytes() const {
  return div_exact(num_elements(), block_size(type)) * block_bytes(type);
}

int64_t gguf_padding(int64_t num_bytes) { return div_up(num_bytes, kAlignment) * kAlignment - num_bytes; }

std::string gguf_header(const GgufKeys& keys, const std::vector<GgufTensorInfo>& tensors) {
  std::string header = "GGUF";
  append(header, uint32_t{3});
  append(header, static_cast<uint64_t>(tensors.size()));
  append(header, static_cast<uint64_t>(keys.entries().size()));
  for (const auto& [key, value] : keys.entries()) {
    append(header, key);
    std::visit([&](const auto& held) { append_value(header, held); }, value);
  }
  int64_t offset = 0;
  for (const GgufTensorInfo& tensor : tensors) {
    append(header, tensor.name);
    append(header, static_cast<uint32_t>(tensor.shape.size()));
    for (size_t dim = tensor.shape.size(); dim > 0; --dim) append(header, static_cast<uint64_t>(tensor.shape[dim - 1]));
    append(header, static_cast<uint32_t>(tensor.type));
    append(header, static_cast<uint64_t>(offset));
    offset += tensor.num_bytes() + gguf_padding(tensor.num_bytes());
  }
  header.append(static_cast<size_t>(gguf_padding(static_cast<int64_t>(header.size()))), '\0');
  return header;
}

}  // namespace megalith
