// Splitting texts into sentences.
#include "data/sentences.h"

#include <gtest/gtest.h>

#include <string>

namespace megalith {
namespace {

using Sentences = std::vector<std::string_view>;

Sentences split(std::string_view text) { return split_sentences(text, false); }

TEST(SplitSentences, EndMarksWithABlankBehind) {
  EXPECT_EQ(split("One. Two! Three? Four"), (Sentences{"One.", "Two!", "Three?", "Four"}));
  EXPECT_EQ(split("Really?! Yes... No"), (Sentences{"Really?!", "Yes...", "No"}));
  EXPECT_EQ(split("Version 1.5 of a.b is at x.org."), (Sentences{"Version 1.5 of a.b is at x.org."}));
  EXPECT_EQ(split("  \n One.\n Two. \n"), (Sentences{"One.", "Two."}));
  EXPECT_EQ(split(" \n\t"), Sentences{});
  EXPECT_EQ(split(""), Sentences{});
}

TEST(SplitSentences, QuotesAndBracketsStayWithTheirSentence) {
  EXPECT_EQ(split("He said \"Go.\" Then (she left.) Done."),
            (Sentences{"He said \"Go.\"", "Then (she left.)", "Done."}));
  EXPECT_EQ(split("“Stop!” he said. ‘No.’ They went."), (Sentences{"“Stop!” he said.", "‘No.’", "They went."}));
}

TEST(SplitSentences, ShortFormsAndInitialsEndNothing) {
  EXPECT_EQ(split("Dr. J. Smith met Mrs. Jones, i.e. Anna. They spoke."),
            (Sentences{"Dr. J. Smith met Mrs. Jones, i.e. Anna.", "They spoke."}));
  EXPECT_EQ(split("See No. 5 and pp. 3. No. That was all."),
            (Sentences{"See No. 5 and pp. 3.", "No.", "That was all."}));
  EXPECT_EQ(split("Apples, pears etc. and so on. Élan vital. été"),
            (Sentences{"Apples, pears etc. and so on.", "Élan vital. été"}));
  EXPECT_EQ(split("1. Introduction\n2. Method. In 1999. Then"),
            (Sentences{"1. Introduction\n2. Method.", "In 1999.", "Then"}));
  EXPECT_EQ(split("It was Dr."), (Sentences{"It was Dr."}));
}

TEST(SplitSentences, WideMarksNeedNoBlank) {
  EXPECT_EQ(split("これは一つ。「二つ！」三つ"), (Sentences{"これは一つ。", "「二つ！」", "三つ"}));
}

TEST(SplitSentences, EmptyLinesAlwaysEndOne) {
  EXPECT_EQ(split("A title\n\nthe text goes\non here\n \t\nand Dr.\n\nMore"),
            (Sentences{"A title", "the text goes\non here", "and Dr.", "More"}));
}

TEST(SplitSentences, KeptNewlinesAreThoseBehindASentence) {
  EXPECT_EQ(split_sentences("One. \n\n Two\n\nThree. Four.\n", true),
            (Sentences{"One. \n\n", "Two\n\n", "Three.", "Four.\n"}));
  // Line breaks are looked for only right after each sentence, not through all the text before it.
  std::string many;
  for (int i = 0; i < 200'000; ++i) many += "Aa b. ";
  EXPECT_EQ(split_sentences(many, true).size(), 200'000u);
}

TEST(SplitSentences, NothingButBlanksIsLost) {
  const std::string text = "Ab. C d! \"E.\" F\n\ng… h。i？ J. K. 3. l";
  std::string joined, expected;
  for (const std::string_view sentence : split(text)) joined += sentence;
  for (std::string* one : {&joined}) std::erase_if(*one, [](char c) { return c == ' ' || c == '\n'; });
  expected = text;
  std::erase_if(expected, [](char c) { return c == ' ' || c == '\n'; });
  EXPECT_EQ(joined, expected);
}

}  // namespace
}  // namespace megalith
