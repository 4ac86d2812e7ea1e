// Options: declared once, beside what they steer; everything else is derived.
//
//   struct LearningRateOptions {
//     double lr = 1e-4;
//     std::optional<int64_t> lr_warmup_iters;
//     void visit(OptionVisitor& v) {
//       v.group("Learning rate");
//       v.field("lr", lr, "Peak learning rate.").above(0);
//       v.field("lr_warmup_iters", lr_warmup_iters, "Linear warm-up from lr_warmup_init to lr.")
//           .unit("optimizer steps").at_least(0);
//     }
//   };
//
// Options are bound to the variables: YAML and command line write straight into them, and each Option records which
// layer set it. The visited structs must outlive the OptionSet, without moving.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "config/option_traits.h"
#include "config/option_value.h"

namespace megalith {

// Source of a value; later layers win.
enum class OptionLayer { kDefault, kModel, kPreset, kFile, kEnvironment, kCommandLine };

// A value's layer, and "file:line", "command line" or the like for messages.
struct OptionSource {
  OptionLayer layer = OptionLayer::kDefault;
  std::string where = "default";
};

class Option {
 public:
  // An enumeration as text: allowed words, and access to the variable.
  struct Choice {
    std::vector<std::string> words;
    std::function<size_t()> get;
    std::function<void(size_t)> set;
    const void* variable;
  };
  // A choice holds its word's index, a size_t.
  using Value = std::variant<bool, int64_t, double, std::string, std::optional<bool>, std::optional<int64_t>,
                             std::optional<double>, std::optional<std::string>, std::vector<int64_t>,
                             std::vector<double>, std::vector<std::string>, size_t>;
  using Variable = std::variant<bool*, int64_t*, double*, std::string*, std::optional<bool>*, std::optional<int64_t>*,
                                std::optional<double>*, std::optional<std::string>*, std::vector<int64_t>*,
                                std::vector<double>*, std::vector<std::string>*, Choice>;

  Option(std::string name, std::string group, std::string help, Variable variable, const OptionTraits& traits = {});

  Option& unit(std::string_view unit);
  Option& at_least(double bound);
  Option& at_most(double bound);
  Option& within(double least, double most) { return at_least(least).at_most(most); }
  Option& above(double bound);
  Option& below(double bound);
  Option& alias(std::string_view other_name);
  // A name that switches a boolean off: disable_bias_linear for add_bias_linear. (no_NAME needs no declaration.)
  Option& opposite(std::string_view name);
  Option& words(std::vector<std::string> allowed);  // for strings and lists of strings
  // OptionTraits that differ from the group's.
  Option& changes_weights(bool does);
  Option& changes_numbers(bool does);
  Option& in_toy(InToy what);
  Option& by_rank(ByRank what);
  // Value in a toy, unless the person's is unset or 0.
  Option& toy(std::string_view text);
  Option& read_by(ModelTypes types);
  Option& acts_in(RunCommands commands);
  // These models do not read it; it has this fixed value, which may be written.
  Option& always(ModelTypes types, std::string_view text);

  // Sets from text and records the source. UserError names the option, the text and what is accepted. "null", "none"
  // and "" unset an optional; "null" gives other options their default. Words ignore case, and '-' equals '_'. Lists
  // are separated by blanks or commas, or written [a, b].
  void set(std::string_view text, const OptionSource& source) { assign(WrittenValue::of(std::string(text)), source); }
  void assign(const WrittenValue& written, const OptionSource& source);
  // As assign, but a higher layer's value stays, so layers may come in any order; the history has both. True if the new
  // value won. An unreadable value is an error either way.
  bool offer(const WrittenValue& written, const OptionSource& source);
  // Sets the default and records the source.
  void reset(const OptionSource& source);
  void mark(const OptionSource& source) { source_ = source; }
  // Copies the value of the same option bound to another variable, without a source.
  void take(const Option& other) { store(other.current()); }
  void take_toy();  // the value of toy(), if declared

  const void* variable() const;

