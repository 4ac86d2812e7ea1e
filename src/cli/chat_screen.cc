#include "cli/chat_screen.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iostream>

#include "cli/print.h"
#include "core/visible_text.h"
#include "kinds/text/chat_format.h"

namespace megalith {
namespace {

constexpr std::string_view kDim = "\033[2m", kPlain = "\033[0m";

}  // namespace

ChatScreen::ChatScreen() : is_terminal_(::isatty(STDIN_FILENO) != 0 && ::isatty(STDOUT_FILENO) != 0) {}

std::optional<std::string> ChatScreen::read_line(std::string_view prompt) {
  std::string whole, line;
  do {
    if (!whole.empty()) whole.back() = '\n';
    if (is_terminal_) say(whole.empty() ? prompt : "| ");
    if (!std::getline(std::cin, line)) {
      if (is_terminal_) say("\n");
      if (whole.empty()) return std::nullopt;
      return whole;
    }
    whole += line;
  } while (whole.ends_with('\\'));
  return whole;
}

void ChatScreen::say(std::string_view text) const {
  if (text.empty()) return;
  print_coloured(text);
  std::fflush(stdout);
}

void ChatScreen::say_dimly(std::string_view text) const {
  print_coloured(fmt::format("{}{}{}", kDim, text, kPlain));
  std::fflush(stdout);
}

ThinkingFold::ThinkingFold(bool begins_inside, bool is_shown, bool has_colours)
    : state_(begins_inside ? State::kThinking : State::kBegin), is_shown_(is_shown), has_colours_(has_colours) {}

std::string ThinkingFold::thought(std::string_view text) const {
  if (!is_shown_ || text.empty()) return "";
  return has_colours_ ? fmt::format("{}{}{}", kDim, visible_text(text), kPlain) : std::string(text);
}

std::string ThinkingFold::push(std::string_view text) {
  held_ += text;
  std::string shown;
  if (state_ == State::kBegin) {
    const size_t begin = held_.find_first_not_of(" \n");
    if (begin == std::string::npos) return "";
    const std::string_view rest = std::string_view(held_).substr(begin);
    if (kThinkBegin.starts_with(rest) && rest.size() < kThinkBegin.size()) return "";
    state_ = rest.starts_with(kThinkBegin) ? State::kThinking : State::kAnswer;
    if (state_ == State::kThinking) held_.erase(0, begin + kThinkBegin.size());
  }
  if (state_ == State::kThinking) {
    if (!is_told_ && !is_shown_ && has_colours_) shown += fmt::format("{}thinking …{}", kDim, kPlain);
    is_told_ = true;
    const size_t end = held_.find(kThinkEnd);
    const size_t size = end != std::string::npos ? end : held_.size() - unfinished(held_, kThinkEnd);
    shown += thought(std::string_view(held_).substr(0, size));
    held_.erase(0, size);
    if (end == std::string::npos) return shown;
    held_.erase(0, kThinkEnd.size());
    held_.erase(0, std::min(held_.find_first_not_of('\n'), held_.size()));
    if (is_shown_ || has_colours_) shown += "\n";
    state_ = State::kAnswer;
  }
  shown += has_colours_ ? visible_text(held_) : held_;
  held_.clear();
  return shown;
}

std::string ThinkingFold::finish() {
  if (state_ == State::kThinking) return thought(held_) + "\n(the answer ended while the model was thinking)";
  return has_colours_ ? visible_text(held_) : held_;
}

}  // namespace megalith
