#include "compat/cvs_sweep.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <span>

#include "compat/json_text.h"
#include "config/dialect.h"
#include "core/error.h"
#include "core/input_file.h"
#include "core/strings.h"

namespace megalith {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTopLevel[] = {
    "schema_version", "framework", "gpu_arch",     "enforce_thresholds", "threshold_json", "scaling_baseline",
    "loss_curve",     "config",    "model_params", "container",          "sweep"};

constexpr std::string_view kOfLimit[] = {"kind", "value", "tolerance_pct", "reference"};

constexpr std::pair<std::string_view, CvsLimitKind> kLimitKinds[] = {
    {"min", CvsLimitKind::kMin},      {"min_tok_s", CvsLimitKind::kMin},      {"max", CvsLimitKind::kMax},
    {"max_ms", CvsLimitKind::kMax},   {"within", CvsLimitKind::kWithin},      {"min_ratio", CvsLimitKind::kMinRatio},
    {"info", CvsLimitKind::kInfo}};

// A threshold file's metrics and their names here. In torchtitan's files throughput is tokens/s of a device, and
// tokens_per_gpu is that times the batch size, as their _calculation says.
std::string measure_of(std::string_view metric, const std::string& trainer) {
  constexpr std::string_view kPrefix = "training.";
  std::string name = cvs_name(metric);
  if (metric.starts_with(kPrefix)) name = cvs_name(metric.substr(kPrefix.size()));
  if (trainer != "torchtitan") return name;
  if (name == "throughput_per_gpu") return "tokens_per_gpu";
  return name == "tokens_per_gpu" ? "tokens_per_gpu_times_batch" : name;
}

class SweepReader {
 public:
  SweepReader(const Json& root, CvsConfig& out) : root_(root), out_(out), where_(out.file) {}

  Json read() {
    if (const int64_t version = json_get<int64_t>(root_, "schema_version", where_); version != 1) {
      throw UserError(fmt::format("{}: schema_version is {}", where_, version), "this program reads version 1");
    }
    const std::string framework = json_get<std::string>(root_, "framework", where_);
    const CvsSuite* suite = find_cvs_suite(framework);
    if (suite == nullptr || suite->mode_or_reason.empty()) {
      throw UserError(fmt::format("{}: framework is {}, which is no suite of training that this program knows", where_,
                                  framework),
                      "megatron_single, megatron_distributed, torchtitan_single and torchtitan_distributed are judged");
    }
    refuse_cvs_suite(*suite, where_);
    out_.trainer = suite->kind;
    mode_ = suite->mode_or_reason;
    warn_of_others(root_, kTopLevel, where_);
    out_.sweep.emplace();
    out_.sweep->enforces_thresholds = json_get_or<bool>(root_, "enforce_thresholds", true, where_);
    read_gates();
    return cases(read_thresholds());
  }

 private:
  // Warns of keys that nothing reads.
  void warn_of_others(const Json& object, std::span<const std::string_view> known, const std::string& where) {
    for (const auto& [key, value] : object.items()) {
      if (key.starts_with("_") || std::find(known.begin(), known.end(), key) != known.end()) continue;
      out_.warnings.push_back(fmt::format("{}: nothing reads {}", where, key));
    }
  }

  void read_gates() {
    if (const Json* baseline = find_member(root_, "scaling_baseline", where_)) {
      out_.sweep->baseline_tokens_per_s = json_get_or<double>(*baseline, "tokens_per_sec_total", 0, where_);
      out_.sweep->baseline_nodes = json_get_or<int64_t>(*baseline, "num_nodes", 1, where_);
      if (out_.sweep->baseline_nodes < 1) {
        throw UserError(fmt::format("{}: scaling_baseline.num_nodes is {}", where_, out_.sweep->baseline_nodes),
                        "write the number of nodes of the baseline");
      }
    }
    if (out_.trainer != "megatron") return;  // CVS looks at the curves of Megatron-LM only
    CvsLossCurve& curve = out_.sweep->loss_curve.emplace();
    const Json* said = find_member(root_, "loss_curve", where_);
    if (said == nullptr) return;
    const std::string where = where_ + ": loss_curve";
    curve.sample_every = std::max<int64_t>(1, json_get_or<int64_t>(*said, "sample_every", curve.sample_every, where));
    curve.max_slope = json_get_or<double>(*said, "max_slope", curve.max_slope, where);
    curve.enforces = json_get_or<bool>(*said, "enforce", curve.enforces, where);
    if (auto steps = json_find<std::vector<int64_t>>(*said, "milestone_steps", where)) curve.milestones = *steps;
  }

