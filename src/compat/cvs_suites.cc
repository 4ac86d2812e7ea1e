#include "compat/cvs_suites.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <tuple>

#include "compat/cvs_patterns.h"
#include "config/option_value.h"
#include "core/error.h"
#include "core/input_file.h"
#include "core/strings.h"

namespace megalith {
namespace {

// CVS passes a bandwidth, or a time, that is lower than it should be by this share.
constexpr double kTolerance = 0.95;
// Findings of one report's lines.
constexpr int kMostLines = 20;
constexpr std::string_view kRcclMark = "# Avg bus bandwidth", kAgfhcMark = "code agfhc_success";

// An object, or a list of objects: what a program printed may begin with "[host:123]".
bool is_json(std::string_view text) {
  std::string_view start = trim(text);
  if (start.starts_with('[')) start = trim(start.substr(1));
  return start.starts_with('{');
}

double number_in(const Json& value, const std::string& where) {
  if (value.is_number()) return json_as<double>(value, where);
  const std::string* text = try_text(value);
  const auto number = text == nullptr ? std::nullopt : parse_number(*text);
  if (number) return *number;
  throw UserError(fmt::format("{} is {}, expected a number", where, dump_json(value).substr(0, 40)), "");
}

// Members that are no notes.
template <typename Take>
void each_member(const Json& object, const Take& take) {
  for (const auto& [key, value] : object.items()) {
    if (!key.starts_with("_")) take(key, value);
  }
}

class SuiteJudge {
 public:
  SuiteJudge(const Json& object, std::string file) : object_(object), file_(std::move(file)) {}
  virtual ~SuiteJudge() = default;
  SuiteJudge(const SuiteJudge&) = delete;
  SuiteJudge& operator=(const SuiteJudge&) = delete;

  virtual void read(const std::string& report, const std::string& text) = 0;
  virtual void end() {}

  CvsFindings findings;

 protected:
  void add(const std::string& topic, const std::string& check, bool is_good, const std::string& found,
           const std::string& expected = "", const std::string& remedy = "") {
    findings.push_back({topic, check, is_good ? FindingLevel::kOk : FindingLevel::kError, found, expected,
                        is_good ? "" : remedy});
  }
  void note(const std::string& topic, const std::string& check, const std::string& found) {
    findings.push_back({topic, check, FindingLevel::kNote, found, "", ""});
  }

  // Lines with a phrase by which CVS fails such a report.
  void scan(const std::string& report, const std::string& text, std::string_view kind, bool with_case) {
    auto phrases = cvs_patterns::phrases_of(kind);
    if (!with_case) {
      for (auto& row : phrases) row.phrase = lower_case(row.phrase);
    }
    std::istringstream lines(text);
    int64_t number = 0, num_found = 0;
    for (std::string line; num_found < kMostLines && std::getline(lines, line);) {
      ++number;
      const auto* row = cvs_patterns::first_phrase(phrases, with_case ? line : lower_case(line));
      if (row == nullptr) continue;
      ++num_found;
      add("results", "log", false, fmt::format("{}:{}: {}", report, number, trim(line.substr(0, 200))),
          fmt::format("no '{}'", row->phrase), "the test failed: its lines around this one say why");
    }
    if (num_found == 0) add("results", "log", true, report + ": no phrase of a failure");
  }

  bool says_true(const Json& object, const char* key, bool otherwise) const {
    const Json* value = find_member(object, key, file_);
    if (value == nullptr) return otherwise;
    return value->is_boolean() ? json_as<bool>(*value, file_)
                               : lower_case(json_as<std::string>(*value, file_)).find("true") != std::string::npos;
  }

  const Json& object_;
  const std::string file_;
};

// "all_reduce_perf", "AllReduce" and "AlltoAll" without what they differ in.
std::string collective(std::string_view name) {
  std::string folded = lower_case(name);
  if (folded.ends_with("_perf")) folded.resize(folded.size() - sizeof("_perf") + 1);
  std::erase_if(folded, [](char c) { return c == '_' || c == '-'; });
  return folded;
}

class RcclJudge : public SuiteJudge {
 public:
  using SuiteJudge::SuiteJudge;

  void read(const std::string& report, const std::string& text) override {
    if (!is_json(text)) {
      scan(report, text, "rccl_failure", true);
      add("results", "complete", text.find(kRcclMark) != std::string::npos, report, std::string(kRcclMark),
          "rccl-tests did not come to its end");
      return;
    }
    const Json rows = parse_json(text, report);
    if (!rows.is_array() || rows.empty()) {
      throw UserError(report + " is no report of rccl-tests", "give the file that -x or -X named, with -Z json");
    }
    for (const Json& row : rows) read_row(report, row);
  }

