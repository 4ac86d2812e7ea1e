#include "config/help.h"

#include <fmt/format.h>

#include <algorithm>

#include "config/known_names.h"
#include "core/strings.h"

namespace megalith {
namespace {

constexpr size_t kColumns = 100;
constexpr size_t kHelpColumn = 34;

using Groups = std::vector<std::pair<std::string, std::vector<const Option*>>>;

// By first appearance: several structs may open the same group.
Groups grouped(const OptionSet& options, const OptionFilter& shown = nullptr) {
  Groups groups;
  for (const std::unique_ptr<Option>& option : options.options()) {
    if (shown && !shown(*option)) continue;
    auto group =
        std::find_if(groups.begin(), groups.end(), [&](const auto& entry) { return entry.first == option->group(); });
    if (group == groups.end()) group = groups.insert(group, {option->group(), {}});
    group->second.push_back(option.get());
  }
  return groups;
}

std::string title_of(const std::string& group) { return group.empty() ? "Options" : group; }

// Help's form of the value: nothing for a switch; N, X or TEXT; … for a list.
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

std::string full_row(const Option& option) {
  return help_row(fmt::format("--{}{}", option.name(), value_form(option)),
                  fmt::format("{} [{}]", option.help(), facts(option)));
}

// As value_form(), with choices if short.
std::string short_value_form(const Option& option) {
  constexpr size_t kMostColumns = 32;
  const std::string type = option.type_text(), one_of = "one of ";
  if (!type.starts_with(one_of) || type.size() - one_of.size() > kMostColumns) return value_form(option);
  std::string words = " " + type.substr(one_of.size());
  for (size_t comma; (comma = words.find(", ")) != std::string::npos;) words.replace(comma, 2, "|");
  return words;
}

// "Learning rate and weight decay": learning_rate_and_weight_decay.
std::string folded_title(const std::string& group) {
  std::string title = lower_case(title_of(group));
  std::replace(title.begin(), title.end(), ' ', '_');
  return title;
}

// True if a word of the title begins with `word`: "expert" is in mixture_of_experts.
bool has_word(const std::string& title, const std::string& word) {
  constexpr size_t kShortest = 3;
  return word.size() >= kShortest && (title.starts_with(word) || title.find("_" + word) != std::string::npos);
}

std::string group_page(const std::string& group, const std::vector<const Option*>& members) {
  std::string page = title_of(group) + "\n";
  for (const Option* option : members) page += full_row(*option);
  return page;
}

std::string option_page(const Option& option) {
  std::string page = fmt::format("--{}{}\n", option.name(), value_form(option));
  for (const std::string& line : wrap(option.help(), kColumns - 2)) page += "  " + line + "\n";
  const auto row = [&](const char* what, const std::string& text) {
    if (text.empty()) return;
    const std::vector<std::string> lines = wrap(text, kColumns - 14);
    for (size_t i = 0; i < lines.size(); ++i) page += fmt::format("  {:<11} {}\n", i == 0 ? what : "", lines[i]);
  };
  page += "\n";
  const std::string range = option.range_text();
  row("takes", option.type_text() + (range.empty() ? "" : " " + range));
  row("unit", option.unit());
  row("default", option.default_text() == "null" ? "unset" : option.default_text());
  row("also", join(option.aliases(), ", "));
  row("off with", join(option.opposites(), ", "));
  std::string variable = option.name();
  std::transform(variable.begin(), variable.end(), variable.begin(),
                 [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; });
  row("variable", "MEGALITH_" + variable);
  row("topic", title_of(option.group()));
  return page;
}

// Another program's name that is no option here.
std::string known_page(const NameMatch& match) {
  const KnownName& known = *match.known;
  if (known.kind == KnownName::Kind::kNoEffect) {
    return fmt::format("{} has no effect here: {}.\n", match.name, known.text);
  }
  if (known.kind == KnownName::Kind::kRemoved)
    return fmt::format("{} is not an option here: {}.\n", match.name, known.text);
  return fmt::format("{} is not supported: it asks for {}.\n", match.name, known.text);
}

std::string markdown_cell(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '|') result += '\\';
    if (c == '<') {
      result += "&lt;";  // page generators would see a tag
      continue;
    }
    result += c == '\n' ? ' ' : c;
  }
  return result;
}

}  // namespace

