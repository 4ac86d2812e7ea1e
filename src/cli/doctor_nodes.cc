// doctor --node_groups and --report_dir: collectives between groups of nodes; lists of the nodes that pass and fail.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "checkpoint/exchange.h"
#include "cli/doctor.h"
#include "config/option_value.h"
#include "core/file.h"
#include "launch/network.h"

namespace megalith {
namespace {

// A group slower than this share of the fastest of its kind fails its nodes.
constexpr double kSlowShare = 0.5;

// Ranks of each node: a node begins with each rank that is its machine's first. The others belong to the last node of
// their host, as launchers may deal ranks out to machines in turn.
std::vector<std::vector<int>> ranks_of_nodes(const std::vector<std::string>& local_ranks,
                                             const std::vector<std::string>& hosts) {
  std::vector<std::vector<int>> nodes;
  std::map<std::string, size_t> last_of_host;
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    if (local_ranks[rank] == "0" || !last_of_host.contains(hosts[rank])) {
      last_of_host[hosts[rank]] = nodes.size();
      nodes.emplace_back();
    }
    nodes[last_of_host[hosts[rank]]].push_back(static_cast<int>(rank));
  }
  return nodes;
}

struct GroupPlan {
  std::string what;               // "2 nodes", "ring of 4 nodes"; no two plans have the same
  std::vector<int> nodes, ranks;  // of this rank's group, ascending
  std::vector<CollectiveKind> kinds;
};

// This rank's groups: for each size its node's chunk of that many nodes, and a ring over all nodes by one rank of each.
// A rest of fewer nodes is no group.
std::vector<GroupPlan> plan_groups(const std::vector<std::vector<int>>& nodes, const std::vector<std::string>& sizes,
                                   int own_rank) {
  const int num_nodes = static_cast<int>(nodes.size());
  const auto own = std::ranges::find_if(
      nodes, [&](const std::vector<int>& node) { return std::ranges::find(node, own_rank) != node.end(); });
  const int own_node = static_cast<int>(own - nodes.begin());
  std::vector<GroupPlan> plans;
  for (const std::string& text : sizes) {
    const int64_t asked = text == "all" ? num_nodes : *parse_integer(text);
    const std::string what = fmt::format("{} nodes", asked);
    const bool is_planned = std::ranges::any_of(plans, [&](const GroupPlan& one) { return one.what == what; });
    if (asked < 2 || asked > num_nodes || is_planned) continue;
    const int size = static_cast<int>(asked);
    GroupPlan plan{.what = what,
                   .nodes = {},
                   .ranks = {},
                   .kinds = {CollectiveKind::kAllReduce, CollectiveKind::kAllToAll}};
    const int first = own_node / size * size;
    for (int node = first; node < first + size && first + size <= num_nodes; ++node) {
      const std::vector<int>& ranks = nodes[static_cast<size_t>(node)];
      plan.nodes.push_back(node);
      plan.ranks.insert(plan.ranks.end(), ranks.begin(), ranks.end());
    }
    std::ranges::sort(plan.ranks);
    plans.push_back(std::move(plan));
  }
  if (num_nodes < 2 || sizes.empty()) return plans;
  const auto place = static_cast<size_t>(std::ranges::find(*own, own_rank) - own->begin());
  GroupPlan ring{.what = fmt::format("ring of {} nodes", num_nodes),
                 .nodes = std::vector<int>(nodes.size()),
                 .ranks = {},
                 .kinds = {CollectiveKind::kSendReceive}};
  std::iota(ring.nodes.begin(), ring.nodes.end(), 0);
  for (const std::vector<int>& node : nodes) {
    if (place < node.size()) ring.ranks.push_back(node[place]);
  }
  std::ranges::sort(ring.ranks);
  plans.push_back(std::move(ring));
  return plans;
}

}  // namespace