  void end() override {
    const Json& cvs = params();
    const bool bus = says_true(cvs, "verify_bus_bw", false);
    if (!bus && !means_.empty()) note("performance", "bus bandwidth", "not judged: verify_bus_bw is False");
    const Means* before = nullptr;
    for (const auto& [key, means] : means_) {
      const auto& [test, type, in_place, size] = key;
      if (in_place == (test.find("alltoall") != std::string::npos)) continue;
      if (before != nullptr && (before->test != test || before->type != type)) before = nullptr;
      const std::map<int64_t, double> expected = expected_of(test, type, means.ranks);
      const auto bound = expected.find(size);
      const std::string check = fmt::format("{} {} of {} bytes", test, type, size);
      if (bound == expected.end()) {
        note("performance", check, fmt::format("{} GB/s, not judged: no threshold", cvs_number(means.bus())));
        continue;
      }
      if (bus) {
        add("performance", check, means.bus() >= kTolerance * bound->second,
            fmt::format("{} GB/s", cvs_number(means.bus())),
            fmt::format("at least {} GB/s less 5 %", cvs_number(bound->second)),
            "look at cards, cables and RCCL's log");
      } else {
        note("performance", check, fmt::format("{} GB/s", cvs_number(means.bus())));
      }
      if (before != nullptr) judge_dips(cvs, check, *before, means);
      before = &means;
    }
  }

 private:
  struct Means {
    std::string test, type;
    double bus_sum = 0, time_sum = 0;
    int64_t count = 0, ranks = 0, size = 0;
    double bus() const { return bus_sum / static_cast<double>(count); }
    double time() const { return time_sum / static_cast<double>(count); }
  };

  const Json& params() const {
    static const Json none = Json::object();
    const Json* found = find_member(object_, "cvs_params", file_);
    return found == nullptr ? none : *found;
  }

  void read_row(const std::string& report, const Json& row) {
    const auto value = [&](const char* plain, const char* mean) -> double {
      return number_in(get_member(row, row.contains(plain) ? plain : mean, report), report + ": " + plain);
    };
    const std::string name = json_get<std::string>(row, row.contains("name") ? "name" : "collective", report);
    const std::string type = json_get<std::string>(row, "type", report);
    const int64_t size = json_get<int64_t>(row, "size", report);
    const double bus = value("busBw", "busBw_mean"), time = value("time", "time_mean");
    const std::string what = fmt::format("{} {} of {} bytes", collective(name), type, size);
    if (!std::isfinite(bus) || !std::isfinite(time) || bus < 0 || time < 0) {
      add("results", what, false, fmt::format("busBw {}, time {}", bus, time), "numbers of at least 0");
      return;
    }
    if (const Json* wrong = find_member(row, "wrong", report)) {
      const auto count = try_whole_number(*wrong);  // "N/A" if nothing was checked
      if (count && *count != 0) {
        add("results", what, false, fmt::format("{} wrong elements", *count), "0", "the data were corrupted");
      }
    }
    const int64_t ranks = json_get_or<int64_t>(row, "ranks", 0, report),
                  nodes = json_get_or<int64_t>(row, "nodes", 0, report),
                  per_node = json_get_or<int64_t>(row, "ranksPerNode", 0, report);
    if (nodes > 0 && per_node > 0 && ranks != nodes * per_node) {
      add("results", what, false, fmt::format("{} ranks", ranks), fmt::format("{} x {}", nodes, per_node));
    }
    Means& means = means_[{collective(name), type, json_get<int64_t>(row, "inPlace", report) == 1, size}];
    means.test = collective(name);
    means.type = type;
    means.size = size;
    means.ranks = ranks;
    means.bus_sum += bus;
    means.time_sum += time;
    ++means.count;
  }

