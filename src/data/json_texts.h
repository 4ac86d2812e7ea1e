// The texts of some keys of a line of JSON, read without building a document: with a fast tokenizer, building documents
// would take most of `prepare`'s time.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace megalith {

class JsonTexts {
 public:
  explicit JsonTexts(std::vector<std::string> keys);

  // Reads an object whose members of these names are texts or lists of texts; of two equal names the last counts.
  // `line` is valid UTF-8. False for everything else, right or wrong, and for what is rare: large exponents, names with
  // escapes, deep nesting. A general parser then decides. What it accepts is JSON, and the texts are those that the
  // general parser would give.
  bool read(std::string_view line);

  // The text of the k-th key, after read() was true; valid until the next call and as long as the line. A list is
  // given as it is written.
  std::string_view text(size_t k) const { return texts_[k]; }
  bool is_list(size_t k) const { return is_list_[k]; }
  // The texts of the k-th key in order, each valid during its call.
  void for_each(size_t k, const std::function<void(std::string_view)>& on_text);
  // Whether the line is no longer needed: every text is a copy, since all had escapes.
  bool holds_all() const;

 private:
  std::vector<std::string> keys_;
  std::vector<std::string_view> texts_;
  std::vector<bool> is_list_;
  std::vector<std::string> unescaped_;  // texts that had escapes lie here
  std::vector<bool> is_found_;
};

}  // namespace megalith