  const std::string& name() const { return name_; }
  const std::string& group() const { return group_; }
  const std::string& help() const { return help_; }
  const std::string& unit() const { return unit_; }
  const OptionTraits& traits() const { return traits_; }
  const std::vector<std::string>& aliases() const { return aliases_; }
  const std::vector<std::string>& opposites() const { return opposites_; }
  const OptionSource& source() const { return source_; }
  // All assignments in order, overridden ones too: for `inspect config --explain`.
  const std::vector<std::pair<OptionSource, std::string>>& history() const { return history_; }
  bool is_switch() const;  // needs no value on the command line
  bool is_list() const;
  bool is_optional() const;
  bool is_default() const { return text() == default_text_; }
  bool is_in_range() const;  // false for a number that did not come through set() and could not have
  bool is_above_range() const;
  const std::string* text_always(ModelType type) const;  // see always(); null: not declared
  bool is_set() const { return source_.layer != OptionLayer::kDefault; }
  bool is_off() const;                              // unset, or 0
  std::string text() const;                         // as in YAML; "null" when unset
  std::vector<std::string> words_of_value() const;  // of a text or a list of texts; otherwise text()
  const std::string& default_text() const { return default_text_; }
  std::string type_text() const;   // "integer", "number", "true or false", "one of a, b, c", …
  std::string range_text() const;  // "at least 1", "above 0 and at most 1", or ""
  // Start of messages: "--lr", or in a file "recipe.yaml:31: lr".
  std::string named_at(const OptionSource& source) const;

 private:
  Value parse(const WrittenValue& written, const OptionSource& source) const;
  Value parse_scalar(const std::string& text, const OptionSource& source) const;
  bool in_range(double value) const;
  std::string canonical_word(const std::string& text, const OptionSource& source) const;
  [[noreturn]] void refuse(const std::string& text, const OptionSource& source, const std::string& hint = "") const;
  Value current() const;
  void store(const Value& value);
  const std::vector<std::string>& allowed_words() const;

  std::string name_, group_, help_, unit_;
  OptionTraits traits_;
  std::vector<std::pair<ModelTypes, std::string>> always_;
  std::optional<std::string> toy_;
  std::vector<std::string> aliases_, opposites_, words_;
  Variable variable_;
  Value default_;
  std::string default_text_;
  std::optional<double> at_least_, at_most_, above_, below_;
  OptionSource source_;
  std::vector<std::pair<OptionSource, std::string>> history_;
};

// Passed to a struct's visit(); collects options in declaration order.
class OptionVisitor {
 public:
  // Help title and traits of the following options. A group may be opened again.
  void group(std::string_view title, const OptionTraits& traits = {}) {
    group_ = title;
    traits_ = traits;
  }

  template <typename T>
  Option& field(std::string_view name, T& variable, std::string_view help) {
    return add(name, Option::Variable(&variable), help);
  }

  // words[i] is the enumerator of value i.
  template <typename E>
  Option& choice(std::string_view name, E& variable, std::vector<std::string> words, std::string_view help) {
    E* bound = &variable;
    return add(name,
               Option::Choice{std::move(words), [bound] { return static_cast<size_t>(*bound); },
                              [bound](size_t i) { *bound = static_cast<E>(i); }, bound},
               help);
  }

 protected:
  Option& add(std::string_view name, Option::Variable variable, std::string_view help);
  std::vector<std::unique_ptr<Option>> options_;  // stable addresses
  std::string group_;
  OptionTraits traits_;
};

// All options of a program configuration, by name or alias ('-' equals '_').
class OptionSet : public OptionVisitor {
 public:
  template <typename... Structs>
  requires(sizeof...(Structs) > 0 &&
           !(std::is_base_of_v<OptionVisitor, Structs> || ...)) explicit OptionSet(Structs&... roots) {
    (roots.visit(*this), ...);
    index();
  }

  Option* find(std::string_view name) const;  // by whole name or alias, or nullptr
  template <typename T>
  Option& of(const T& variable) const {
    return bound_to(&variable);
  }
  Option* find_opposite(std::string_view name) const;  // the boolean that this name switches off, or nullptr
  std::string nearest(std::string_view name) const;    // the most similar known name, or ""
  const std::vector<std::unique_ptr<Option>>& options() const { return options_; }

 private:
  Option& bound_to(const void* variable) const;
  void index();  // InternalError when two options share a name
  std::map<std::string, Option*, std::less<>> by_name_, by_opposite_;
  std::map<const void*, Option*> by_variable_;
};

}  // namespace megalith