  // The file of threshold_json, else the only one beside that ends so.
  fs::path threshold_file() const {
    const fs::path folder = fs::path(where_).parent_path();
    const std::string named(trim(json_get_or<std::string>(root_, "threshold_json", "", where_)));
    if (!named.empty()) return folder / named;
    std::vector<fs::path> found;
    std::error_code code;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder.empty() ? "." : folder, code)) {
      if (entry.path().filename().string().ends_with("threshold.json")) found.push_back(entry.path());
    }
    if (found.size() == 1) return found.front();
    throw UserError(fmt::format("{} names no threshold_json, and {} files beside it end in threshold.json", where_,
                                found.size()),
                    "name the file of thresholds in threshold_json");
  }

  Json read_thresholds() {
    const fs::path file = threshold_file();
    Json thresholds = parse_cvs_json(read_stream(file), file.string(), out_.warnings);
    if (!thresholds.is_object()) {
      throw UserError(file.string() + " is no object", "it has an object of thresholds for each run of the sweep");
    }
    for (auto cell = thresholds.begin(); cell != thresholds.end();) {
      cell = cell.key().starts_with("_") ? thresholds.erase(cell) : std::next(cell);
    }
    threshold_file_ = file.string();
    return thresholds;
  }

  Json cases(const Json& thresholds) {
    const Json& sweep = get_member(root_, "sweep", where_);
    const Json& combinations = get_member(sweep, "combinations", where_ + ": sweep");
    std::vector<std::string> runs;
    if (auto chosen = json_find<std::vector<std::string>>(sweep, "runs", where_ + ": sweep")) {
      runs = *chosen;
    } else {
      for (const auto& [name, combination] : combinations.items()) {
        if (!name.starts_with("_")) runs.push_back(name);
      }
    }
    const Json& model_params = get_member(root_, "model_params", where_);
    const std::string model = json_get<std::string>(model_params, "model_name", where_ + ": model_params");
    Json made;
    std::set<std::string> cells;
    for (const std::string& run : runs) {
      const Json* combination = find_member(combinations, run, where_ + ": sweep.combinations");
      if (combination == nullptr) {
        throw UserError(fmt::format("{}: sweep.runs has {}, which is none of sweep.combinations", where_, run),
                        "name a combination");
      }
      out_.sweep->runs.push_back(run);
      Json params = merged(model_params, *combination);
      const std::string cell = cell_of(*combination);
      cells.insert(cell);
      params["result_dict"] = results(run, thresholds, cell);
      made[mode_][model][run] = std::move(params);
    }
    check_coverage(cells, thresholds);
    return {{"config", config()}, {"model_params", std::move(made)}};
  }

  // Names of a combination go before those of the model.
  Json merged(const Json& model_params, const Json& combination) {
    Json params = model_params;
    for (const auto& [key, value] : combination.items()) {
      if (key == "name") continue;  // a label
      if (key == "result_dict") {
        out_.warnings.push_back(
            fmt::format("{}: a combination has a result_dict, which nothing reads: thresholds are those of {}", where_,
                        threshold_file_));
      } else {
        params[key] = value;
      }
    }
    return params;
  }

  static std::string cell_of(const Json& combination) {
    const auto said = [&](const char* key) { return combination.contains(key) ? plain_text(combination[key]) : ""; };
    return fmt::format("MBS={},GBS={},PRECISION={}", said("micro_batch_size"), said("global_batch_size"),
                       said("precision"));
  }

  Json results(const std::string& run, const Json& thresholds, const std::string& cell) {
    Json values = Json::object();
    const Json* limits = find_member(thresholds, cell, threshold_file_);
    if (limits == nullptr) return values;
    for (const auto& [metric, spec] : limits->items()) {
      if (metric.starts_with("_")) continue;
      const std::string where = fmt::format("{}: {}.{}", threshold_file_, cell, metric);
      const std::string name = measure_of(metric, out_.trainer), kind = json_get<std::string>(spec, "kind", where);
      const auto found = std::find_if(std::begin(kLimitKinds), std::end(kLimitKinds),
                                      [&](const auto& one) { return one.first == kind; });
      if (found == std::end(kLimitKinds)) {
        throw UserError(fmt::format("{}: kind is {}", where, kind),
                        "write min, max, within, min_ratio, min_tok_s, max_ms or info");
      }
      warn_of_others(spec, kOfLimit, where);
      CvsLimit limit{.kind = found->second, .percent = 0, .reference = ""};
      if (limit.kind == CvsLimitKind::kWithin) limit.percent = json_get<double>(spec, "tolerance_pct", where);
      if (limit.kind == CvsLimitKind::kMinRatio) {
        limit.reference = measure_of(json_get<std::string>(spec, "reference", where), out_.trainer);
      }
      out_.sweep->limits[cvs_name(run)][name] = limit;
      const Json* value = limit.kind == CvsLimitKind::kInfo ? find_member(spec, "value", where)
                                                            : &get_member(spec, "value", where);
      values[name] = value == nullptr ? Json(0) : *value;
    }
    return values;
  }

  void check_coverage(const std::set<std::string>& cells, const Json& thresholds) {
    std::vector<std::string> missing, unused;
    for (const std::string& cell : cells) {
      if (!thresholds.contains(cell)) missing.push_back(cell);
    }
    for (const auto& [cell, limits] : thresholds.items()) {
      if (!cells.contains(cell)) unused.push_back(cell);
    }
    if (missing.empty() && unused.empty()) return;
    const std::string message =
        fmt::format("{} does not fit sweep.runs of {}:{}{}", threshold_file_, where_,
                    missing.empty() ? "" : " no thresholds for " + join(missing, "; "),
                    unused.empty() ? "" : " no run for " + join(unused, "; "));
    if (out_.sweep->enforces_thresholds) {
      throw UserError(message, "its keys are MBS=<micro_batch_size>,GBS=<global_batch_size>,PRECISION=<precision>");
    }
    out_.warnings.push_back(message + "; enforce_thresholds is false, so nothing is judged by them");
  }

  // `config` and `container` as the files of cases have them.
  Json config() const {
    Json config = get_member(root_, "config", where_);
    if (!config.is_object()) throw UserError(where_ + ": config is no object", "the files of CVS are examples");
    config["distributed_training"] = mode_ == "multi_node" ? "True" : "False";
    const Json* container = find_member(root_, "container", where_);
    if (container == nullptr) return config;
    for (const auto& [ours, theirs] : {std::pair{"container_image", "image"}, std::pair{"container_name", "name"}}) {
      if (container->contains(theirs)) config[ours] = (*container)[theirs];
    }
    const Json* runtime = find_member(*container, "runtime", where_ + ": container");
    const Json* args = runtime == nullptr ? nullptr : find_member(*runtime, "args", where_ + ": container.runtime");
    if (args == nullptr) return config;
    const std::string where = where_ + ": container.runtime.args";
    if (args->contains("shm_size")) config["shm_size"] = (*args)["shm_size"];
    Json volumes = Json::object();
    for (const std::string& volume : json_get_or<std::vector<std::string>>(*args, "volumes", {}, where)) {
      const size_t colon = volume.find(':');
      volumes[volume.substr(0, colon)] = colon == std::string::npos ? volume : volume.substr(colon + 1);
    }
    config["container_config"] = {{"volume_dict", volumes}};
    if (args->contains("devices")) config["container_config"]["device_list"] = (*args)["devices"];
    return config;
  }

  const Json& root_;
  CvsConfig& out_;
  const std::string where_;
  std::string mode_, threshold_file_;
};

}  // namespace

const CvsSuite* find_cvs_suite(std::string_view name) {
  static const std::vector<CvsSuite> suites = [] {
    std::vector<CvsSuite> rows;
    for (const DialectRow& row : dialect_rows("cvs_suites", {"name", "kind", "mode or reason"})) {
      rows.push_back({row.cells[0], row.cells[1], row.cells[2]});
    }
    return rows;
  }();
  const auto found = std::find_if(suites.begin(), suites.end(), [&](const CvsSuite& one) { return one.name == name; });
  return found == suites.end() ? nullptr : &*found;
}

void refuse_cvs_suite(const CvsSuite& suite, const std::string& file) {
  if (suite.kind != "refused") return;
  throw UserError(fmt::format("{} is of CVS's suite {}, which verify does not judge: {}", file, suite.name,
                              suite.mode_or_reason),
                  "verify judges training with Megatron-LM or torchtitan, rccl, ibperf and agfhc");
}

bool is_cvs_sweep(const Json& root) { return root.is_object() && root.contains("schema_version"); }

Json cases_of_sweep(const Json& root, CvsConfig& out) { return SweepReader(root, out).read(); }

}  // namespace megalith
