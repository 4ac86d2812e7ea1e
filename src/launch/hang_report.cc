#include "launch/hang_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "core/json.h"
#include "core/strings.h"

namespace megalith {
namespace {

constexpr std::string_view kStatusWhere = "the state of a rank";

Json json_of(const CollectiveStatus& collective) {
  return {{"text", collective.text},         {"content", collective.content}, {"group", collective.group},
          {"sequence", collective.sequence}, {"ordinal", collective.ordinal}, {"ranks", collective.ranks},
          {"age_s", collective.age_s}};
}

std::optional<CollectiveStatus> collective_from(const Json& status, std::string_view key) {
  const Json* json = find_member(status, key, kStatusWhere);
  if (json == nullptr) return std::nullopt;
  CollectiveStatus collective;
  collective.text = json_get<std::string>(*json, "text", kStatusWhere);
  collective.content = json_get<std::string>(*json, "content", kStatusWhere);
  collective.group = json_get<std::string>(*json, "group", kStatusWhere);
  collective.sequence = json_get<int64_t>(*json, "sequence", kStatusWhere);
  collective.ordinal = json_get<int64_t>(*json, "ordinal", kStatusWhere);
  for (const Json& rank : get_member(*json, "ranks", kStatusWhere)) {
    collective.ranks.push_back(json_as<int>(rank, kStatusWhere));
  }
  collective.age_s = json_get<double>(*json, "age_s", kStatusWhere);
  return collective;
}

bool is_in(const std::vector<int>& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

enum class Part { kIssued, kLate, kOther };

Part part_of(const RankStatus& member, const RankStatus& waiter, const CollectiveStatus& waiting) {
  const std::optional<CollectiveStatus>& own = member.waiting;
  if (waiting.ordinal < 0) {
    // Transfers share no sequence number: a peer exchanging with the waiter counts as arrived.
    return own && own->ordinal < 0 && is_in(own->ranks, waiter.rank) ? Part::kIssued : Part::kLate;
  }
  const auto issued = member.issued.find(waiting.group);
  if (issued == member.issued.end() || issued->second <= waiting.ordinal) return Part::kLate;
  const bool is_same_place = own && own->group == waiting.group && own->ordinal == waiting.ordinal;
  return is_same_place && own->content != waiting.content ? Part::kOther : Part::kIssued;
}

std::string idle_text(const RankStatus& status) {
  return fmt::format("in no collective for {} (computing, reading or writing)", format_duration(status.quiet_s));
}

// Without times, to group ranks.
std::string state_key(const RankStatus& status) {
  const auto key = [](const std::optional<CollectiveStatus>& collective) {
    return collective ? fmt::format("{} {} {}", collective->text, collective->sequence, collective->group) : "";
  };
  return key(status.waiting) + "\n" + key(status.last_finished);
}

}  // namespace

std::string to_json(const RankStatus& status) {
  Json json = {{"rank", status.rank},
               {"num_under_way", status.num_under_way},
               {"quiet_s", status.quiet_s},
               {"issued", status.issued}};
  if (status.waiting) json["waiting"] = json_of(*status.waiting);
  if (status.last_finished) json["last_finished"] = json_of(*status.last_finished);
  return dump_json(json);
}

RankStatus rank_status_from_json(std::string_view text) {
  const Json json = parse_json(text, kStatusWhere);
  RankStatus status;
  status.rank = json_get<int>(json, "rank", kStatusWhere);
  status.waiting = collective_from(json, "waiting");
  status.last_finished = collective_from(json, "last_finished");
  status.num_under_way = json_get<int64_t>(json, "num_under_way", kStatusWhere);
  status.quiet_s = json_get<double>(json, "quiet_s", kStatusWhere);
  for (const auto& [group, count] : get_member(json, "issued", kStatusWhere).items()) {
    status.issued[group] = json_as<int64_t>(count, kStatusWhere);
  }
  return status;
}

std::string gone_text(const std::vector<int>& ranks) {
  return fmt::format("{} {} {} gone: {} ended without leaving a reason (killed, or out of memory?)",
                     ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "), ranks.size() == 1 ? "is" : "are",
                     ranks.size() == 1 ? "it" : "they");
}

std::string gone_with_store_text(const std::vector<int>& ended) {
  std::vector<int> others = ended;
  std::erase(others, 0);
  if (others.empty()) return gone_text({0});
  return fmt::format("{}; {} {} ended too", gone_text({0}), ranks_text(others), others.size() == 1 ? "has" : "have");
}

std::string ranks_text(const std::vector<int>& ranks) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    // Two neighbours read better apart.
    if (end - i > 2) {
      parts.push_back(fmt::format("{}-{}", ranks[i], ranks[end - 1]));
    } else {
      for (size_t k = i; k < end; ++k) parts.push_back(std::to_string(ranks[k]));
    }
    i = end;
  }
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(parts, ", "));
}

