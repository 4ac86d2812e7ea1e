#include "compat/cvs_case.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "config/option_value.h"
#include "core/strings.h"

namespace megalith {
namespace {

// Number of nodes that the file for several nodes was made for.
constexpr int64_t kNodesOfBatch = 4;
// The product of two such numbers fits into 64 bits.
constexpr int64_t kMostWhole = 1'000'000'000;

constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kGpuNames = {
    {{"mi300x", "mi300x"}, {"mi325x", "mi325"}, {"mi350x", "mi350"}, {"mi355x", "mi355"}}};

// Tells CVS's models apart.
struct CvsModelShape {
  std::string_view model;
  int64_t num_layers, hidden_size;
};
constexpr std::array<CvsModelShape, 2> kCvsShapes = {{{"llama3_1_8b", 32, 4096}, {"llama3_1_70b", 80, 8192}}};

struct CvsPrecision {
  std::string_view word;
  bool is_fp8;
  std::string_view meaning;
};
constexpr CvsPrecision kPrecisions[] = {
    {"te_fp8", true, "FP8, hybrid (TE_FP8=1)"},    {"fp8", true, "FP8, hybrid (TE_FP8=1)"},
    {"te_bf16", false, "bf16 (TE_FP8=0)"},         {"te_fp16", false, "bf16 (TE_FP8=0)"},
    {"te_f16", false, "bf16 (TE_FP8=0)"},          {"bf16", false, "bf16 (TE_FP8=0)"},
    {"mxfp8", true, "FP8 in blocks of 32, MXFP8"}, {"mxfp4", false, "FP4 in blocks of 32, MXFP4"}};
constexpr std::string_view kStartedPrecisions = "te_fp8 fp8 te_bf16 te_fp16 te_f16 bf16";

const std::vector<std::string> kNicTypes = {"ainic", "thor2", "cx7"};

// Reads the texts of one case as numbers, collecting every error.
class CaseReader {
 public:
  CaseReader(const CvsConfig& config, const CvsCaseRequest& request) : config_(config), request_(request) {}

  CvsCase read() {
    case_.trainer = config_.trainer;
    case_.sweep = config_.sweep;
    read_nodes();
    const CvsEntry* entry = choose();
    if (entry != nullptr) {
      case_.mode = entry->mode;
      case_.model = entry->model;
      case_.gpu = entry->gpu;
      case_.training_iterations = whole(config_.config, "training_iterations", 1);
      case_.mock_data = truth(config_.config, "mock_data", true);
      case_.verify_network_errors = truth(config_.config, "verify_network_errors", false);
      read_params(*entry);
      read_bounds(*entry);
    }
    if (request_.is_launch) require_for_launch();
    check_nic_type();
    report_unresolved();
    if (!errors_.empty()) throw UserErrors(errors_);
    add_notes(*entry);
    return case_;
  }

 private:
  void read_nodes() {
    const std::string* distributed = config_.config.find("distributed_training");
    case_.is_distributed = truth(config_.config, "distributed_training", false);
    case_.nnodes = config_.config.find("nnodes") == nullptr ? 1 : whole(config_.config, "nnodes", 1);
    if (distributed != nullptr && case_.is_distributed && case_.nnodes == 1 && !has_unresolved("nnodes")) {
      errors_.emplace_back(fmt::format("{}: distributed_training is {}, and nnodes is 1", config_.file, *distributed),
                           "set nnodes to the number of nodes that train together, or distributed_training to False");
    }
  }

