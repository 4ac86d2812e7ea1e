// Writes out everything that a terminal would obey, and leaves all else as it is.
#include "core/visible_text.h"

#include <gtest/gtest.h>

#include "core/log.h"

namespace megalith {
namespace {

TEST(VisibleText, LeavesTextAsItIs) {
  for (const char* text : {"", "two\tcolumns\nand a line", "Grüße, 你好, 😀, \u00a0", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_EQ(visible_text(text), text);
  }
}

TEST(VisibleText, WritesOutWhatATerminalObeys) {
  EXPECT_EQ(visible_text("a\x1b]0;title\x07z"), "a\\x1b]0;title\\x07z");
  EXPECT_EQ(visible_text("over\rwritten\b\x7f"), "over\\x0dwritten\\x08\\x7f");
  EXPECT_EQ(visible_text("\xc2\x9b"
                         "31m"),
            "\\u009b31m");  // one character that begins a sequence
  EXPECT_EQ(visible_text("user\xe2\x80\xae"
                         "nimda"),
            "user\\u202enimda");
  EXPECT_EQ(visible_text(std::string_view("a\0b", 3)), "a\\x00b");
}

TEST(VisibleText, WritesOutBytesThatAreNoText) {
  EXPECT_EQ(visible_text("\x9b"
                         "31m"),
            "\\x9b31m");                                       // a sequence's begin where texts are Latin-1
  EXPECT_EQ(visible_text("\xc0\x9b"), "\\xc0\\x9b");           // longer than need be
  EXPECT_EQ(visible_text("\xed\xa0\x80"), "\\xed\\xa0\\x80");  // half of a pair
  EXPECT_EQ(visible_text("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");
  EXPECT_EQ(visible_text("cut \xe2\x82"), "cut \\xe2\\x82");
}

TEST(VisibleText, WritesColoursOut) {
  EXPECT_EQ(visible_text("\x1b[1;31mred\x1b[0m"), "\\x1b[1;31mred\\x1b[0m");
  EXPECT_EQ(visible_text("\x1b[8mhidden"), "\\x1b[8mhidden");
}

TEST(VisibleText, IsWhatALoggerWrites) {
  std::string out;
  LoggerSettings settings;
  settings.write = [&](std::string_view text) { out += text; };
  settings.is_terminal = true;
  Logger log(settings);
  const std::string name = "model\x1b[2J\r";
  log.error("{} is not there", name);
  log.note("reads {}", name);
  log.block(name);
  EXPECT_EQ(out, "error: model\\x1b[2J\\x0d is not there\nnote: reads model\\x1b[2J\\x0d\nmodel\\x1b[2J\\x0d\n");
  out.clear();
  log.set_status(name);
  EXPECT_EQ(out, "\r\x1b[Kmodel\\x1b[2J\\x0d");
}

}  // namespace
}  // namespace megalith
