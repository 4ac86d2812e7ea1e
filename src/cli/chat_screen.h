// A conversation's terminal: lines in, words out.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace megalith {

class ChatScreen {
 public:
  ChatScreen();

  // Both input and output are a terminal: prompts and colours.
  bool is_terminal() const { return is_terminal_; }
  // The next line, joined with the following ones while it ends in a backslash; nothing at the end of input and at
  // Ctrl-C.
  std::optional<std::string> read_line(std::string_view prompt);
  void say(std::string_view text) const;
  void say_dimly(std::string_view text) const;

 private:
  bool is_terminal_;
};

// Drops the text between <think> and </think>, or shows it dimly.
class ThinkingFold {
 public:
  // begins_inside  the prompt ends with <think>
  // has_colours    for a terminal: control characters are made visible; a pipe gets every byte
  ThinkingFold(bool begins_inside, bool is_shown, bool has_colours);

  // Returns what to print now.
  std::string push(std::string_view text);
  std::string finish();

 private:
  enum class State { kBegin, kThinking, kAnswer };
  std::string thought(std::string_view text) const;

  State state_;
  bool is_shown_, has_colours_;
  bool is_told_ = false;
  std::string held_;
};

}  // namespace megalith