void check_node_groups(Group& world, const GroupFactory& factory, const DoctorCase& one, WorldReport& report) {
  const std::string own_host = fmt::format("{} {}", one.launch.local_rank, this_host().host_name);
  const std::vector<std::string> places = gather_texts(world, own_host, "doctor nodes");
  std::vector<std::string> local_ranks, hosts;
  for (const std::string& place : places) {
    local_ranks.push_back(place.substr(0, place.find(' ')));
    hosts.push_back(place.substr(place.find(' ') + 1));
  }
  const std::vector<std::vector<int>> nodes = ranks_of_nodes(local_ranks, hosts);
  for (const std::vector<int>& node : nodes) report.nodes.push_back({hosts[static_cast<size_t>(node.front())], {}});
  for (const std::string& size : one.options.node_groups) {
    if (size == "all" || *parse_integer(size) <= std::ssize(nodes)) continue;
    report.findings.push_back({"collectives", "node_groups", FindingLevel::kNote,
                               fmt::format("no group of {} machines: there {} {}", size,
                                           nodes.size() == 1 ? "is" : "are", nodes.size()),
                               ""});
  }
  const int64_t bytes[] = {one.options.largest_message_mib << 20};
  for (const GroupPlan& plan : plan_groups(nodes, one.options.node_groups, world.rank())) {
    std::vector<Bandwidth> rows;
    if (plan.ranks.size() > 1) {
      const std::shared_ptr<Group> group = factory(plan.ranks, plan.what);
      rows = measure_collectives(*group, bytes, {.kinds = plan.kinds});
    }
    for (size_t kind = 0; kind < plan.kinds.size(); ++kind) {
      const std::string own_rate =
          rows.empty() ? "" : fmt::format("{} {}", plan.ranks.front(), rows[kind].bus_bytes_per_s);
      const std::vector<std::string> rates = gather_texts(world, own_rate, "doctor node rates");
      std::map<int, double> by_group;  // by the first rank
      for (const std::string& text : rates) {
        if (text.empty()) continue;
        by_group[static_cast<int>(*parse_integer(text.substr(0, text.find(' '))))] =
            *parse_number(text.substr(text.find(' ') + 1));
      }
      double best = 0;
      for (const auto& [first, rate] : by_group) best = std::max(best, rate);
      for (const auto& [first, rate] : by_group) {
        const bool is_slow = rate < kSlowShare * best;
        const std::string check = fmt::format("{}, {}", name_of(plan.kinds[kind]), plan.what);
        const std::string found =
            fmt::format("{:.3g} GB/s from rank {} on ({})", rate / 1e9, first, hosts[static_cast<size_t>(first)]);
        report.findings.push_back({"collectives", check, is_slow ? FindingLevel::kError : FindingLevel::kOk, found,
                                   is_slow ? fmt::format("the fastest group has {:.3g} GB/s: look at its nodes' cards "
                                                         "and links",
                                                         best / 1e9)
                                           : ""});
        // A group of all nodes blames no node.
        if (!is_slow || plan.nodes.size() == nodes.size()) continue;
        for (size_t node = 0; node < nodes.size(); ++node) {
          if (std::ranges::find(nodes[node], first) == nodes[node].end()) continue;
          for (size_t i = node; i < node + plan.nodes.size(); ++i) {
            report.nodes[i].failures.push_back(check + ": " + found);
          }
        }
      }
    }
  }
}

void write_node_report(const std::string& folder, const std::vector<DoctorNode>& nodes, const std::string& text) {
  make_directories(folder);
  std::string passing, failing, page = "# Report of megalith doctor\n\n";
  for (const DoctorNode& node : nodes) {
    (node.failures.empty() ? passing : failing) += node.host + "\n";
    page += fmt::format("* {}: {}\n", node.host, node.failures.empty() ? "passes" : "fails");
    for (const std::string& failure : node.failures) page += fmt::format("  * {}\n", failure);
  }
  page += "\n```text\n" + text + "```\n";
  write_file_atomic(folder + "/report.md", page);
  write_file_atomic(folder + "/passing_nodes.txt", passing);
  write_file_atomic(folder + "/failing_nodes.txt", failing);
}

}  // namespace megalith
