// Options: declared once, beside what they steer; everything else is derived from the declaration.
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
// The visitor binds to the variables: reading YAML or a command line writes straight into them, and each Option keeps
// which layer set it. An OptionSet outlives neither the structs it visited nor their addresses.
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

// Who set a value; a later layer wins over an earlier one.
enum class OptionLayer { kDefault, kModel, kPreset, kFile, kEnvironment, kCommandLine };

// Where a value came from: the layer, and "file:line", "command line" or the like for messages.
struct OptionSource {
  OptionLayer layer = OptionLayer::kDefault;
  std::string where = "default";
};

class Option {
 public:
  // An enumeration bound as text: the allowed words, and how to read and write the variable.
  struct Choice {
    std::vector<std::string> words;
    std::function<size_t()> get;
    std::function<void(size_t)> set;
    const void* variable;
  };
  // What a variable can hold; the index of a choice's word is a size_t.
  using Value = std::variant<bool, int64_t, double, std::string, std::optional<bool>, std::optional<int64_t>,
                             std::optional<double>, std::optional<std::string>, std::vector<int64_t>,
                             std::vector<double>, std::vector<std::string>, size_t>;
  using Variable = std::variant<bool*, int64_t*, double*, std::string*, std::optional<bool>*, std::optional<int64_t>*,
                                std::optional<double>*, std::optional<std::string>*, std::vector<int64_t>*,
                                std::vector<double>*, std::vector<std::string>*, Choice>;

  Option(std::string name, std::string group, std::string help, Variable variable, const OptionTraits& traits = {});

  // Declaration, chained.
  Option& unit(std::string_view unit);
  Option& at_least(double bound);
  Option& at_most(double bound);
  Option& within(double least, double most) { return at_least(least).at_most(most); }
  Option& above(double bound);
  Option& below(double bound);
  Option& alias(std::string_view other_name);
  // A name that switches a boolean off: add_bias_linear has disable_bias_linear. (no_NAME needs no declaration.)
  Option& opposite(std::string_view name);
  Option& words(std::vector<std::string> allowed);  // for strings and lists of strings
  // OptionTraits of this option that differ from its group's.
  Option& changes_weights(bool does);
  Option& changes_numbers(bool does);
  Option& in_toy(InToy what);
  Option& by_rank(ByRank what);
  // In a toy it has this value, unless the person's is unset or 0.
  Option& toy(std::string_view text);
  Option& read_by(ModelTypes types);
  Option& acts_in(RunCommands commands);
  // These models do not read it: for them it always has this value, which may be said.
  Option& always(ModelTypes types, std::string_view text);

  // Sets from text and records the source. Throws UserError that names the option, the text and what is accepted.
  // "null", "none" and "" unset an optional; "null" gives any other option its default. Words are compared without
  // regard to case and '-' against '_'. Lists are separated by blanks or commas, or written [a, b].
  void set(std::string_view text, const OptionSource& source) { assign(WrittenValue::of(std::string(text)), source); }
  void assign(const WrittenValue& written, const OptionSource& source);
  // As assign, but a value that a higher layer set stays; the history has both. Returns whether the new value won.
  // So layers may be applied in any order. A value that cannot be read is an error even when it loses.
  bool offer(const WrittenValue& written, const OptionSource& source);
  // Sets the variable to its default and records the source.
  void reset(const OptionSource& source);
  void mark(const OptionSource& source) { source_ = source; }
  // Takes the value of an option of the same declaration, bound to another variable; nobody is recorded as its source.
  void take(const Option& other) { store(other.current()); }
  void take_toy();  // the value of toy(), where one was said

  const void* variable() const;

  const std::string& name() const { return name_; }
  const std::string& group() const { return group_; }
  const std::string& help() const { return help_; }
  const std::string& unit() const { return unit_; }
  const OptionTraits& traits() const { return traits_; }
  const std::vector<std::string>& aliases() const { return aliases_; }
  const std::vector<std::string>& opposites() const { return opposites_; }
  const OptionSource& source() const { return source_; }
  // Every assignment in order, the losing ones included: for `inspect config --explain`.
  const std::vector<std::pair<OptionSource, std::string>>& history() const { return history_; }
  bool is_switch() const;  // takes no value on the command line when bare
  bool is_list() const;
  bool is_optional() const;
  bool is_default() const { return text() == default_text_; }
  bool is_in_range() const;  // false for a number that did not come through set() and could not have
  bool is_above_range() const;
  const std::string* text_always(ModelType type) const;  // see always(); null where it was not said
  bool is_set() const { return source_.layer != OptionLayer::kDefault; }
  bool is_off() const;                              // unset, or 0
  std::string text() const;                         // the value as it would be written in YAML; "null" when unset
  std::vector<std::string> words_of_value() const;  // of a text or a list of texts; otherwise text()
  const std::string& default_text() const { return default_text_; }
  std::string type_text() const;   // "integer", "number", "true or false", "one of a, b, c", …
  std::string range_text() const;  // "at least 1", "above 0 and at most 1", or ""
  // "lr" on the command line is "--lr", in a file "recipe.yaml:31: lr": how messages about this option begin.
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

// What a struct's visit() talks to: collects the options in declaration order.
class OptionVisitor {
 public:
  // The options that follow stand under this title in help, and have these traits. A group may be opened again.
  void group(std::string_view title, const OptionTraits& traits = {}) {
    group_ = title;
    traits_ = traits;
  }

  template <typename T>
  Option& field(std::string_view name, T& variable, std::string_view help) {
    return add(name, Option::Variable(&variable), help);
  }

  // An enumeration: words[i] stands for the enumerator of value i.
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

// All options of one program configuration, looked up by name or alias ('-' and '_' are the same).
class OptionSet : public OptionVisitor {
 public:
  // Visits the structs in order; their options form one set.
  template <typename... Structs>
  requires(sizeof...(Structs) > 0 &&
           !(std::is_base_of_v<OptionVisitor, Structs> || ...)) explicit OptionSet(Structs&... roots) {
    (roots.visit(*this), ...);
    index();
  }

  Option* find(std::string_view name) const;  // whole name or alias, or nullptr
  // The option bound to this variable of a visited struct.
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
