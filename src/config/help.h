// What is derived from declarations for people: help, the reference page, the resolved configuration, and where each
// value came from.
#pragma once

#include <string>

#include "config/option.h"

namespace megalith {

// `--help`: the options in their groups, with type, default, unit, range and aliases, within 100 columns.
std::string help_text(const OptionSet& options);

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