  const CvsEntry* choose() {
    std::vector<const CvsEntry*> fitting;
    const std::string mode = case_.is_distributed ? "multi_node" : "single_node";
    if (request_.name) {
      for (const CvsEntry& entry : config_.entries) {
        const std::string name = cvs_name(*request_.name);
        if (name == entry.name() || (config_.sweep && name == entry.gpu)) fitting.push_back(&entry);
      }
      if (fitting.empty()) return no_case(fmt::format("--case {}: {} has no such case", *request_.name, config_.file));
      if (fitting.front()->mode != mode) {
        errors_.emplace_back(fmt::format("--case {} is of {}, and distributed_training {}", *request_.name,
                                         fitting.front()->mode, case_.is_distributed ? "is True" : "is not True"),
                             "give a case of the other mode, or --set distributed_training=" +
                                 std::string(case_.is_distributed ? "False" : "True"));
      }
      return fitting.front();
    }
    if (config_.sweep) {
      if (config_.entries.size() == 1) return &config_.entries.front();
      return no_case(fmt::format("{} has a sweep of {} runs", config_.file, config_.entries.size()));
    }
    const std::string gpu = gpu_of_device(), model = model_of_shape();
    for (const CvsEntry& entry : config_.entries) {
      if (entry.mode != mode || (!gpu.empty() && entry.gpu != gpu) || (!model.empty() && entry.model != model))
        continue;
      fitting.push_back(&entry);
    }
    if (fitting.size() == 1 && !gpu.empty()) return fitting.front();
    const std::string device = request_.facts.device.empty() ? "unknown" : request_.facts.device;
    return no_case(fmt::format("{} of the cases of {} fit a run of {} on the device '{}' of the model {}",
                               fitting.empty() || gpu.empty() ? "none" : "several", config_.file, mode, device,
                               model.empty() ? "'unknown'" : model));
  }

  const CvsEntry* no_case(const std::string& message) {
    std::vector<std::string> names;
    for (const CvsEntry& entry : config_.entries) names.push_back(entry.name());
    errors_.emplace_back(message, "choose one with --case: " + join(names, ", "));
    return nullptr;
  }

  std::string gpu_of_device() const {
    const std::string device = lower_case(request_.facts.device);
    for (const auto& [word, gpu] : kGpuNames) {
      if (device.find(word) != std::string::npos) return std::string(gpu);
    }
    return "";
  }

  std::string model_of_shape() const {
    for (const CvsModelShape& shape : kCvsShapes) {
      if (request_.facts.num_layers == shape.num_layers && request_.facts.hidden_size == shape.hidden_size) {
        return std::string(shape.model);
      }
    }
    return request_.facts.num_layers ? fmt::format("of {} layers", *request_.facts.num_layers) : "";
  }

  void read_params(const CvsEntry& entry) {
    const CvsTexts& params = entry.params;
    const bool is_torchtitan = case_.trainer == "torchtitan";
    case_.tokenizer_model = text(params, "tokenizer_model");
    if (!is_torchtitan) case_.model_size = text(params, "model_size");
    case_.batch_size = whole(params, "batch_size", 1);
    case_.micro_batch_size = whole(params, "micro_batch_size", 1);
    case_.sequence_length = whole(params, "sequence_length", 1);
    case_.tensor_parallelism = whole(params, "tensor_parallelism", 1);
    case_.pipeline_parallelism = whole(params, "pipeline_parallelism", 1);
    case_.recompute = truth(params, "recompute", false);
    case_.fsdp = truth(params, "fsdp", false);
    const std::string* fp8 = params.find("enable_float8");  // how the files of torchtitan's cases say it
    const bool says_fp8 = is_torchtitan && fp8 != nullptr && params.find("precision") == nullptr;
    read_precision(says_fp8 ? (truth(params, "enable_float8", false) ? "FP8" : "BF16") : text(params, "precision"));
    if (request_.scale_batch) {
      const int64_t scaled = case_.batch_size / kNodesOfBatch * case_.nnodes;
      case_.notes.push_back(fmt::format("batch_size {} is {}/{} x {} nodes (--scale_batch)", scaled, case_.batch_size,
                                        kNodesOfBatch, case_.nnodes));
      case_.batch_size = scaled;
    }
  }

  void read_precision(const std::string& precision) {
    if (precision.empty() || is_unresolved(precision)) return;
    case_.precision = precision;
    const auto* found = std::find_if(std::begin(kPrecisions), std::end(kPrecisions),
                                     [&](const CvsPrecision& one) { return one.word == lower_case(precision); });
    if (found == std::end(kPrecisions)) {
      errors_.emplace_back(fmt::format("{}: precision is {}", config_.file, precision),
                           "write TE_FP8, TE_BF16, TE_FP16, TE_F16, FP8, BF16, MXFP8 or MXFP4");
      return;
    }
    case_.is_fp8 = found->is_fp8;
    case_.notes.push_back(fmt::format("precision {} is {}", precision, found->meaning));
  }

