// Regular expressions over Unicode text: PCRE2 with its just-in-time compiler, with Oniguruma's reading of a pattern
// where the two differ (tokenizer.json files are written for Oniguruma).
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace megalith {

class Regex {
 public:
  // UserError with the file `where` and the position if the pattern is not valid.
  Regex(std::string_view pattern, std::string_view where);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  // Matches one text from left to right. Has its own working memory: use one per thread.
  class Scanner {
   public:
    Scanner(const Regex& regex, std::string_view text);  // text must be valid UTF-8 and outlive the scanner
    ~Scanner();
    Scanner(const Scanner&) = delete;
    Scanner& operator=(const Scanner&) = delete;

    // Offsets of the next match; false if there is none.
    bool next(size_t& begin, size_t& end);

   private:
    struct State;
    std::unique_ptr<State> state_;
  };

  const std::string& pattern() const { return pattern_; }

 private:
  struct Code;
  std::string pattern_;
  std::unique_ptr<Code> code_;
};

// The pattern that matches `text` itself.
std::string escape_regex(std::string_view text);

}  // namespace megalith
