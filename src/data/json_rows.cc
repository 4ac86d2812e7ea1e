#include "data/json_rows.h"

#include <fmt/format.h>

#include <array>

#include "core/error.h"
#include "core/strings.h"

namespace megalith {

std::optional<std::string> JsonRows::next() {
  if (!is_begun_) begin();
  if (is_list_) return next_item();
  while (!is_done_ || !pending_.empty()) {
    const size_t end = pending_.find('\n', searched_);
    if (end == std::string::npos && !is_done_) {
      searched_ = pending_.size();
      fill();
      continue;
    }
    std::string line = pending_.substr(0, end);
    pending_.erase(0, end == std::string::npos ? pending_.size() : end + 1);
    searched_ = 0;
    ++number_;
    if (!trim(line).empty()) return line;
  }
  return std::nullopt;
}

// A file is a list if its first nonblank character is a bracket.
void JsonRows::begin() {
  is_begun_ = true;
  is_list_ = find_mark() == '[';
  if (is_list_) pending_.erase(0, searched_ + 1);
  searched_ = 0;
}

// Moves searched_ to the first nonblank character from there on and returns it; 0 at the end.
char JsonRows::find_mark() {
  for (;; ++searched_) {
    if (searched_ == pending_.size() && !fill()) return 0;
    if (!trim(std::string_view(pending_).substr(searched_, 1)).empty()) return pending_[searched_];
  }
}

bool JsonRows::fill() {
  std::array<char, 1 << 16> block{};
  const size_t count = source_->read(block);
  is_done_ = count == 0;
  pending_.append(block.data(), count);
  if (std::ssize(pending_) > longest_ && (is_list_ || pending_.find('\n', searched_) == std::string::npos)) {
    throw UserError(fmt::format("{}:{}: the row is longer than {}", name_, number_ + 1, format_bytes(longest_)),
                    "a row is one JSON object, on a line of its own or in a list: divide it");
  }
  return count > 0;
}

// One item at a time: lists are never whole in memory. Items are checked by their own reader.
std::optional<std::string> JsonRows::next_item() {
  const char first = find_mark();
  if (first == ']' && !is_owed_) {
    ++searched_;
    if (find_mark() != 0) fail_list("goes on behind its end");
    return std::nullopt;
  }
  if (first == 0 || first == ',' || first == ']') fail_list(first == 0 ? "does not end" : "lacks an item");
  const size_t begin = searched_;
  const char end = find_item_end();
  std::string item(trim(std::string_view(pending_).substr(begin, searched_ - begin)));
  ++number_;
  is_owed_ = end == ',';
  pending_.erase(0, searched_ + (is_owed_ ? 1 : 0));
  searched_ = 0;
  return item;
}

char JsonRows::find_item_end() {
  bool is_text = false;
  int64_t depth = 0;
  for (;; ++searched_) {
    if (searched_ == pending_.size() && !fill()) fail_list("does not end");
    const char c = pending_[searched_];
    if (is_text) {
      if (c == '\\' && ++searched_ == pending_.size() && !fill()) fail_list("does not end");
      is_text = c != '"';
    } else if (c == '"') {
      is_text = true;
    } else if (depth == 0 && (c == ',' || c == ']')) {
      return c;
    } else if (c == '[' || c == '{') {
      ++depth;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
}

void JsonRows::fail_list(std::string_view what) const {
  throw UserError(fmt::format("{}: the JSON list {}, behind item {}", name_, what, number_),
                  "see that the file is whole, or give the rows as JSON lines");
}

}  // namespace megalith