  void read_bounds(const CvsEntry& entry) {
    for (const auto& [key, written] : entry.results.values) {
      if (note_if_unresolved(entry.results, key, written)) continue;
      const std::optional<double> value = parse_number(written);
      if (value && (*value > 0 || config_.sweep)) {
        case_.bounds.push_back({key, *value, limit_of(entry, key)});
      } else {
        errors_.emplace_back(
            fmt::format("{}: result_dict.{} is \"{}\", expected a number above 0", config_.file, key, written),
            fmt::format("--set {}=NUMBER", key));
      }
    }
  }

  std::optional<CvsLimit> limit_of(const CvsEntry& entry, const std::string& key) const {
    if (!config_.sweep) return std::nullopt;
    const auto run = config_.sweep->limits.find(entry.gpu);
    if (run == config_.sweep->limits.end()) return std::nullopt;
    const auto limit = run->second.find(key);
    return limit == run->second.end() ? std::nullopt : std::optional(limit->second);
  }

  void require_for_launch() {
    const bool is_llama = lower_case(case_.tokenizer_model).find("llama") != std::string::npos;
    const bool is_known = kStartedPrecisions.find(lower_case(case_.precision)) != std::string_view::npos;
    if (case_.trainer != "megatron" || !is_known || (config_.sweep && !is_llama)) {
      errors_.emplace_back(
          fmt::format("--launch: {} of {} with precision {} is not started here", case_.name(), case_.trainer,
                      case_.precision),
          "start the run by itself and give its log with --log; --launch starts Llama with Megatron-LM's scripts in "
          "FP8 or bf16");
    }
    std::vector<std::string> names = {"container_image", "container_name", "shm_size", "log_dir"};
    if (case_.is_distributed) {
      names.insert(names.end(), {"master_address", "nic_type", "nccl_ib_hca_list", "nccl_socket_ifname",
                                 "gloo_socket_ifname", "nccl_ib_gid_index"});
    }
    for (const std::string& name : names) text(config_.config, name);
    const std::string* address = config_.config.find("master_address");
    if (case_.is_distributed && case_.nnodes > 1 && address != nullptr &&
        (*address == "localhost" || address->starts_with("127."))) {
      errors_.emplace_back(
          fmt::format("{}: master_address is {}, which other nodes cannot reach", config_.file, *address),
          "give the address of the first node");
    }
  }

  void check_nic_type() {
    const std::string* nic = config_.config.find("nic_type");
    if (nic == nullptr || is_unresolved(*nic)) return;
    const std::string name = lower_case(*nic);
    const bool is_broadcom = name.find("broadcom") != std::string::npos || name.find("thor") != std::string::npos;
    if (is_broadcom || std::find(kNicTypes.begin(), kNicTypes.end(), name) != kNicTypes.end()) return;
    errors_.emplace_back(fmt::format("{}: nic_type is {}", config_.file, *nic), "write ainic, thor2 or cx7");
  }

  std::string text(const CvsTexts& texts, const std::string& key) {
    const std::string* written = texts.find(key);
    if (written == nullptr) {
      errors_.emplace_back(fmt::format("{}: {} is missing", config_.file, key), fmt::format("--set {}=VALUE", key));
      return "";
    }
    return note_if_unresolved(texts, key, *written) ? "" : *written;
  }

  int64_t whole(const CvsTexts& texts, const std::string& key, int64_t least) {
    const std::string written = text(texts, key);
    if (written.empty()) return least;
    const std::optional<int64_t> value = parse_integer(written);
    if (value && *value >= least && *value <= kMostWhole) return *value;
    errors_.emplace_back(fmt::format("{}: {} is \"{}\", expected a whole number from {} to {}", config_.file, key,
                                     written, least, kMostWhole),
                         fmt::format("--set {}=NUMBER", key));
    return least;
  }

  bool truth(const CvsTexts& texts, const std::string& key, bool otherwise) {
    const std::string* written = texts.find(key);
    if (written == nullptr || note_if_unresolved(texts, key, *written)) return otherwise;
    if (const std::optional<bool> value = parse_bool(*written)) return *value;
    errors_.emplace_back(fmt::format("{}: {} is \"{}\", expected True or False, 1 or 0", config_.file, key, *written),
                         fmt::format("--set {}=True", key));
    return otherwise;
  }

