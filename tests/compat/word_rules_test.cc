// Rules as rows: what a row does, that a wrong one is named, and that every row of the tables speaks of words and
// options that there are.
#include "compat/word_rules.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <map>

#include "compat/file_keys.h"
#include "compat/variable.h"
#include "config/presets.h"
#include "core/error.h"
#include "support/source_dir.h"
#include "train/config.h"

namespace megalith {
namespace {

constexpr std::array<std::string_view, 5> kColumns = {"part", "when", "word", "becomes", "says"};

// Words of a map; what rules do with them is a text.
class SampleWords : public RuleWords {
 public:
  std::map<std::string, std::string, std::less<>> written;
  std::string done;

  bool is_written(std::string_view name) const override { return written.contains(name); }
  std::string said(std::string_view name) const override { return fmt::format("{}={}", sayer(name), text(name)); }
  void set(std::string_view word, std::string option, std::string value) override {
    done += fmt::format("{}:{}={} ", sayer(word), option, value);
  }
  void drop(std::string_view option) override { done += fmt::format("-{} ", option); }
  void note(std::string text) override { done += fmt::format("note {} ", text); }
  void fail(std::string message, std::string remedy) override { done += fmt::format("{}, so {} ", message, remedy); }
  [[noreturn]] void refuse(std::string_view word, std::string_view expected, std::string remedy) const override {
    throw UserError(fmt::format("{} is not {}", said(word), expected), remedy);
  }

