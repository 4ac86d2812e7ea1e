// A file's rows: JSON lines, tables as JSON lines (arrow_source.h), or items of one JSON list.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "data/text_source.h"

namespace megalith {

class JsonRows {
 public:
  // name     for messages
  // longest  bytes of a row
  JsonRows(std::unique_ptr<TextSource> text, std::string name, int64_t longest)
      : source_(std::move(text)), name_(std::move(name)), longest_(longest) {}

  // The next nonblank row as written; nothing at the end. UserError for longer rows, and a list truncated or missing an
  // item.
  std::optional<std::string> next();
  // Line of the last row, or its place in the list; from 1.
  int64_t number() const { return number_; }
  int64_t input_bytes() const { return source_->input_bytes(); }
  const std::string& name() const { return name_; }

 private:
  void begin();
  char find_mark();
  bool fill();
  std::optional<std::string> next_item();
  char find_item_end();
  [[noreturn]] void fail_list(std::string_view what) const;

  std::unique_ptr<TextSource> source_;
  std::string name_, pending_;
  int64_t longest_, number_ = 0;
  size_t searched_ = 0;
  bool is_begun_ = false, is_done_ = false, is_list_ = false;
  bool is_owed_ = false;  // an item must follow a comma
};

}  // namespace megalith
