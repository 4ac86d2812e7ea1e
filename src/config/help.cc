// Help, reference page, resolved configuration; see help.h.
#include "config/help.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/strings.h"

namespace megalith {
namespace {

constexpr size_t kColumns = 100;
constexpr size_t kHelpColumn = 34;  // where descriptions begin

// Groups in order of first appearance: a group may be opened again by another struct.
std::vector<std::pair<std::string, std::vector<const Option*>>> grouped(const OptionSet& options) {
  std::vector<std::pair<std::string, std::vector<const Option*>>> groups;
  for (const std::unique_ptr<Option>& option : options.options()) {
    auto group =
        std::find_if(groups.begin(), groups.end(), [&](const auto& entry) { return entry.first == option->group(); });
    if (group == groups.end()) group = groups.insert(group, {option->group(), {}});
    group->second.push_back(option.get());
  }
  return groups;
}

std::string title_of(const std::string& group) { return group.empty() ? "Options" : group; }

// What help prints behind an option's name: nothing for a switch, N, X or TEXT for a value, … for a list.
std::string value_form(const Option& option) {
  if (option.is_switch()) return "";
  const std::string type = option.type_text();
  if (type == "integer") return " N";
  if (type == "number") return " X";
  if (type == "list of integers") return " N …";
  if (type == "list of numbers") return " X …";
  if (option.is_list()) return " TEXT …";
  return type == "text" ? " TEXT" : " WORD";
}

// "one of a, b; in samples; at least 1; default 4; also --x"
std::string facts(const Option& option) {
  std::vector<std::string> facts;
  const std::string type = option.type_text();
  if (type.starts_with("one of") || type.starts_with("list of")) facts.push_back(type);
  if (!option.unit().empty()) facts.push_back("in " + option.unit());
  if (!option.range_text().empty()) facts.push_back(option.range_text());
  facts.push_back(option.default_text() == "null" ? "unset by default" : "default " + option.default_text());
  std::vector<std::string> aliases;
  for (const std::string& alias : option.aliases()) aliases.push_back("--" + alias);
  if (!aliases.empty()) facts.push_back("also " + join(aliases, ", "));
  std::vector<std::string> opposites;
  for (const std::string& opposite : option.opposites()) opposites.push_back("--" + opposite);
  if (!opposites.empty()) facts.push_back("off with " + join(opposites, ", "));
  return join(facts, "; ");
}

std::string markdown_cell(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '|') result += '\\';
    if (c == '<') {
      result += "&lt;";  // a page generator would take it for a tag
      continue;
    }
    result += c == '\n' ? ' ' : c;
  }
  return result;
}

}  // namespace

std::string help_text(const OptionSet& options) {
  std::string page;
  for (const auto& [group, members] : grouped(options)) {
    page += (page.empty() ? "" : "\n") + title_of(group) + "\n";
    for (const Option* option : members) {
      std::string line = fmt::format("  --{}{}", option->name(), value_form(*option));
      const std::vector<std::string> description =
          wrap(fmt::format("{} [{}]", option->help(), facts(*option)), kColumns - kHelpColumn);
      // "…" is three bytes and one column.
      const size_t width = line.size() - (line.ends_with("…") ? 2 : 0);
      size_t next = 0;
      if (width + 2 <= kHelpColumn) line += std::string(kHelpColumn - width, ' ') + description[next++];
      page += line + "\n";
      for (; next < description.size(); ++next) page += std::string(kHelpColumn, ' ') + description[next] + "\n";
    }
  }
  return page;
}

std::string options_markdown(const OptionSet& options, const std::string& title) {
  std::string page = fmt::format(
      "# {}\n\nGenerated from the declarations. Each option is written `--name value`, `--name=value`, `name: value` "
      "in a file or `MEGALITH_NAME=value` in the environment; dashes and underscores are the same.\n",
      title);
  for (const auto& [group, members] : grouped(options)) {
    page += fmt::format("\n## {}\n\n| option | type | default | unit | range | meaning |\n|---|---|---|---|---|---|\n",
                        title_of(group));
    for (const Option* option : members) {
      std::string name = fmt::format("`{}`", option->name());
      for (const std::string& alias : option->aliases()) name += fmt::format(", `{}`", alias);
      for (const std::string& opposite : option->opposites()) name += fmt::format(", `{}` (off)", opposite);
      page += fmt::format("| {} | {} | `{}` | {} | {} | {} |\n", name, markdown_cell(option->type_text()),
                          markdown_cell(option->default_text()), markdown_cell(option->unit()), option->range_text(),
                          markdown_cell(option->help()));
    }
  }
  return page;
}

std::string resolved_yaml(const OptionSet& options, Shown shown) {
  std::string page;
  for (const auto& [group, members] : grouped(options)) {
    std::string lines;
    for (const Option* option : members) {
      if (shown == Shown::kNonDefault && option->is_default()) continue;
      std::string line = fmt::format("{}: {}", option->name(), option->text());
      if (option->is_set()) {
        std::string where = option->source().where;
        std::replace(where.begin(), where.end(), '\n', ' ');  // a comment ends with its line
        line = fmt::format("{:<50}  # {}", line, where);
      }
      lines += line + "\n";
    }
    if (!lines.empty()) page += fmt::format("{}# {}\n{}", page.empty() ? "" : "\n", title_of(group), lines);
  }
  return page;
}

std::string explain(const Option& option) {
  std::string page = fmt::format("{}: {}\n  {}\n", option.name(), option.text(), option.help());
  const auto line = [](bool is_in_effect, const std::string& layer, std::string where, const std::string& value) {
    if (where == layer) where.clear();
    return fmt::format("  {} {:<18}  {:<30}  {}\n", is_in_effect ? "*" : " ", layer, where, value);
  };
  // The assignment in effect is the last one of the highest layer.
  const auto& history = option.history();
  size_t in_effect = history.size();
  for (size_t i = 0; i < history.size(); ++i) {
    if (in_effect == history.size() || history[i].first.layer >= history[in_effect].first.layer) in_effect = i;
  }
  page += line(history.empty(), layer_name(OptionLayer::kDefault), "", option.default_text());
  for (size_t i = 0; i < history.size(); ++i) {
    const auto& [source, value] = history[i];
    page += line(i == in_effect, layer_name(source.layer), source.where, value);
  }
  return page;
}

std::string layer_name(OptionLayer layer) {
  switch (layer) {
    case OptionLayer::kDefault:
      return "default";
    case OptionLayer::kModel:
      return "model";
    case OptionLayer::kPreset:
      return "preset";
    case OptionLayer::kFile:
      return "configuration file";
    case OptionLayer::kEnvironment:
      return "environment";
    case OptionLayer::kCommandLine:
      return "command line";
  }
  return "unknown";
}

}  // namespace megalith
