// What another trainer's words become, as rows of a table of config/dialects/: one applier for files and for scripts.
//
//   part | when | word | becomes | says
//   sharding | parallelism.tensor_parallel_degree>1 | parallelism.tensor_parallel_degree | sequence_parallel=true
//
// part     rows that are applied together, one after the other
// when     all of these hold: NAME=A|B, NAME!=A, NAME>N, NAME<N; +NAME was written by the user, -NAME was not. Whole
//          numbers, decimals and true are compared as such, A* is a beginning.
// word     by whose value the options are said
// becomes  OPTION=VALUE …, where {} is the word's value and {NAME} another's. -OPTION takes an option back, @FACT=VALUE
//          is for the rows behind it, and stop ends the part. "A|B: OPTION=VALUE …; C: …" tells what each value becomes,
//          and refuses all others; of a list, each item.
// says     note TEXT; error MESSAGE => REMEDY; takes EXPECTED => REMEDY refuses the value, and behind values goes on
//          with their list. {said NAME} is a word with its value and place.
//
// A name that begins with @ is a fact, which code works out.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/dialect.h"

namespace megalith {

// The words of a run, and what rules do with it.
class RuleWords {
 public:
  virtual ~RuleWords() = default;

  // What the user wrote, else the other trainer's own; nothing when that has none. Facts come first.
  std::string text(std::string_view name) const;
  bool has(std::string_view name) const;
  // As they must be read; what cannot be is refused.
  bool is_on(std::string_view name) const;
  int64_t whole(std::string_view name) const;
  double number(std::string_view name) const;

  // by: the word that says the fact, in messages and for the options that it becomes.
  void set_fact(std::string name, std::string value, std::string by = "");

  virtual bool is_written(std::string_view name) const = 0;
  virtual std::vector<std::string> items(std::string_view name) const { return {text(name)}; }
  virtual std::string said(std::string_view name) const = 0;
  virtual void set(std::string_view word, std::string option, std::string value) = 0;
  virtual void drop(std::string_view option);
  virtual void note(std::string text) = 0;
  virtual void fail(std::string message, std::string remedy) = 0;
  [[noreturn]] virtual void refuse(std::string_view word, std::string_view expected, std::string remedy = "") const = 0;

 protected:
  virtual std::optional<std::string> value_of(std::string_view word) const = 0;
  virtual std::string_view switch_values() const { return "true or false"; }
  // The word itself, or the one that says the fact.
  std::string_view sayer(std::string_view name) const;

 private:
  struct Fact {
    std::string value, by;
  };
  std::map<std::string, Fact, std::less<>> facts_;
};

struct RuleCondition {
  enum class Kind { kIs, kIsNot, kAbove, kBelow, kWritten, kNotWritten };
  std::string name;
  Kind kind;
  std::vector<std::string> values;
};

struct WordRule {
  std::string where, part;
  std::vector<RuleCondition> when;
  std::string word;
  // What each value becomes; one without values when all become the same.
  struct Outcome {
    std::vector<std::string> values;
    std::vector<SaidOption> options;
    std::vector<std::string> dropped;
  };
  std::vector<Outcome> outcomes;
  bool stops = false;
  enum class Says { kNothing, kNote, kError, kTakes } says = Says::kNothing;
  std::string text, remedy;
};

class WordRules {
 public:
  // Reads the table of that name; InternalError for a row that cannot be read.
  explicit WordRules(std::string_view table)
      : WordRules(dialect_rows(table, {"part", "when", "word", "becomes", "says"})) {}
  explicit WordRules(const std::vector<DialectRow>& rows);

  void apply(std::string_view part, RuleWords& words) const;
  const std::vector<WordRule>& all() const { return rules_; }

 private:
  std::vector<WordRule> rules_;
};

}  // namespace megalith