std::string collective_text(const CollectiveStatus& collective) {
  return fmt::format("{} (#{})", collective.text, collective.sequence);
}

std::string state_text(const RankStatus& status) {
  std::string text = idle_text(status);
  if (status.waiting) {
    text =
        fmt::format("waiting in {} for {}", collective_text(*status.waiting), format_duration(status.waiting->age_s));
  }
  if (!status.last_finished) return text + "; has finished none";
  return fmt::format("{}; last finished {}, {} ago", text, collective_text(*status.last_finished),
                     format_duration(status.last_finished->age_s));
}

std::vector<std::string> find_fault(const std::vector<RankStatus>& answered, const std::vector<int>& silent) {
  std::vector<std::string> findings;
  if (!silent.empty()) {
    findings.push_back(fmt::format("{} {} not answer: stopped, swapped out, ended, or {} gone", ranks_text(silent),
                                   silent.size() == 1 ? "does" : "do",
                                   silent.size() == 1 ? "its host is" : "their hosts are"));
  }
  std::map<int, const RankStatus*> by_rank;
  for (const RankStatus& status : answered) by_rank[status.rank] = &status;

  // Missing ranks by what they wait in. Arrived transfers are not counted, so an idle peer is only a guess.
  std::map<std::string, std::set<int>> idle, idle_peers, blocked;
  std::set<std::string> mismatches;
  for (const RankStatus& waiter : answered) {
    if (!waiter.waiting) continue;
    for (const int rank : waiter.waiting->ranks) {
      const auto member = by_rank.find(rank);
      if (rank == waiter.rank || member == by_rank.end()) continue;
      const Part part = part_of(*member->second, waiter, *waiter.waiting);
      if (part == Part::kOther) {
        const int first = std::min(rank, waiter.rank), second = std::max(rank, waiter.rank);
        mismatches.insert(fmt::format("rank {} issued {} where rank {} issued {}", first,
                                      collective_text(*by_rank[first]->waiting), second,
                                      collective_text(*by_rank[second]->waiting)));
      } else if (part == Part::kLate) {
        auto& missing = member->second->waiting ? blocked : waiter.waiting->ordinal < 0 ? idle_peers : idle;
        missing[collective_text(*waiter.waiting)].insert(rank);
      }
    }
  }
  const auto add_idle = [&](const std::map<std::string, std::set<int>>& missing, std::string_view one,
                            std::string_view several) {
    for (const auto& [collective, ranks] : missing) {
      const bool is_one = ranks.size() == 1;
      findings.push_back(fmt::format("{} {} {}{}", ranks_text({ranks.begin(), ranks.end()}), is_one ? one : several,
                                     collective, is_one ? ": " + idle_text(*by_rank[*ranks.begin()]) : ""));
    }
  };
  add_idle(idle, "has not issued", "have not issued");
  findings.insert(findings.end(), mismatches.begin(), mismatches.end());
  if (findings.empty()) add_idle(idle_peers, "does not wait in", "do not wait in");
  if (!findings.empty()) return findings;
  for (const auto& [collective, ranks] : blocked) {
    for (const int rank : ranks) {
      findings.push_back(
          fmt::format("rank {} waits in {} instead of {}", rank, collective_text(*by_rank[rank]->waiting), collective));
    }
  }
  if (findings.empty()) {
    findings.push_back("every rank has issued what the others wait in: a network, a device or a driver is stuck");
  }
  return findings;
}

std::vector<std::string> rank_lines(const std::vector<RankStatus>& answered, const std::vector<int>& silent) {
  struct Line {
    RankStatus status;  // the first rank's, with the longest times
    std::vector<int> ranks;
  };
  std::map<std::string, Line> by_state;
  for (const RankStatus& status : answered) {
    Line& line = by_state.try_emplace(state_key(status), Line{status, {}}).first->second;
    line.ranks.push_back(status.rank);
    line.status.quiet_s = std::max(line.status.quiet_s, status.quiet_s);
    // All of a group wait, or none.
    if (status.waiting) line.status.waiting->age_s = std::max(line.status.waiting->age_s, status.waiting->age_s);
  }
  std::map<int, std::string> by_first;
  for (auto& [key, line] : by_state) {
    std::sort(line.ranks.begin(), line.ranks.end());
    by_first[line.ranks.front()] = fmt::format("{}: {}", ranks_text(line.ranks), state_text(line.status));
  }
  if (!silent.empty()) by_first[silent.front()] = fmt::format("{}: no answer", ranks_text(silent));
  std::vector<std::string> lines;
  for (const auto& [rank, line] : by_first) lines.push_back(line);
  return lines;
}

}  // namespace megalith
