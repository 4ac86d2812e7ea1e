// The rows of a file: JSON lines, tables as such lines (arrow_source.h), or the items of one JSON list.
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

  // The next row that is not blank, as it is written; nothing at the end. UserError for longer rows, and for a list
  // that is cut or lacks an item.
  std::optional<std::string> next();
  // The last row's line, or its place in the list; from 1.
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
  bool is_owed_ = false;  // a comma was read, and no item yet
};

}  // namespace megalith
