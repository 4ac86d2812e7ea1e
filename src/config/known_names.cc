// Looking up names, and notes on those without effect; see known_names.h.
#include "config/known_names.h"

#include <fmt/format.h>

#include <algorithm>

#include "config/dialect.h"
#include "config/known_names_table.h"
#include "config/option_value.h"
#include "core/strings.h"

namespace megalith {
namespace {

using Table = std::map<std::string, KnownName, std::less<>>;

// Names of all rows, each with the neutral values after its '='.
Table build_table() {
  Table table;
  for (const KnownNamesRow& row : known_names_rows()) {
    for (const std::string& entry : split_words(row.names)) {
      auto [name, neutral] = split_entry(entry);
      KnownName known{row.kind, row.text, row.is_switch, std::move(neutral)};
      if (!known.neutral.empty()) {
        known.is_switch = known.is_switch || known.neutral[0] == "false" || known.neutral[0] == "true";
      }
      const bool is_new = table.emplace(name, std::move(known)).second;
      MEGALITH_CHECK(is_new, "known name '{}' stands twice in the table", entry);
    }
  }
  return table;
}

const Table& table() {
  static const Table built = build_table();
  return built;
}

bool same_value(const std::string& a, const std::string& b) {
  if (lower_case(trim(a)) == lower_case(b)) return true;
  const std::optional<double> a_number = parse_number(a), b_number = parse_number(b);
  if (a_number && b_number) return *a_number == *b_number;
  const std::optional<bool> a_bool = parse_bool(a), b_bool = parse_bool(b);
  return a_bool && b_bool && *a_bool == *b_bool;
}

constexpr std::string_view kNo = "no_";

NameMatch match_option(const OptionSet& options, const std::string& name) {
  if (Option* option = options.find(name)) return {option, nullptr, false, option->name()};
  if (Option* option = options.find_opposite(name)) return {option, nullptr, true, option->name()};
  Option* positive = name.starts_with(kNo) ? options.find(name.substr(kNo.size())) : nullptr;
  // Another program may have the whole name: --no_persist_layer_norm.
  if (!positive || !positive->is_switch() || find_known_name(name)) return {};
  return {positive, nullptr, true, positive->name()};
}

NameMatch match_known(const std::string& name) {
  if (const KnownName* known = find_known_name(name)) return {nullptr, known, false, name};
  const std::string positive = name.starts_with(kNo) ? name.substr(kNo.size()) : "";
  const KnownName* known = find_known_name(positive);
  return known && known->is_switch ? NameMatch{nullptr, known, true, positive} : NameMatch{};
}

// Another program's word for an option of this set.
NameMatch match_word(const OptionSet& options, const std::string& name) {
  const OtherWord* word = find_other_word(name);
  Option* option = word ? options.find(word->option) : nullptr;
  return option ? NameMatch{option, nullptr, false, option->name(), word} : NameMatch{};
}

NameMatch match(const OptionSet& options, const std::string& name) {
  NameMatch found = match_option(options, name);
  if (!found) found = match_known(name);
  return found ? found : match_word(options, name);
}

// modules.pre_trainer.overrides.lora.dim -> lora.dim
std::string without_layout(std::string name) {
  constexpr std::string_view kModules = "modules.", kOverrides = "overrides.";
  if (name.starts_with(kModules)) {
    const size_t dot = name.find('.', kModules.size());
    name.erase(0, dot == std::string::npos ? name.size() : dot + 1);
  }
  if (name.starts_with(kOverrides)) name.erase(0, kOverrides.size());
  return name;
}

}  // namespace

const KnownName* find_known_name(std::string_view name) {
  const Table& names = table();
  const std::string folded = fold_name(name);
  const auto found = names.find(folded);
  if (found != names.end()) return &found->second;
  // Environment variables and some services' options come in families, PREFIX_*, and maps, MAP.*.
  for (size_t end = folded.find_first_of("_."); end != std::string::npos; end = folded.find_first_of("_.", end + 1)) {
    const auto family = names.find(folded.substr(0, end + 1) + "*");
    if (family != names.end()) return &family->second;
  }
  return nullptr;
}

bool is_neutral(const std::vector<std::string>& neutral, const WrittenValue& value) {
  if (value.form == WrittenValue::Form::kNull) return true;
  const std::string text = value.text();
  if (is_null_word(text) || text == "[]") return true;
  return std::any_of(neutral.begin(), neutral.end(), [&](const std::string& one) { return same_value(text, one); });
}

NameMatch look_up(const OptionSet& options, std::string_view written) {
  const std::string name = fold_name(written);
  if (name.find('.') == std::string::npos) return match(options, name);
  const std::string path = without_layout(name);
  std::string joined = path;
  std::replace(joined.begin(), joined.end(), '.', '_');
  if (NameMatch found = match_option(options, path)) return found;
  if (NameMatch found = match_option(options, joined)) return found;
  if (NameMatch found = match_known(path)) return found;
  if (NameMatch found = match_known(joined)) return found;
  if (NameMatch found = match_word(options, joined)) return found;
  return match(options, path.substr(path.rfind('.') + 1));
}

std::vector<std::string> OtherCommands::owners(std::string_view written) const {
  if (!with_option) return {};
  std::string name = fold_name(written);
  std::vector<std::string> found = with_option(name);
  if (!found.empty()) return found;
  name.erase(0, name.rfind('.') + 1);  // npos + 1 is 0
  found = with_option(name);
  if (found.empty() && name.starts_with(kNo)) found = with_option(name.substr(kNo.size()));
  return found;
}

UserError unknown_name(const OptionSet& options, const Setting& setting, const OtherCommands& others) {
  if (const std::vector<std::string> owners = others.owners(setting.name); !owners.empty()) {
    return useless_name(setting, owners, others.here);
  }
  const bool is_command_line = setting.source.layer == OptionLayer::kCommandLine;
  constexpr size_t kLongestShown = 100;
  const std::string shown = setting.name.substr(0, kLongestShown);
  std::string message = is_command_line ? fmt::format("unknown option '--{}'", shown)
                                        : fmt::format("{}: unknown key '{}'", setting.source.where, shown);
  std::string nearest = options.nearest(setting.name);
  const size_t dot = setting.name.rfind('.');
  if (nearest.empty() && dot != std::string::npos) nearest = options.nearest(setting.name.substr(dot + 1));
  const std::string folded = fold_name(setting.name);
  if (nearest.empty() && folded.starts_with("no_")) nearest = options.nearest(folded.substr(3));
  if (nearest.empty()) {
    return UserError(message, "'--help all' lists every option, '--help WORD' those about a word");
  }
  return UserError(message + fmt::format(". Did you mean '{}{}'?", is_command_line ? "--" : "", nearest));
}

UserError useless_name(const Setting& setting, const std::vector<std::string>& owners, const std::string& here) {
  std::string listed = owners.empty() ? "another command" : owners.front();
  for (size_t i = 1; i < owners.size(); ++i) listed += (i + 1 < owners.size() ? ", " : " and ") + owners[i];
  return UserError(fmt::format("{} is an option of {}; {} has no use for it", named_at(setting), listed, here),
                   fmt::format("remove it; 'megalith {} --help' lists the options of {}", here, here));
}

void NoEffectNotes::add(std::string_view name, std::string_view reason) {
  auto row = std::find_if(names_of_reason_.begin(), names_of_reason_.end(),
                          [&](const auto& entry) { return entry.first == reason; });
  if (row == names_of_reason_.end()) row = names_of_reason_.insert(row, {std::string(reason), {}});
  std::vector<std::string>& names = row->second;
  if (std::find(names.begin(), names.end(), name) == names.end()) names.emplace_back(name);
}

std::vector<std::string> NoEffectNotes::lines() const {
  std::vector<std::string> result;
  for (const auto& [reason, names] : names_of_reason_) {
    result.push_back(fmt::format("{}: {} ({})", label_, join(names, ", "), reason));
  }
  return result;
}

}  // namespace megalith
