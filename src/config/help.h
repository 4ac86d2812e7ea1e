// What is derived from declarations for people: help, the reference page, the resolved configuration, and where each
// value came from.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/option.h"

namespace megalith {

// Which options a page shows. Null: all.
using OptionFilter = std::function<bool(const Option& option)>;

// A heading of the short page, and the options under it in their order.
struct HelpTopic {
  std::string title;
  std::vector<std::string> names;
};

// `--help all`: the options in their groups, with type, default, unit, range and aliases, within 100 columns.
std::string help_text(const OptionSet& options, const OptionFilter& shown = nullptr);

// `--help`: the options of the topics, one sentence each, within 100 columns. A topic without an option is left out,
// and so is a name that is no option of the set.
std::string short_help_text(const OptionSet& options, std::span<const HelpTopic> topics,
                            const OptionFilter& shown = nullptr);

// `--help WORD`: about the groups in whose title the word is, the option of that name, or the options in whose name the
// word is; about another program's word, what it is here. Several words are first looked for in titles. Nothing when
// the word says nothing.
std::optional<std::string> help_on(const OptionSet& options, std::string_view word,
                                   const OptionFilter& shown = nullptr);

// The titles of the groups, in order of appearance.
std::vector<std::string> group_titles(const OptionSet& options, const OptionFilter& shown = nullptr);

// A row of a page: "  --name VALUE" and what it means, wrapped within 100 columns.
std::string help_row(const std::string& form, const std::string& meaning);

// The first sentence of an option's help, or the part of it before a list of values.
std::string first_sentence(const std::string& help);

// The same as a Markdown page: one table a group.
std::string options_markdown(const OptionSet& options, const std::string& title);

// Which options resolved_yaml prints.
enum class Shown { kAll, kNonDefault };

// The values as a flat YAML file that reads back to the same values; each group under a comment, and behind a value
// that somebody set, where.
std::string resolved_yaml(const OptionSet& options, Shown shown);

// One option's value and the layers that gave it values, the one in effect marked.
std::string explain(const Option& option);

// "command line", "configuration file", …
std::string layer_name(OptionLayer layer);

}  // namespace megalith
