// Arrays of integers that index samples, in memory or mapped from .npy: a billion samples cost no memory until read.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "data/spool_file.h"

namespace megalith {

class IndexArray {
 public:
  enum class Type { kInt16, kInt32, kUint32, kInt64 };

  template <typename T>
  static constexpr Type type_of() {
    if constexpr (std::is_same_v<T, int16_t>) return Type::kInt16;
    if constexpr (std::is_same_v<T, int32_t>) return Type::kInt32;
    if constexpr (std::is_same_v<T, uint32_t>) return Type::kUint32;
    if constexpr (std::is_same_v<T, int64_t>) return Type::kInt64;
  }

  // rows × columns from row-major values. One column is one-dimensional in the file.
  template <typename T>
  static IndexArray of(std::vector<T> values, int64_t columns = 1) {
    auto owner = std::make_shared<const std::vector<T>>(std::move(values));
    IndexArray array;
    array.type_ = type_of<T>();
    array.columns_ = columns;
    array.rows_ = static_cast<int64_t>(owner->size()) / columns;
    array.data_ = reinterpret_cast<const std::byte*>(owner->data());
    array.owner_ = std::move(owner);
    return array;
  }

  // UserError when truncated or not an array of one of our types.
  static IndexArray load_npy(const std::filesystem::path& path);
  // The bytes that numpy.save writes.
  void save_npy(const std::filesystem::path& path) const;

  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  Type type() const { return type_; }

  int64_t at(int64_t row, int64_t column = 0) const {
    const int64_t i = row * columns_ + column;
    switch (type_) {
      case Type::kInt16:
        return load<int16_t>(i);
      case Type::kInt32:
        return load<int32_t>(i);
      case Type::kUint32:
        return load<uint32_t>(i);
      case Type::kInt64:
        return load<int64_t>(i);
    }
    return 0;
  }

 private:
  template <typename T>
  T load(int64_t i) const {
    T value;
    std::memcpy(&value, data_ + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    return value;
  }
  int64_t num_bytes() const;

  Type type_ = Type::kInt32;
  int64_t rows_ = 0, columns_ = 1;
  std::shared_ptr<const void> owner_;  // the vector, or the mapped file
  const std::byte* data_ = nullptr;
};

// A .npy file of known shape, written in any order from several threads. It appears at commit().
class NpyWriter {
 public:
  NpyWriter(std::filesystem::path path, IndexArray::Type type, int64_t rows, int64_t columns);
  ~NpyWriter();
  NpyWriter(const NpyWriter&) = delete;
  NpyWriter& operator=(const NpyWriter&) = delete;

  // Whole rows from first_row on. UserError when they cannot be written.
  void write(int64_t first_row, std::span<const std::byte> values);
  void commit();

 private:
  std::filesystem::path path_;
  SpoolFile file_;
  int64_t header_bytes_ = 0, row_bytes_;
};

}  // namespace megalith