  // By size. {"bus_bw": {size: GB/s}} or {size: {"bus_bw": GB/s}} under the test's name in rccl.results or
  // cvs_params.results, there also under NIC and test-types-ranks: "all_reduce_perf-float_half-16".
  std::map<int64_t, double> expected_of(const std::string& test, const std::string& type, int64_t ranks) const {
    std::map<int64_t, double> expected;
    const auto take = [&](const std::string& key, const Json& sizes) {
      const size_t dash = key.find('-'), last_dash = key.rfind('-');
      if (collective(key.substr(0, dash)) != test) return false;
      if (dash != std::string::npos && ranks > 0 && !key.ends_with(fmt::format("-{}", ranks))) return false;
      if (dash != last_dash) {
        const std::string types = fmt::format("_{}_", key.substr(dash + 1, last_dash - dash - 1));
        if (types.find(fmt::format("_{}_", type)) == std::string::npos) return false;
      }
      const Json& all = sizes.contains("bus_bw") ? sizes["bus_bw"] : sizes;
      each_member(all, [&](const std::string& size, const Json& bound) {
        const auto bytes = parse_integer(size);
        if (!bytes) throw UserError(fmt::format("{}: {} is no size in bytes", file_, size), "");
        const Json& value = bound.is_object() ? get_member(bound, "bus_bw", file_) : bound;
        expected[*bytes] = number_in(value, file_ + ": " + key);
      });
      return true;
    };
    const Json* own = find_member(params(), "results", file_);
    for (const Json* results : {find_member(object_, "results", file_), own}) {
      if (results == nullptr) continue;
      each_member(*results, [&](const std::string& key, const Json& value) {
        if (take(key, value) || key != nic()) return;
        each_member(value, take);
      });
    }
    return expected;
  }

  std::string nic() const {
    const std::string model = lower_case(json_get_or<std::string>(params(), "nic_model", "ainic", file_));
    const auto has = [&](std::initializer_list<const char*> words) {
      return std::any_of(words.begin(), words.end(),
                         [&](const char* word) { return model.find(word) != std::string::npos; });
    };
    if (has({"ainic", "pensando", "amd"})) return "ainic";
    if (has({"broadcom", "thor", "bnxt"})) return "thor";
    return has({"mellanox", "connectx", "cx", "nvidia"}) ? "connectx" : "ainic";
  }

  void judge_dips(const Json& cvs, const std::string& check, const Means& before, const Means& now) {
    if (says_true(cvs, "verify_bw_dip", true) && now.bus() < kTolerance * before.bus()) {
      add("performance", check + ", dip", false, fmt::format("{} GB/s", cvs_number(now.bus())),
          fmt::format("no less than {} bytes, {} GB/s", before.size, cvs_number(before.bus())),
          "a larger message should not be slower");
    }
    if (says_true(cvs, "verify_lat_dip", true) && now.time() < kTolerance * before.time()) {
      add("performance", check + ", time", false, fmt::format("{} us", cvs_number(now.time())),
          fmt::format("no less than {} bytes, {} us", before.size, cvs_number(before.time())),
          "a larger message cannot take less time: measure again");
    }
  }

  std::map<std::tuple<std::string, std::string, bool, int64_t>, Means> means_;
};

class IbJudge : public SuiteJudge {
 public:
  using SuiteJudge::SuiteJudge;

  void read(const std::string& report, const std::string& text) override {
    const std::string test = test_of(report, text);
    scan(report, text, "ib_failure", false);
    add("results", "GPU buffer", lower_case(text).find("bytes of gpu buffer") != std::string::npos, report,
        "a line with 'bytes of GPU buffer'", "the test did not use GPU memory: give --use_rocm");
    const bool is_latency = test.ends_with("_lat");
    std::string qps = "1";
    if (const size_t at = text.find("Number of qps"); at != std::string::npos) {
      std::istringstream(text.substr(text.find(':', at) + 1)) >> qps;
    }
    bool has_row = false;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      const std::vector<double> row = numbers_of(line);
      if (row.size() != (is_latency ? 9u : 5u)) continue;
      has_row = true;
      // Bandwidth: bytes, iterations, peak, average, rate. Latency: bytes, iterations, least, most, typical, average.
      judge(test, whole_number_text(row[0]), is_latency ? "" : qps, is_latency ? row[5] : row[3], report);
    }
    add("results", "complete", has_row, report, "a line of results", "the test did not come to its end");
  }

  void end() override {
    const Json* results = find_member(object_, "expected_results", file_);
    if (results == nullptr) return;
    for (const auto& [test, sizes] : results->items()) {
      if (test.starts_with("_") || seen_.contains(test)) continue;
      note("performance", test, "no report is of this test, and the file has thresholds for it");
    }
  }

 private:
  static std::string whole_number_text(double value) { return fmt::format("{:.0f}", value); }

  static std::string test_of(const std::string& report, const std::string& text) {
    const bool is_latency = text.find("Latency Test") != std::string::npos;
    if (is_latency || text.find("BW Test") != std::string::npos) {
      for (const auto& [head, name] : {std::pair{"RDMA_Write", "ib_write"}, std::pair{"RDMA_Read", "ib_read"},
                                       std::pair{"Send", "ib_send"}}) {
        if (text.find(head) != std::string::npos) return fmt::format("{}_{}", name, is_latency ? "lat" : "bw");
      }
    }
    throw UserError(report + " is no report of perftest", "give what ib_write_bw, ib_send_lat and their kind printed");
  }

