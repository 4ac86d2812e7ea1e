// Reads pipeline_model_parallel_layout; see pipeline_options.h.
#include <fmt/format.h>

#include <string_view>

#include "parallel/pipeline/pipeline_options.h"

namespace megalith {
namespace {

constexpr std::string_view kStageLetters = "EtmL";
// Far above any model; a typo such as t*1000000000 must not exhaust memory.
constexpr int64_t kMaxLetters = 100'000;
constexpr int kMaxDepth = 100;

// items := (item | ',' | blank)*      item := (letter | '|' | '(' items ')') ('*' number)?
class LayoutReader {
 public:
  explicit LayoutReader(std::string_view text) : text_(text) {}

  std::string read_all() {
    std::string letters = read_items();
    if (position_ < text_.size()) refuse("the ')' closes nothing");
    return letters;
  }

 private:
  std::string read_items() {
    std::string letters;
    while (true) {
      skip_decoration();
      if (position_ == text_.size() || text_[position_] == ')') return letters;
      letters += read_item();
      check_length(static_cast<int64_t>(letters.size()));
    }
  }

  std::string read_item() {
    const char c = text_[position_];
    std::string letters(1, c);
    if (c == '(') {
      const size_t opened_at = position_++;
      if (++depth_ > kMaxDepth) refuse(fmt::format("more than {} parentheses in one another", kMaxDepth));
      letters = read_items();
      --depth_;
      if (position_ == text_.size()) {
        position_ = opened_at;
        refuse("the '(' is never closed");
      }
    } else if (kStageLetters.find(c) == std::string_view::npos && c != '|') {
      refuse(fmt::format("'{}' is no letter of a layout", c));
    }
    ++position_;
    return repeated(letters);
  }

  std::string repeated(const std::string& letters) {
    skip_blanks();
    if (position_ == text_.size() || text_[position_] != '*') return letters;
    ++position_;
    skip_blanks();
    const size_t begin = position_;
    int64_t times = 0;
    for (; position_ < text_.size() && text_[position_] >= '0' && text_[position_] <= '9'; ++position_) {
      times = times * 10 + (text_[position_] - '0');
      if (times > kMaxLetters) break;
    }
    if (position_ == begin) refuse("'*' needs a number behind it");
    check_length(times * static_cast<int64_t>(letters.size()));
    std::string all;
    for (int64_t i = 0; i < times; ++i) all += letters;
    return all;
  }

  void skip_blanks() {
    while (position_ < text_.size() && std::string_view(" \t\r\n").find(text_[position_]) != std::string_view::npos) {
      ++position_;
    }
  }
  void skip_decoration() {
    for (skip_blanks(); position_ < text_.size() && text_[position_] == ','; skip_blanks()) ++position_;
  }

  void check_length(int64_t length) const {
    if (length > kMaxLetters) refuse(fmt::format("it has more than {} letters", kMaxLetters));
  }

  [[noreturn]] void refuse(const std::string& why) const {
    throw UserError(
        fmt::format("pipeline_model_parallel_layout '{}', character {}: {}", text_, position_ + 1, why),
        "write E, t (a layer each), L and | between stages; x*n or (…)*n repeats, as in \"Et*3|(tt|)*14,L\"");
  }

  std::string_view text_;
  size_t position_ = 0;
  int depth_ = 0;
};

}  // namespace

std::vector<std::string> parse_pipeline_layout(const std::string& text) {
  std::vector<std::string> stages(1);
  for (const char letter : LayoutReader(text).read_all()) {
    if (letter == '|')
      stages.emplace_back();
    else
      stages.back() += letter;
  }
  return stages;
}

}  // namespace megalith
