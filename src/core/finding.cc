#include "core/finding.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"
#include "core/strings.h"

namespace megalith {
namespace {

constexpr FindingLevel kFindingLevels[] = {FindingLevel::kOk, FindingLevel::kNote, FindingLevel::kWarning,
                                           FindingLevel::kError};
// More are counted, not named.
constexpr size_t kMostHosts = 8;

FindingLevel level_named(const std::string& name) {
  for (const FindingLevel level : kFindingLevels) {
    if (name_of(level) == name) return level;
  }
  throw InternalError("no level of a finding is named " + name);
}

std::vector<std::string> topics_of(std::span<const Finding> findings) {
  std::vector<std::string> topics;
  for (const Finding& finding : findings) {
    if (std::find(topics.begin(), topics.end(), finding.topic) == topics.end()) topics.push_back(finding.topic);
  }
  return topics;
}

size_t columns_of(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

OrderedJson json_of(const Finding& finding) {
  OrderedJson object;
  object["check"] = finding.check;
  object["level"] = name_of(finding.level);
  object["found"] = finding.found;
  object["remedy"] = finding.remedy;
  return object;
}

std::string who_text(const std::vector<const RankFindings*>& who, size_t num_ranks) {
  std::vector<std::pair<std::string, std::vector<int>>> hosts;
  for (const RankFindings* one : who) {
    const auto found =
        std::find_if(hosts.begin(), hosts.end(), [&](const auto& host) { return host.first == one->host; });
    if (found == hosts.end()) {
      hosts.push_back({one->host, {one->rank}});
    } else {
      found->second.push_back(one->rank);
    }
  }
  std::vector<std::string> parts;
  for (size_t i = 0; i < std::min(hosts.size(), kMostHosts); ++i) {
    parts.push_back(fmt::format("host {} rank {}", hosts[i].first, ranges_text(hosts[i].second)));
  }
  if (hosts.size() > kMostHosts) parts.push_back(fmt::format("and {} more hosts", hosts.size() - kMostHosts));
  return fmt::format("({} of {} ranks: {})", who.size(), num_ranks, join(parts, ", "));
}

}  // namespace

std::string_view name_of(FindingLevel level) {
  switch (level) {
    case FindingLevel::kOk:
      return "ok";
    case FindingLevel::kNote:
      return "note";
    case FindingLevel::kWarning:
      return "warning";
    case FindingLevel::kError:
      return "error";
  }
  return "?";
}

void append(Findings& all, Findings more) {
  all.insert(all.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

int64_t count_level(std::span<const Finding> findings, FindingLevel level) {
  return std::count_if(findings.begin(), findings.end(), [&](const Finding& one) { return one.level == level; });
}

std::string counts_text(std::span<const Finding> findings) {
  std::vector<std::string> parts;
  for (const FindingLevel level : {FindingLevel::kError, FindingLevel::kWarning, FindingLevel::kNote}) {
    const int64_t count = count_level(findings, level);
    const std::string number = count == 0 ? "no" : std::to_string(count);
    parts.push_back(fmt::format("{} {}{}", number, name_of(level), count == 1 ? "" : "s"));
  }
  return join(parts, ", ");
}

std::string findings_text(std::span<const Finding> findings) {
  size_t width = 0;
  for (const Finding& finding : findings) width = std::max(width, columns_of(finding.check));
  std::string text;
  for (const std::string& topic : topics_of(findings)) {
    text += topic + "\n";
    for (const Finding& finding : findings) {
      if (finding.topic != topic) continue;
      const std::string padding(width - columns_of(finding.check), ' ');
      text += fmt::format("  {:<7}  {}{}  {}\n", name_of(finding.level), finding.check, padding, finding.found);
      if (!finding.remedy.empty()) text += fmt::format("  {:<{}}  -> {}\n", "", 9 + width, finding.remedy);
    }
  }
  return text + counts_text(findings) + "\n";
}

OrderedJson findings_json(std::span<const Finding> findings) {
  OrderedJson object;
  FindingLevel worst = FindingLevel::kOk;
  for (const Finding& finding : findings) worst = std::max(worst, finding.level);
  object["level"] = name_of(worst);
  for (const FindingLevel level : {FindingLevel::kError, FindingLevel::kWarning, FindingLevel::kNote}) {
    object[fmt::format("num_{}s", name_of(level))] = count_level(findings, level);
  }
  object["topics"] = OrderedJson::object();
  for (const Finding& finding : findings) object["topics"][finding.topic].push_back(json_of(finding));
  return object;
}

std::string pack_findings(std::span<const Finding> findings) {
  OrderedJson list = OrderedJson::array();
  for (const Finding& finding : findings) {
    list.push_back(json_of(finding));
    list.back()["topic"] = finding.topic;
  }
  return dump_json(list);
}

Findings unpack_findings(std::string_view text) {
  Findings findings;
  try {
    for (const Json& object : parse_json(text, "findings")) {
      const auto word = [&](const char* key) { return json_get<std::string>(object, key, "a finding"); };
      findings.push_back({word("topic"), word("check"), level_named(word("level")), word("found"), word("remedy")});
    }
  } catch (const UserError& error) {
    throw InternalError(fmt::format("a rank's findings cannot be read: {}", error.what()));
  }
  return findings;
}

Findings shared_findings(std::span<const RankFindings> ranks) {
  Findings shared;
  std::vector<std::vector<const RankFindings*>> who;
  for (const RankFindings& rank : ranks) {
    for (const Finding& finding : rank.findings) {
      if (finding.level < FindingLevel::kWarning) continue;
      const auto is_same = [&](const Finding& one) {
        return one.topic == finding.topic && one.check == finding.check && one.level == finding.level;
      };
      const auto place = std::find_if(shared.begin(), shared.end(), is_same);
      const auto index = static_cast<size_t>(place - shared.begin());
      if (place == shared.end()) {
        shared.push_back(finding);
        who.emplace_back();
      }
      // One rank may repeat a check.
      if (who[index].empty() || who[index].back() != &rank) who[index].push_back(&rank);
    }
  }
  for (size_t i = 0; i < shared.size(); ++i) shared[i].found += " " + who_text(who[i], ranks.size());
  return shared;
}

std::string ranges_text(const std::vector<int>& numbers) {
  std::vector<std::string> parts;
  for (size_t first = 0; first < numbers.size();) {
    size_t last = first;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    parts.push_back(first == last ? fmt::format("{}", numbers[first])
                                  : fmt::format("{}-{}", numbers[first], numbers[last]));
    first = last + 1;
  }
  return join(parts, ", ");
}

}  // namespace megalith