std::string help_row(const std::string& form, const std::string& meaning) {
  std::string line = "  " + form;
  const std::vector<std::string> description = wrap(meaning, kColumns - kHelpColumn);
  // "…" is three bytes and one column.
  const size_t width = line.size() - (line.ends_with("…") ? 2 : 0);
  size_t next = 0;
  if (width + 2 <= kHelpColumn) line += std::string(kHelpColumn - width, ' ') + description.at(next++);
  line += "\n";
  for (; next < description.size(); ++next) line += std::string(kHelpColumn, ' ') + description[next] + "\n";
  return line;
}

std::string first_sentence(const std::string& help) {
  // An early colon follows a value, "adam: …", not a sentence.
  constexpr size_t kShortest = 16;
  size_t end = help.find(". ");
  for (const char* mark : {": ", "; "}) {
    const size_t found = help.find(mark, kShortest);
    if (found != std::string::npos) end = std::min(end, found);
  }
  if (end == std::string::npos) return help;
  return help.substr(0, end) + ".";
}

std::string help_text(const OptionSet& options, const OptionFilter& shown) {
  std::string page;
  for (const auto& [group, members] : grouped(options, shown)) {
    page += (page.empty() ? "" : "\n") + title_of(group) + "\n";
    for (const Option* option : members) page += full_row(*option);
  }
  return page;
}

std::string short_help_text(const OptionSet& options, std::span<const HelpTopic> topics, const OptionFilter& shown) {
  std::string page;
  for (const HelpTopic& topic : topics) {
    std::string rows;
    for (const std::string& name : topic.names) {
      const Option* option = options.find(name);
      if (option == nullptr || (shown && !shown(*option))) continue;
      std::string meaning = first_sentence(option->help());
      const bool has_default = option->default_text() != "null" && option->default_text() != "[]" &&
                               option->default_text() != "0" &&
                               !(option->is_switch() && option->default_text() == "false");
      if (has_default) meaning += fmt::format(" [{}]", option->default_text());
      rows += help_row(fmt::format("--{}{}", option->name(), short_value_form(*option)), meaning);
    }
    if (!rows.empty()) page += fmt::format("{}{}\n{}", page.empty() ? "" : "\n", topic.title, rows);
  }
  return page;
}

std::vector<std::string> group_titles(const OptionSet& options, const OptionFilter& shown) {
  std::vector<std::string> titles;
  for (const auto& [group, members] : grouped(options, shown)) titles.push_back(title_of(group));
  return titles;
}

std::optional<std::string> help_on(const OptionSet& options, std::string_view word, const OptionFilter& shown) {
  std::string asked = lower_case(fold_name(word));
  const bool is_phrase = asked.find(' ') != std::string::npos;  // of a title: names have no blanks
  std::replace(asked.begin(), asked.end(), ' ', '_');
  const Groups groups = grouped(options, shown);
  std::string pages;
  for (const auto& [group, members] : groups) {
    if (folded_title(group) == asked) return group_page(group, members);
    if (has_word(folded_title(group), asked)) pages += (pages.empty() ? "" : "\n") + group_page(group, members);
  }
  if (is_phrase && !pages.empty()) return pages;
  const NameMatch match = look_up(options, word);
  if (match.option && (!shown || shown(*match.option))) {
    const std::string whose =
        match.word ? fmt::format("{} is {}'s word for {}.\n\n", word, match.word->program, match.option->name()) : "";
    return whose + option_page(*match.option);
  }
  const std::string rows = help_text(options, [&](const Option& option) {
    return (!shown || shown(option)) && option.name().find(asked) != std::string::npos;
  });
  // Another program's word may also be part of our names: warmup.
  if (match.known) return known_page(match) + (rows.empty() ? "" : "\n" + rows);
  if (!pages.empty()) return pages;
  return rows.empty() ? std::nullopt : std::optional(rows);
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
  // The last assignment of the highest layer is in effect.
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
