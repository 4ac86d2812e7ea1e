// Texts of some keys of a JSON line, without building a document, which would take most of `prepare`'s time beside a
// fast tokenizer.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace megalith {

class JsonTexts {
 public:
  explicit JsonTexts(std::vector<std::string> keys);

  // Reads an object whose named members are texts or lists of texts; duplicate names: last wins. `line` is valid UTF-8.
  // False for anything else, and for rare forms (large exponents, escaped names, deep nesting), left to a general
  // parser. Accepts only JSON; texts equal the general parser's.
  bool read(std::string_view line);

  // Text of key k after a successful read(); valid until the next call while the line lives. A list is as written.
  std::string_view text(size_t k) const { return texts_[k]; }
  bool is_list(size_t k) const { return is_list_[k]; }
  // Texts of key k in order, each valid during its call.
  void for_each(size_t k, const std::function<void(std::string_view)>& on_text);
  // True if the line is no longer needed: every text had escapes, so was copied.
  bool holds_all() const;

 private:
  std::vector<std::string> keys_;
  std::vector<std::string_view> texts_;
  std::vector<bool> is_list_;
  std::vector<std::string> unescaped_;  // texts that had escapes
  std::vector<bool> is_found_;
};

}  // namespace megalith
