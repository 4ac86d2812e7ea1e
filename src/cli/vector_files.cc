#include "cli/vector_files.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "core/error.h"

namespace megalith {
namespace {

at::Tensor checked_rows(const at::Tensor& rows) {
  MEGALITH_CHECK(rows.dim() == 2 && rows.scalar_type() == at::kFloat && rows.is_cpu(), "rows of {} dims", rows.dim());
  return rows.contiguous();
}

}  // namespace

std::string npy_text(const at::Tensor& given) {
  const at::Tensor rows = checked_rows(given);
  constexpr size_t kAlignment = 64, kPrefix = 10;  // magic, version and header length
  std::string header = fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", rows.size(0),
                                   rows.size(1));
  header.append(kAlignment - 1 - (kPrefix + header.size()) % kAlignment, ' ');
  header += '\n';
  std::string text("\x93NUMPY\x01\x00", 8);
  text += static_cast<char>(header.size() % 256);
  text += static_cast<char>(header.size() / 256);
  text += header;
  text.append(static_cast<const char*>(rows.const_data_ptr()), rows.nbytes());
  return text;
}

std::string vector_lines(const std::vector<std::string>& objects, const at::Tensor& given) {
  const at::Tensor rows = checked_rows(given);
  MEGALITH_CHECK(std::ssize(objects) == rows.size(0), "{} objects and {} rows", objects.size(), rows.size(0));
  std::string lines;
  const auto* number = rows.const_data_ptr<float>();
  for (const std::string& object : objects) {
    lines += object.substr(0, object.size() - 1) + ",\"vector\":[";
    // Shortest text that reads back as the same float.
    for (int64_t i = 0; i < rows.size(1); ++i) lines += fmt::format("{}{}", i == 0 ? "" : ",", *number++);
    lines += "]}\n";
  }
  return lines;
}

}  // namespace megalith