  bool note_if_unresolved(const CvsTexts& texts, const std::string& key, const std::string& written) {
    if (!is_unresolved(written)) return false;
    if (has_unresolved(key)) return true;
    const auto example = texts.examples.find(key);
    unresolved_.emplace_back(key, example == texts.examples.end() ? "VALUE" : example->second);
    return true;
  }

  bool has_unresolved(const std::string& key) const {
    return std::any_of(unresolved_.begin(), unresolved_.end(), [&](const auto& one) { return one.first == key; });
  }

  void report_unresolved() {
    if (unresolved_.empty()) return;
    std::vector<std::string> keys, words;
    for (const auto& [key, example] : unresolved_) {
      keys.push_back(key);
      words.push_back(fmt::format("{}={}", key, example));
    }
    errors_.emplace_back(
        fmt::format("{}: {} still {} <changeme>", config_.file, join(keys, ", "), keys.size() == 1 ? "has" : "have"),
        fmt::format("write values into the file, or give them here: --set {}", join(words, " ")));
  }

  void add_notes(const CvsEntry& entry) {
    if (case_.verify_network_errors && !request_.is_launch) {
      case_.notes.emplace_back(
          "verify_network_errors has no effect here: only --launch sees the network's counters before and after the "
          "run");
    }
    if (const std::string* folder = config_.config.find("scripts_dir"); folder && !folder->empty()) {
      case_.notes.emplace_back("scripts_dir has no effect: CVS writes scripts of its own there, verify writes none");
    }
    if (entry.mode == "multi_node" && case_.nnodes != kNodesOfBatch) {
      case_.notes.push_back(fmt::format(
          "CVS made the batch size and the thresholds of this file for {} nodes, and nnodes is {}{}", kNodesOfBatch,
          case_.nnodes, request_.scale_batch ? "" : " (--scale_batch scales the batch size)"));
    }
  }

  const CvsConfig& config_;
  const CvsCaseRequest& request_;
  CvsCase case_;
  std::vector<std::pair<std::string, std::string>> unresolved_;  // key, example
  std::vector<UserError> errors_;
};

}  // namespace

std::string cvs_number(double value) {
  const double size = std::fabs(value);
  return size >= 10 && size < 1e7 ? fmt::format("{:.1f}", value) : fmt::format("{:.4g}", value);
}

bool CvsBound::holds(double measured, bool is_most, const std::map<std::string, double>& values) const {
  switch (limit ? limit->kind : is_most ? CvsLimitKind::kMax : CvsLimitKind::kMin) {
    case CvsLimitKind::kMin:
      return measured >= value;
    case CvsLimitKind::kMax:
      return measured <= value;
    case CvsLimitKind::kWithin:
      return std::fabs(measured - value) <= std::fabs(value) * limit->percent / 100;
    case CvsLimitKind::kMinRatio: {
      const auto reference = values.find(limit->reference);
      return reference != values.end() && reference->second != 0 && measured / reference->second >= value;
    }
    case CvsLimitKind::kInfo:
      return true;
  }
  return false;
}

std::string CvsBound::expected(bool is_most, const std::string& unit) const {
  const CvsLimitKind kind = limit ? limit->kind : is_most ? CvsLimitKind::kMax : CvsLimitKind::kMin;
  if (kind == CvsLimitKind::kInfo) return "";
  if (kind == CvsLimitKind::kMinRatio) return fmt::format("at least {} of {}", cvs_number(value), limit->reference);
  if (kind == CvsLimitKind::kWithin) {
    return fmt::format("{}{}, within {} %", cvs_number(value), unit, cvs_number(limit->percent));
  }
  return fmt::format("at {} {}{}", kind == CvsLimitKind::kMax ? "most" : "least", cvs_number(value), unit);
}

const CvsBound* CvsCase::find_bound(const std::string& key) const {
  const auto found = std::find_if(bounds.begin(), bounds.end(), [&](const CvsBound& one) { return one.key == key; });
  return found == bounds.end() ? nullptr : &*found;
}

CvsCase resolve_cvs_case(const CvsConfig& config, const CvsCaseRequest& request) {
  return CaseReader(config, request).read();
}

}  // namespace megalith
