// Watches a table's bytes on their way to Arrow's reader, which does not tell lines of errors: locates an unclosed
// quote or an overlong row. Header-only: the plug-in is one source file. Quoting as in arrow/csv/parser.cc: a quote
// opens only at a field's start; doubled ones are one.
#pragma once

#include <arrow/api.h>
#include <arrow/io/interfaces.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace megalith {

class CsvWatch final : public arrow::io::InputStream {
 public:
  CsvWatch(std::shared_ptr<arrow::io::InputStream> inner, char delimiter, int64_t longest_row)
      : inner_(std::move(inner)), delimiter_(delimiter), longest_row_(longest_row) {}

  arrow::Status Close() override { return inner_->Close(); }
  bool closed() const override { return inner_->closed(); }
  arrow::Result<int64_t> Tell() const override { return inner_->Tell(); }
  arrow::Result<int64_t> Read(int64_t num_bytes, void* out) override {
    ARROW_ASSIGN_OR_RAISE(const int64_t count, inner_->Read(num_bytes, out));
    ARROW_RETURN_NOT_OK(look_at({static_cast<const char*>(out), static_cast<size_t>(count)}));
    return count;
  }
  arrow::Result<std::shared_ptr<arrow::Buffer>> Read(int64_t num_bytes) override {
    ARROW_ASSIGN_OR_RAISE(std::shared_ptr<arrow::Buffer> buffer, inner_->Read(num_bytes));
    ARROW_RETURN_NOT_OK(look_at(std::string_view(*buffer)));
    return buffer;
  }

  // The fault found so far; empty: none.
  std::string fault() const {
    if (is_ended_ && place_ == Place::kQuoted) {
      return "line " + std::to_string(quote_line_) + ": a quote opens here and is never closed";
    }
    if (long_row_line_ == 0) return "";
    return "line " + std::to_string(long_row_line_) + ": the row that begins here is longer than " +
           std::to_string(longest_row_ >> 20) + " MiB, or one of its quotes is never closed";
  }

 private:
  enum class Place { kFieldBegin, kField, kQuoted, kQuoteWithin };

  arrow::Status look_at(std::string_view bytes) {
    is_ended_ = bytes.empty();
    for (const char c : bytes) step(c);
    return is_ended_ && place_ == Place::kQuoted ? arrow::Status::Invalid(fault()) : arrow::Status::OK();
  }

  void step(char c) {
    constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
    if (num_bytes_ < 3 && c == kByteOrderMark[static_cast<size_t>(num_bytes_)]) {
      ++num_bytes_;
      return;
    }
    ++num_bytes_;
    if (c == '\n') ++line_;
    if (++row_bytes_ > longest_row_ && long_row_line_ == 0) long_row_line_ = row_line_;
    const bool ends_row = c == '\n' || c == '\r';
    switch (place_) {
      case Place::kQuoted:
        if (c == '"') place_ = Place::kQuoteWithin;
        return;
      case Place::kQuoteWithin:
        place_ = c == '"' ? Place::kQuoted : Place::kField;
        break;
      case Place::kFieldBegin:
        if (c == '"') quote_line_ = line_;
        place_ = c == '"' ? Place::kQuoted : Place::kField;
        break;
      case Place::kField:
        break;
    }
    if (place_ == Place::kField && (ends_row || c == delimiter_)) place_ = Place::kFieldBegin;
    if (place_ != Place::kFieldBegin || !ends_row) return;
    row_bytes_ = 0;
    row_line_ = line_;
  }

  std::shared_ptr<arrow::io::InputStream> inner_;
  char delimiter_;
  int64_t longest_row_;
  Place place_ = Place::kFieldBegin;
  bool is_ended_ = false;
  int64_t num_bytes_ = 0, line_ = 1, quote_line_ = 0, row_line_ = 1, row_bytes_ = 0, long_row_line_ = 0;
};

}  // namespace megalith