 protected:
  std::optional<std::string> value_of(std::string_view word) const override {
    const auto found = written.find(word);
    return found == written.end() ? std::nullopt : std::optional(found->second);
  }
};

std::string applied(const std::string& rows, std::map<std::string, std::string, std::less<>> written) {
  const std::string text = "part | when | word | becomes | says\n" + rows;
  SampleWords words;
  words.written = std::move(written);
  words.set_fact("@two", "2", "tp");
  try {
    WordRules(read_dialect({"sample", text}, kColumns)).apply("all", words);
  } catch (const std::exception& error) {
    return error.what();
  }
  return words.done;
}

TEST(WordRules, ARowBecomesOptionsWhereItsConditionsHold) {
  EXPECT_EQ(applied("all | tp>1 tp<3 | tp | a={} b={@two}/{pp}", {{"tp", "2"}, {"pp", "4"}}), "tp:a=2 tp:b=2/4 ");
  EXPECT_EQ(applied("all | tp>1 | tp | a={}", {{"tp", "1"}}), "");
  EXPECT_EQ(applied("all | tp>1 | tp | a={}", {}), "");
  EXPECT_EQ(applied("all | +tp -pp tp!=3|4 | tp | a='[x, y]' -b", {{"tp", "1"}}), "-b tp:a=[x, y] ");
  EXPECT_EQ(applied("all | mode=full|ha* | mode | a=1 stop\nall | | mode | b=1", {{"mode", "half"}}), "mode:a=1 ");
  EXPECT_EQ(applied("all | on=true | @two | a={}", {{"on", "True"}}), "tp:a=2 ");
  EXPECT_EQ(applied("all | | on | @f={}\nall | @f=1 | @f | a={}", {{"on", "1"}}), "on:a=1 ");
}

TEST(WordRules, AValueThatIsNotAmongARowsIsRefused) {
  const std::string row = "all | | mode | none:; full|whole: a=1 b=2; half: a=3 | takes , or nothing => see --mode";
  EXPECT_EQ(applied(row, {{"mode", "whole"}}), "mode:a=1 mode:b=2 ");
  EXPECT_EQ(applied(row, {{"mode", "none"}}), "");
  EXPECT_NE(applied(row, {{"mode", "no"}}).find("mode=no is not none, full, half, or nothing"), std::string::npos);
  EXPECT_NE(applied("all | | x | | takes two => write it", {{"x", "1"}}).find("x=1 is not two"), std::string::npos);
  EXPECT_NE(applied("all | x>1 | | a=1", {{"x", "many"}}).find("x=many is not a whole number"), std::string::npos);
}

TEST(WordRules, NotesAndErrorsQuoteWords) {
  EXPECT_EQ(applied("all | | x | | note {said}: {y} is {said y}", {{"x", "1"}, {"y", "2"}}), "note x=1: 2 is y=2 ");
  EXPECT_EQ(applied("all | | x | | error {said} is bad => drop {x}", {{"x", "1"}}), "x=1 is bad, so drop 1 ");
}

TEST(WordRules, AWrongRowIsNamed) {
  for (const auto& [row, message] : {std::pair("all | x | | a=1", "sample.table:2: 'x' compares nothing"),
                                     std::pair("all | | x | a", "sample.table:2: 'a' gives no option a value"),
                                     std::pair("all | | x | | says it", "sample.table:2: 'says' is no word"),
                                     std::pair("some | | x | a=1", "no rule is of the part all")}) {
    EXPECT_NE(applied(row, {{"x", "1"}}).find(message), std::string::npos) << applied(row, {{"x", "1"}});
  }
}

struct RuleTable {
  const char* name;
  std::function<bool(const std::string& word)> has_word;
};

bool is_key(const FileKeys& keys, const std::string& word) {
  return keys.find(word) != nullptr || keys.is_section(word);
}

bool is_variable(const std::string& word) {
  constexpr std::string_view kSpelling = "spelling of ";
  return find_script_variable(word.starts_with(kSpelling) ? word.substr(kSpelling.size()) : word) != nullptr;
}

const RuleTable kTables[] = {
    {"torchtitan_rules", [](const std::string& word) { return is_key(torchtitan_keys(), word); }},
    {"torchtune_rules", [](const std::string& word) { return is_key(torchtune_keys(), word); }},
    {"finetuner_rules",
     [](const std::string& word) {
       return is_key(axolotl_keys(), word) || is_key(llamafactory_keys(), word) || is_key(trl_keys(), word);
     }},
    {"script_rules", is_variable},
};

// Names in braces: {}, {NAME}, {said NAME}.
std::vector<std::string> names_in_braces(const std::string& text) {
  std::vector<std::string> names;
  for (size_t begin = text.find('{'); begin != std::string::npos; begin = text.find('{', begin + 1)) {
    std::string name = text.substr(begin + 1, text.find('}', begin) - begin - 1);
    if (name.starts_with("said ")) name.erase(0, 5);
    if (name != "said") names.push_back(name);
  }
  return names;
}

TEST(WordRules, EveryRowSpeaksOfWordsThatThereAre) {
  for (const auto& [name, has_word] : kTables) {
    const WordRules rules(name);
    for (const WordRule& rule : rules.all()) {
      std::vector<std::string> words = {rule.word};
      for (const RuleCondition& condition : rule.when) words.push_back(condition.name);
      for (const std::string& text : {rule.text, rule.remedy}) {
        for (const std::string& word : names_in_braces(text)) words.push_back(word);
      }
      for (const WordRule::Outcome& outcome : rule.outcomes) {
        for (const SaidOption& one : outcome.options) {
          for (const std::string& word : names_in_braces(one.value)) words.push_back(word);
        }
      }
      for (const std::string& word : words) {
        EXPECT_TRUE(word.empty() || word.starts_with('@') || has_word(word)) << rule.where << ": " << word;
      }
    }
  }
}

TEST(WordRules, EveryRowBecomesOptionsThatTakeItsValues) {
  Config config;
  const OptionSet options(config);
  constexpr std::string_view kInput = "input:";
  for (const auto& [name, has_word] : kTables) {
    const WordRules rules(name);
    for (const WordRule& rule : rules.all()) {
      for (const WordRule::Outcome& outcome : rule.outcomes) {
        for (const std::string& option : outcome.dropped) EXPECT_NE(options.find(option), nullptr) << rule.where;
        for (const auto& [said, value] : outcome.options) {
          if (said.starts_with('@')) continue;
          if (said == "preset") {
            EXPECT_NO_THROW(find_config(value, test::source_dir() / "configs")) << rule.where << ": " << value;
            continue;
          }
          Option* option = options.find(said.starts_with(kInput) ? said.substr(kInput.size()) : said);
          ASSERT_NE(option, nullptr) << rule.where << ": " << said;
          if (value.find('{') != std::string::npos) continue;
          EXPECT_NO_THROW(option->set(value, {OptionLayer::kCommandLine, "table"})) << rule.where << ": " << said;
        }
      }
    }
  }
}

}  // namespace
}  // namespace megalith