  static std::vector<double> numbers_of(const std::string& line) {
    std::vector<double> numbers;
    std::istringstream words(line);
    for (std::string word; words >> word;) {
      const auto number = parse_number(word);
      if (!number) return {};
      numbers.push_back(*number);
    }
    return numbers;
  }

  void judge(const std::string& test, const std::string& size, const std::string& qps, double value,
             const std::string& report) {
    seen_.insert(test);
    const bool is_latency = qps.empty();
    const std::string unit = is_latency ? "us" : "Gb/s";
    const std::string check = fmt::format("{} of {} bytes{}", test, size, is_latency ? "" : ", " + qps + " QPs");
    const std::string found = fmt::format("{} {} ({})", cvs_number(value), unit, report);
    const Json* bound = find_member(object_, "expected_results", file_);
    for (const std::string& key : {test, size, qps}) {
      if (bound != nullptr && !key.empty()) bound = find_member(*bound, key, file_ + ": expected_results");
    }
    if (bound == nullptr || !says_true(object_, "verify_bw", true)) {
      note("performance", check, found + (bound == nullptr ? ", not judged: no threshold" : ": verify_bw is False"));
      return;
    }
    const double limit = number_in(*bound, fmt::format("{}: expected_results.{}.{}", file_, test, size));
    add("performance", check, is_latency ? value < limit : value > limit, found,
        fmt::format("{} {} {}", is_latency ? "below" : "above", cvs_number(limit), unit),
        "look at the card, its link and its place beside the GPU");
  }

  std::set<std::string> seen_;
};

class AgfhcJudge : public SuiteJudge {
 public:
  using SuiteJudge::SuiteJudge;

  void read(const std::string& report, const std::string& text) override {
    if (is_json(text)) {
      const int64_t failed = total_failed(parse_json(text, report));
      add("results", "total_failed", failed == 0,
          fmt::format("{}: {}", report, failed >= 0 ? std::to_string(failed) : "no total_failed"), "0",
          "journal.log and error.json beside it say which test failed");
      return;
    }
    add("results", "success", lower_case(text).find(kAgfhcMark) != std::string::npos, report,
        "return code AGFHC_SUCCESS", "a test failed, or the program did not come to its end");
    scan(report, text, "agfhc_failure", false);
  }

 private:
  // The largest, as each part of a report may have its own; -1 without one.
  static int64_t total_failed(const Json& value) {
    int64_t most = -1;
    if (!value.is_structured()) return most;
    for (const auto& [key, inner] : value.items()) {
      most = std::max(most, key == "total_failed" ? try_whole_number(inner).value_or(-1) : total_failed(inner));
    }
    return most;
  }
};

std::unique_ptr<SuiteJudge> judge_of(const CvsSuite& suite, const Json& object, const std::string& file) {
  if (suite.kind == "rccl") return std::make_unique<RcclJudge>(object, file);
  if (suite.kind == "ibperf") return std::make_unique<IbJudge>(object, file);
  MEGALITH_CHECK(suite.kind == "agfhc", "no judge of {}", suite.kind);
  return std::make_unique<AgfhcJudge>(object, file);
}

}  // namespace

const CvsSuite* suite_of_file(const Json& root, const std::string& file) {
  if (!root.is_object() || root.contains("config") || is_cvs_sweep(root)) return nullptr;
  for (const auto& [key, value] : root.items()) {
    const CvsSuite* suite = find_cvs_suite(key);
    if (suite == nullptr) continue;
    refuse_cvs_suite(*suite, file);
    return suite;
  }
  return nullptr;
}

CvsVerdict judge_cvs_suite(const CvsSuite& suite, const Json& root, const std::string& file,
                           std::span<const std::string> reports) {
  CvsVerdict verdict;
  verdict.of.mode = suite.name;
  verdict.run = join({reports.begin(), reports.end()}, ", ");
  const std::unique_ptr<SuiteJudge> judge = judge_of(suite, get_member(root, suite.name, file), file);
  for (const std::string& report : reports) {
    const std::string text = read_stream(report);
    if (trim(text).empty()) throw UserError(report + " is empty", "the test wrote nothing, or writes elsewhere");
    judge->read(report, text);
  }
  judge->end();
  verdict.findings = std::move(judge->findings);
  for (const auto& [key, value] : root.items()) {
    if (key == suite.name || key.starts_with("_")) continue;
    verdict.findings.push_back({"configuration", key, FindingLevel::kNote, "not judged here", "", ""});
  }
  return verdict;
}

}  // namespace megalith
