// Translates another trainer's words by rows of a table of config/dialects/, for files and scripts alike.
//
//   part | when | word | becomes | says
//   sharding | parallelism.tensor_parallel_degree>1 | parallelism.tensor_parallel_degree | sequence_parallel=true
//
// part     rows applied together, in order
// when     all must hold: NAME=A|B, NAME!=A, NAME>N, NAME<N; +NAME was written by the user, -NAME was not. Whole
//          numbers, decimals and true are compared as such, A* is a prefix.
// word     its value sets the options
// becomes  OPTION=VALUE …, where {} is the word's value and {NAME} another's. -OPTION takes an option back, @FACT=VALUE
//          is for later rows, and stop ends the part. "A|B: OPTION=VALUE …; C: …" maps each value, or each item of a
//          list, and refuses all others.
// says     note TEXT; error MESSAGE => REMEDY; takes EXPECTED => REMEDY refuses the value; after a list of values, it
//          adds to the expected ones. {said NAME} is a word with its value and location.
//
// A name that begins with @ is a fact, computed by code.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/dialect.h"

namespace megalith {

// The words of a run, and setting what rules make of them.
class RuleWords {
 public:
  virtual ~RuleWords() = default;

  // The user's value, else the other trainer's default; nothing if it has none. Facts come first.
  std::string text(std::string_view name) const;
  bool has(std::string_view name) const;
  // Typed values; anything else is refused.
  bool is_on(std::string_view name) const;
  int64_t whole(std::string_view name) const;
  double number(std::string_view name) const;

  // by: the word that messages name for the fact and for the options it becomes.
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
  // The word itself, or a fact's word.
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
  // The outcome of some values; without values, of any.
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
  // Reads the table of that name; InternalError for a malformed row.
  explicit WordRules(std::string_view table)
      : WordRules(dialect_rows(table, {"part", "when", "word", "becomes", "says"})) {}
  explicit WordRules(const std::vector<DialectRow>& rows);

  void apply(std::string_view part, RuleWords& words) const;
  const std::vector<WordRule>& all() const { return rules_; }

 private:
  std::vector<WordRule> rules_;
};

}  // namespace megalith
