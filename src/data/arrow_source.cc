// Finds and wraps the library of arrow_plugin.h; see arrow_source.h.
#include "data/arrow_source.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "core/error.h"
#include "core/input_file.h"
#include "core/strings.h"
#include "data/arrow_plugin.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

constexpr const char* kLibrary = "libmegalith_arrow.so";

struct RowsLibrary {
  decltype(&megalith_rows_open) open;
  decltype(&megalith_rows_next) next;
  decltype(&megalith_rows_close) close;
};

// Beside the program (build folder), above it (its tests), or where `make install` puts it.
std::vector<fs::path> library_places() {
  std::error_code code;
  const fs::path folder = fs::read_symlink("/proc/self/exe", code).parent_path();
  return {folder / kLibrary, folder.parent_path() / kLibrary, folder.parent_path() / "lib" / "megalith" / kLibrary};
}

RowsLibrary load_library(const std::string& path) {
  const std::string remedy =
      "build with pyarrow in the environment of torch (pip install pyarrow, then 'make build'), or turn the file into "
      "JSON lines";
  for (const fs::path& place : library_places()) {
    std::error_code code;
    if (!fs::exists(place, code)) continue;
    // RTLD_LOCAL hides the plug-in's own Arrow. Never unloaded.
    void* library = ::dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      throw UserError(
          fmt::format("{} takes Arrow, whose libraries cannot be loaded: {}", path, ::dlerror()),
          "install the version of pyarrow that the program was built with, or turn the file into JSON lines");
    }
    const auto find = [&](const char* name) { return ::dlsym(library, name); };
    return {reinterpret_cast<decltype(&megalith_rows_open)>(find("megalith_rows_open")),
            reinterpret_cast<decltype(&megalith_rows_next)>(find("megalith_rows_next")),
            reinterpret_cast<decltype(&megalith_rows_close)>(find("megalith_rows_close"))};
  }
  throw UserError(fmt::format("{} takes Arrow, and this program was built without it", path), remedy);
}

class RowsSource final : public TextSource {
 public:
  RowsSource(const std::string& path, const std::vector<std::string>& columns, RowBytes bytes)
      : path_(path), library_(load_library(path)) {
    std::vector<const char*> names;
    for (const std::string& column : columns) names.push_back(column.c_str());
    rows_ = library_.open(path.c_str(), names.data(), names.size(), bytes == RowBytes::kBase64 ? 1 : 0, &error_);
    if (rows_ == nullptr) fail();
  }
  ~RowsSource() override { library_.close(rows_); }
  RowsSource(const RowsSource&) = delete;
  RowsSource& operator=(const RowsSource&) = delete;

  size_t read(std::span<char> out) override {
    while (ready_.empty()) {
      const char* data = nullptr;
      size_t size = 0;
      const int result = library_.next(rows_, &data, &size, &input_bytes_, &error_);
      if (result < 0) fail();
      if (result == 0) return 0;
      ready_ = {data, size};
    }
    const size_t count = std::min(ready_.size(), out.size());
    std::copy_n(ready_.data(), count, out.data());
    ready_.remove_prefix(count);
    return count;
  }
  int64_t input_bytes() const override { return input_bytes_; }

 private:
  [[noreturn]] void fail() const { throw UserError(fmt::format("{}: {}", path_, error_.message), error_.remedy); }

  std::string path_;
  RowsLibrary library_;
  MegalithRows* rows_ = nullptr;
  MegalithRowsError error_{};
  std::string_view ready_;
  int64_t input_bytes_ = 0;
};

}  // namespace

bool is_rows_file(const std::string& path) {
  const std::string name = lower_case(without_compression_ending(path));
  if (name.ends_with(".csv") || name.ends_with(".tsv")) return true;
  std::error_code code;
  if (!fs::is_regular_file(path, code)) return false;
  const std::string bytes = read_beginning(path, 6);
  // Arrow streams, the format of saved Hugging Face datasets, begin with a continuation mark.
  return bytes.starts_with("PAR1") || bytes.starts_with("ARROW1") || bytes.starts_with("\xff\xff\xff\xff");
}

std::unique_ptr<TextSource> open_rows(const std::string& path, const std::vector<std::string>& columns,
                                      RowBytes bytes) {
  return std::make_unique<RowsSource>(path, columns, bytes);
}

}  // namespace megalith
