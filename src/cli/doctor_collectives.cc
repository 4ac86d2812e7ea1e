// Checks by doctor's ranks together: same kind, same options, working collectives.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <numeric>
#include <utility>

#include "checkpoint/exchange.h"
#include "cli/doctor.h"
#include "cli/session.h"
#include "core/error.h"
#include "core/strings.h"
#include "device/device.h"
#include "launch/back_ends.h"
#include "launch/c10d_group.h"
#include "launch/network.h"
#include "verify/run_terms.h"
#include "verify/shared_folder_check.h"
#include "verify/torch_build.h"

namespace megalith {
namespace {

// Long enough for a slow start, short enough to report a rank that never comes.
constexpr double kMeetingTimeout_s = 120;

void add_finding(Findings& findings, FindingLevel level, std::string check, std::string found,
                 std::string remedy = "") {
  findings.push_back({"collectives", std::move(check), level, std::move(found), std::move(remedy)});
}

// Facts that must be the same on all ranks, one per line: "torch: 2.13.0".
std::string identity(const DoctorCase& one) {
  const BackEnds ends = back_ends();
  std::string text = fmt::format("megalith: {}\ntorch: {}\ndevice: {}\n", kProgramVersion, torch_build().loaded,
                                 one.uses_gpu ? "GPU" : "CPU");
  if (one.uses_gpu) text += fmt::format("NCCL: {}\n", ends.nccl_version);
  for (const auto& option : one.resolved.options->options()) {
    if (!option->is_default() && option->traits().by_rank == ByRank::kSame)
      text += fmt::format("{}: {}\n", option->name(), option->text());
  }
  return text;
}

std::map<std::string, std::string> lines_by_key(const std::string& text) {
  std::map<std::string, std::string> values;
  for (size_t start = 0; start < text.size();) {
    const size_t end = std::min(text.find('\n', start), text.size());
    const size_t colon = text.find(": ", start);
    if (colon < end) values[text.substr(start, colon - start)] = text.substr(colon + 2, end - colon - 2);
    start = end + 1;
  }
  return values;
}

// Adds one finding for each key that differs between ranks.
void compare_identities(const std::vector<std::string>& texts, Findings& findings) {
  std::map<std::string, std::map<std::string, std::vector<int>>> ranks_of;  // by key, by value
  std::vector<std::map<std::string, std::string>> of_rank;
  for (const std::string& text : texts) of_rank.push_back(lines_by_key(text));
  for (const auto& values : of_rank) {
    for (const auto& [key, value] : values) ranks_of[key];
  }
  bool is_same = true;
  for (auto& [key, by_value] : ranks_of) {
    for (size_t rank = 0; rank < of_rank.size(); ++rank) {
      const auto found = of_rank[rank].find(key);
      by_value[found == of_rank[rank].end() ? "its default" : found->second].push_back(static_cast<int>(rank));
    }
    if (by_value.size() == 1) continue;
    is_same = false;
    std::vector<std::string> parts;
    for (const auto& [value, ranks] : by_value) {
      parts.push_back(fmt::format("{} on rank {}", value, ranges_text(ranks)));
    }
    add_finding(findings, FindingLevel::kError, "agreement", fmt::format("{}: {}", key, join(parts, ", ")),
                "start all ranks with the same program and the same options");
  }
  if (is_same) {
    add_finding(
        findings, FindingLevel::kOk, "agreement",
        fmt::format("versions and options are the same on {} rank{}", texts.size(), texts.size() == 1 ? "" : "s"));
  }
}

// Findings of the collectives: errors with their ranks, the rest once.
Findings merged(const std::vector<RankFindings>& ranks) {
  Findings all = shared_findings(ranks);
  for (const Finding& finding : ranks.front().findings) {
    const bool is_wrong_somewhere =
        std::any_of(all.begin(), all.end(), [&](const Finding& one) { return one.check == finding.check; });
    if (finding.level < FindingLevel::kWarning && !is_wrong_somewhere) all.push_back(finding);
  }
  return all;
}

std::vector<RankFindings> exchange_findings(Group& world, const std::string& host, const Findings& own) {
  const std::vector<std::string> hosts = gather_texts(world, host, "doctor hosts");
  const std::vector<std::string> texts = gather_texts(world, pack_findings(own), "doctor findings");
  std::vector<RankFindings> ranks;
  for (int rank = 0; rank < world.size(); ++rank) {
    ranks.push_back({rank, hosts[static_cast<size_t>(rank)], unpack_findings(texts[static_cast<size_t>(rank)])});
  }
  return ranks;
}

// Checks that all ranks have the same folder for indices. Collective: ranks without the option only say so.
void check_data_cache(Group& world, const DoctorCase& one, const std::string& host, Findings& findings) {
  const std::string folder = one.resolved.config.data.data_cache_path.value_or("");
  std::optional<SharedFolderProbe> probe;
  if (world.rank() == 0 && !folder.empty()) probe.emplace(folder);
  const std::string left = gather_texts(world, probe ? probe->path() : "", "doctor shared folder").front();
  std::error_code error;
  const bool sees = !left.empty() && std::filesystem::exists(left, error);
  const std::vector<std::string> hosts = gather_texts(world, host, "doctor hosts");
  const std::vector<std::string> seen = gather_texts(world, sees ? "yes" : "no", "doctor shared folder");
  if (left.empty()) return;  // not asked for, or not writable: reported by the disk's check
  std::vector<FolderSight> sights;
  for (int rank = 0; rank < world.size(); ++rank) {
    const auto i = static_cast<size_t>(rank);
    sights.push_back({rank, hosts[i], seen[i] == "yes"});
  }
  findings.push_back(check_shared_folder("data_cache_path", folder, sights));
}

// Errors that ranks found on their machines are failures of their nodes.
void add_failures(const std::vector<RankFindings>& ranks, std::vector<DoctorNode>& nodes) {
  for (DoctorNode& node : nodes) {
    for (const RankFindings& rank : ranks) {
      if (rank.host != node.host) continue;
      for (const Finding& one : rank.findings) {
        const std::string failure = fmt::format("{}, {}: {}", one.topic, one.check, one.found);
        const bool is_new = std::find(node.failures.begin(), node.failures.end(), failure) == node.failures.end();
        if (one.level == FindingLevel::kError && is_new) node.failures.push_back(failure);
      }
    }
  }
}

void run_checks(Group& world, const GroupFactory& factory, const DoctorCase& one, const Findings& own,
                WorldReport& report) {
  const std::string host = this_host().host_name;
  const std::vector<RankFindings> own_machines = exchange_findings(world, host, own);
  report.shared = shared_findings(own_machines);
  compare_identities(gather_texts(world, identity(one), "doctor identity"), report.findings);
  check_data_cache(world, one, host, report.findings);
  const std::vector<RankFindings> of_collectives = exchange_findings(world, host, check_collectives(world));
  append(report.findings, merged(of_collectives));
  check_node_groups(world, factory, one, report);
  add_failures(own_machines, report.nodes);
  add_failures(of_collectives, report.nodes);
  if (one.options.largest_message_mib > 0) {
    report.bandwidth = measure_collectives(world, bandwidth_sizes(one.options.largest_message_mib << 20));
  }
}

double meeting_timeout_s(const Resolved& resolved) {
  if (!resolved.options->of(resolved.config.parallel.distributed_timeout_minutes).is_set()) return kMeetingTimeout_s;
  return resolved.config.parallel.distributed_timeout_minutes * 60;
}

}  // namespace

WorldReport check_world(const DoctorCase& one, const Findings& own,
                        const std::function<void(const std::string& message)>& on_hang) {
  WorldReport report;
  const auto add_failure = [&](const std::string& message, const std::string& remedy) {
    add_finding(report.findings, FindingLevel::kError, "world", message, remedy);
  };
  try {
    const RuntimeOptions& runtime = one.resolved.config.runtime;
    const at::Device device = select_device(runtime.device.device, one.launch.local_rank);
    const MeetingTerms meeting{.terms = back_end_terms(device), .secret = store_secret(one.resolved.config.parallel)};
    C10dWorld world(one.launch, device, meeting_timeout_s(one.resolved), meeting, on_hang);
    std::vector<int> ranks(static_cast<size_t>(one.launch.world_size));
    std::iota(ranks.begin(), ranks.end(), 0);
    const std::shared_ptr<Group> group = world.factory()(ranks, "world");
    try {
      run_checks(*group, world.factory(), one, own, report);
      for (const std::string& note : world.notes()) add_finding(report.findings, FindingLevel::kNote, "network", note);
      world.finish();
      report.is_complete = true;
    } catch (const CommunicationError&) {
      throw;
    } catch (const std::exception& error) {
      world.report_failure(error.what());
      throw;
    }
  } catch (const UserError& error) {
    add_failure(error.message(), error.remedy());
  } catch (const CommunicationError& error) {
    // The remedy is on the lines below the first.
    const std::string text = error.what();
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string remedy = join(split_words(text.substr(end)), " ");
    add_failure(text.substr(0, end), remedy.empty() ? "see what the other ranks say" : remedy);
  }
  return report;
}

}  // namespace megalith
