// Texts from option declarations: help, reference page, resolved configuration, sources of values.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/option.h"

namespace megalith {

// Options a page shows. Null: all.
using OptionFilter = std::function<bool(const Option& option)>;

struct HelpTopic {
  std::string title;
  std::vector<std::string> names;
};

// `--help all`: options by group, with type, default, unit, range and aliases. 100 columns.
std::string help_text(const OptionSet& options, const OptionFilter& shown = nullptr);

// `--help`: the topics' options, one sentence each; 100 columns. Omits names that are not in the set, and empty topics.
std::string short_help_text(const OptionSet& options, std::span<const HelpTopic> topics,
                            const OptionFilter& shown = nullptr);

// `--help WORD`: groups with the word in their titles, the option of that name, or options whose names contain it; for
// another program's word, its meaning here. Several words are looked up in titles first. Nothing if the word is
// unknown.
std::optional<std::string> help_on(const OptionSet& options, std::string_view word,
                                   const OptionFilter& shown = nullptr);

std::vector<std::string> group_titles(const OptionSet& options, const OptionFilter& shown = nullptr);

// A row "  --name VALUE" with its meaning, wrapped at 100 columns.
std::string help_row(const std::string& form, const std::string& meaning);

// First sentence of an option's help, or its part before a list of values.
std::string first_sentence(const std::string& help);

// The options as a Markdown page, one table a group.
std::string options_markdown(const OptionSet& options, const std::string& title);

enum class Shown { kAll, kNonDefault };

// Values as a flat YAML file that reads back equal; groups under comments, sources after set values.
std::string resolved_yaml(const OptionSet& options, Shown shown);

// An option's value and its layers' values, the effective one marked.
std::string explain(const Option& option);

// "command line", "configuration file", …
std::string layer_name(OptionLayer layer);

}  // namespace megalith
