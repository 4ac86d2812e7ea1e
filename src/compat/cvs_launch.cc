#include "compat/cvs_launch.h"

#include <fmt/format.h>

#include <algorithm>
#include <regex>

#include "compat/cvs_network.h"
#include "compat/launch_process.h"
#include "config/option_value.h"
#include "core/error.h"
#include "core/file.h"
#include "core/input_file.h"
#include "core/strings.h"

namespace megalith {
namespace {

namespace fs = std::filesystem;

constexpr const char* kDefaultRoot = "/workspace/Megatron-LM";
constexpr const char* kBroadcomLibrary = "libbnxt_re-rdmav34.so";
// Share of the size that /dev/shm may lack: the engine rounds to pages.
constexpr double kShmSlack = 0.01;
constexpr size_t kLastWords = 300;

std::string value_of(const CvsConfig& config, const std::string& key, const std::string& otherwise = "") {
  const std::string* found = config.config.find(key);
  return found == nullptr || is_unresolved(*found) ? otherwise : *found;
}

// 128G is 137438953472; nothing if not a size.
std::optional<int64_t> bytes_of(const std::string& text) {
  const std::string lower = lower_case(trim(text));
  const size_t digits = lower.find_first_not_of("0123456789");
  const auto number = parse_integer(lower.substr(0, digits));
  const std::string unit = digits == std::string::npos ? "" : lower.substr(digits, 1);
  const size_t power = std::string("bkmgt").find(unit.empty() ? "b" : unit);
  if (!number || *number < 0 || power == std::string::npos || *number > INT64_MAX >> (10 * power)) return std::nullopt;
  return *number << (10 * power);
}

bool is_broadcom(const std::string& nic) {
  return nic.find("broadcom") != std::string::npos || nic.find("thor") != std::string::npos;
}

// CVS's settings for a kind of network card.
std::map<std::string, std::string> nic_settings(const std::string& nic) {
  if (nic == "ainic") return {{"NCCL_IB_GID_INDEX", "1"}, {"NCCL_IB_TC", "104"}, {"NCCL_IB_FIFO_TC", "192"}};
  return {};
}

std::string script_of(const CvsConfig& config, const CvsCase& of) {
  const std::string tokenizer = lower_case(of.tokenizer_model);
  for (const auto& [family, script] : config.training_scripts) {
    if (tokenizer.find(family) != std::string::npos) return script;
  }
  return tokenizer.find("llama-2") != std::string::npos ? "examples/llama/train_llama2.sh"
                                                        : "examples/llama/train_llama3.sh";
}

class CvsLauncher {
 public:
  CvsLauncher(const CvsConfig& config, const CvsCase& of, const CvsLaunch& launch, const ProcessRunner& run)
      : config_(config), of_(of), launch_(launch), run_(run), name_(value_of(config, "container_name")) {}

  CvsLaunched launch() {
    read_token();
    const bool is_inside = launch_.engine != "none";
    if (check_host() && (!is_inside || (find_image() && remove_stale() && start()))) {
      if (!is_inside || look_inside()) run_script();
    }
    if (is_started_) remove_own();
    return std::move(result_);
  }

 private:
  void add(const std::string& check, FindingLevel level, const std::string& found, const std::string& expected = "",
           const std::string& remedy = "") {
    result_.findings.push_back({"containers", check, level, found, expected, remedy});
  }
  void add(const std::string& check, bool is_good, const std::string& found, const std::string& expected,
           const std::string& remedy) {
    add(check, is_good ? FindingLevel::kOk : FindingLevel::kError, found, expected, is_good ? "" : remedy);
  }

  ProcessResult engine(std::vector<std::string> words, const std::map<std::string, std::string>& environment = {}) {
    words.insert(words.begin(), launch_.engine);
    return run_({.words = std::move(words), .environment = environment});
  }
  ProcessResult inside(std::vector<std::string> words) {
    words.insert(words.begin(), {"exec", name_});
    return engine(std::move(words));
  }
  // The last words of a program, in one line.
  static std::string words_of(const ProcessResult& result) {
    std::string text(trim(result.errors.empty() ? result.output : result.errors));
    if (text.size() > kLastWords) text.erase(0, text.size() - kLastWords);
    std::replace(text.begin(), text.end(), '\n', ' ');
    return fmt::format("exit code {}{}{}", result.exit_code, text.empty() ? "" : ": ", text);
  }

  void read_token() {
    const std::string file = value_of(config_, "hf_token_file");
    if (file.empty()) return;
    try {
      token_ = std::string(trim(read_beginning(file, 4096)));
    } catch (const UserError&) {
      add("token", of_.mock_data ? FindingLevel::kWarning : FindingLevel::kError,
          fmt::format("{} cannot be read", file), "a token in hf_token_file",
          "write a token of the Hugging Face hub into it, or set hf_token_file to an empty text");
    }
  }

  bool check_host() {
    std::vector<std::string> paths = config_.device_list;
    if (launch_.engine != "none") {
      for (const auto& [host, container] : config_.volume_dict) {
        const bool is_library = host.find(kBroadcomLibrary) != std::string::npos;
        if (!is_library || is_broadcom(nic())) paths.push_back(host);
      }
    }
    bool is_good = true;
    for (const std::string& path : paths) {
      std::error_code code;
      // Device nodes are the machine's, folders the user's.
      const fs::path place = path.starts_with("/dev/") ? launch_.machine / path.substr(1) : fs::path(path);
      const bool is_there = fs::exists(place, code);
      is_good = is_good && is_there;
      add("host " + path, is_there, is_there ? "is there" : "is not there", "",
          "mend device_list or volume_dict, or load the driver");
    }
    if (of_.is_distributed) is_good = check_host_network() && is_good;
    return is_good;
  }

  bool check_host_network() {
    bool is_good = true;
    for (CvsFinding& finding : check_network_names(config_, launch_.machine)) {
      is_good = is_good && finding.level != FindingLevel::kError;
      result_.findings.push_back(std::move(finding));
    }
    const std::string address = value_of(config_, "master_address");
    if (launch_.resolve && launch_.resolve(address).empty()) {
      add("master_address", false, "nobody knows " + address, "a name or address of the first node",
          "mend master_address, or the names in /etc/hosts");
      is_good = false;
    }
    return is_good;
  }

  bool find_image() {
    const std::string image = value_of(config_, "container_image");
    if (engine({"image", "inspect", image}).exit_code == 0) {
      add("image", FindingLevel::kOk, image);
      return true;
    }
    const ProcessResult pulled = engine({"pull", image});
    add("image", pulled.exit_code == 0, pulled.exit_code == 0 ? image + " was pulled" : words_of(pulled), image,
        fmt::format("see that {} pull {} works", launch_.engine, image));
    return pulled.exit_code == 0;
  }

  // True if a container of exactly this name exists; -a includes those that have ended.
  bool is_there(bool with_ended) {
    std::vector<std::string> words = {"ps", "--filter", "name=" + name_, "--format", "{{.Names}}"};
    if (with_ended) words.insert(words.begin() + 1, "-a");
    const std::vector<std::string> names = split_words(engine(words).output);
    return std::find(names.begin(), names.end(), name_) != names.end();
  }

  bool remove_stale() {
    if (!is_there(/*with_ended=*/true)) return true;
    const ProcessResult removed = engine({"rm", "-f", name_});
    add("stale container", removed.exit_code == 0, removed.exit_code == 0 ? name_ + " was removed" : words_of(removed),
        "", fmt::format("remove {} by hand", name_));
    return removed.exit_code == 0;
  }

  bool start() {
    std::vector<std::string> words = {"run",
                                      "-d",
                                      "--name",
                                      name_,
                                      "--network",
                                      "host",
                                      "--group-add",
                                      "video",
                                      "--cap-add",
                                      "SYS_PTRACE",
                                      "--security-opt",
                                      "seccomp=unconfined",
                                      "--privileged",
                                      "--shm-size",
                                      value_of(config_, "shm_size")};
    for (const std::string& device : config_.device_list) words.insert(words.end(), {"--device", device});
    for (const auto& [host, container] : config_.volume_dict) {
      if (host.find(kBroadcomLibrary) == std::string::npos || is_broadcom(nic()))
        words.insert(words.end(), {"-v", host + ":" + container});
    }
    words.insert(words.end(), {value_of(config_, "container_image"), "sleep", "infinity"});
    const ProcessResult result = engine(words);
    is_started_ = result.exit_code == 0;
    add("start", is_started_, is_started_ ? name_ : words_of(result), "", "the engine's words say what it lacks");
    if (!is_started_) return false;
    const bool is_up = is_there(/*with_ended=*/false);
    add("up", is_up, is_up ? "is up" : words_of(engine({"logs", name_})), "",
        "the container ended at once: its words say why");
    return is_up;
  }

  bool look_inside() {
    bool is_good = true;
    const auto look = [&](const std::string& path) {
      const bool is_there = inside({"test", "-e", path}).exit_code == 0;
      is_good = is_good && is_there;
      if (!is_there) add("inside " + path, false, "is not there", "", "mend device_list or volume_dict");
    };
    for (const std::string& device : config_.device_list) look(device);
    for (const auto& [host, container] : config_.volume_dict) {
      // "/data:ro" is read only.
      if (host.find(kBroadcomLibrary) == std::string::npos || is_broadcom(nic())) {
        look(container.substr(0, container.find(':')));
      }
    }
    if (is_good) add("inside", FindingLevel::kOk, "all devices and mounts are there");
    check_shared_memory();
    if (of_.is_distributed) is_good = check_nic() && is_good;
    check_program();
    return is_good;
  }

  void check_shared_memory() {
    const std::string wanted = value_of(config_, "shm_size");
    const ProcessResult result = inside({"df", "-B1", "--output=size", "/dev/shm"});
    const std::vector<std::string> words = split_words(result.output);
    const int64_t found = words.empty() ? -1 : parse_integer(words.back()).value_or(-1);
    const int64_t bytes = bytes_of(wanted).value_or(INT64_MAX);
    const bool is_good = static_cast<double>(found) >= static_cast<double>(bytes) * (1 - kShmSlack);
    add("/dev/shm", is_good, found >= 0 ? format_bytes(found) : words_of(result), wanted,
        "the engine did not give the container its shm_size");
  }

  std::string nic() const { return lower_case(value_of(config_, "nic_type")); }

  bool check_nic() {
    std::string pattern = nic() == "cx7" ? "mlx5_" : "bnxt_|rocep";
    pattern = value_of(config_, "hca_id_pattern", pattern);
    if (is_broadcom(nic())) {
      for (const auto& [host, container] : config_.volume_dict) {
        constexpr std::string_view kHostEnding = ".host";
        if (host.find(kBroadcomLibrary) == std::string::npos || !container.ends_with(kHostEnding)) continue;
        const std::string target = container.substr(0, container.size() - kHostEnding.size());
        const ProcessResult copied = inside({"cp", container, target});
        add("NIC library", copied.exit_code == 0, copied.exit_code == 0 ? target : words_of(copied), "",
            "the host needs Broadcom's library");
      }
    } else if (nic() == "ainic") {
      add("NIC settings", FindingLevel::kOk, "NCCL_IB_GID_INDEX=1 NCCL_IB_TC=104 NCCL_IB_FIFO_TC=192");
      return true;
    }
    const ProcessResult devices = inside({"ibv_devinfo"});
    bool is_good = false;
    try {
      is_good = std::regex_search(devices.output.substr(0, 4096), std::regex("hca_id:\\s+(" + pattern + ")"));
    } catch (const std::regex_error&) {
      throw UserError(fmt::format("hca_id_pattern is {}, which is no regular expression", pattern),
                      "write bnxt_|rocep or mlx5_");
    }
    add("NIC", is_good, is_good ? "ibv_devinfo has " + pattern : words_of(devices), "hca_id: " + pattern,
        "the container does not see the cards: mount their driver library");
    return is_good;
  }

  std::string root() const {
    return launch_.engine == "none" && value_of(config_, "megatron_root").empty()
               ? launch_.source_root.string()
               : value_of(config_, "megatron_root", kDefaultRoot);
  }

  // Another tool's image runs and is judged too; only run.json is missing.
  void check_program() {
    const ProcessResult result =
        inside({"sh", "-c", fmt::format("command -v megalith || ls {}/build/megalith", shell_quoted(root()))});
    if (result.exit_code == 0) return add("program", FindingLevel::kOk, "the image has megalith");
    add("program", FindingLevel::kWarning,
        fmt::format("{} has no megalith: its own trainer runs", value_of(config_, "container_image")), "",
        "docker/Dockerfile.rocm makes an image with it");
  }

  void run_script() {
    const fs::path log = cvs_log_path(config_, of_, launch_.node_rank);
    const std::string script = script_of(config_, of_);
    make_directories(log.parent_path());
    remove_tree(log);
    std::map<std::string, std::string> exports = cvs_exports(config_, of_, launch_.node_rank);
    // Output only for run.json; saving such a model would take longer than the run.
    const fs::path folder = cvs_run_folder(config_, of_, launch_.node_rank);
    exports["MEGALITH_OUTPUT_DIR"] = folder.string();
    exports["MEGALITH_SAVE"] = "null";
    if (launch_.node_rank == 0 || !of_.is_distributed) remove_tree(folder);
    std::map<std::string, std::string> environment;
    if (!token_.empty()) environment["HF_TOKEN"] = token_;
    const std::string rocm = value_of(config_, "rocm_dir");
    const std::string libraries = rocm.empty() ? ""
                                               : fmt::format(" && export LD_LIBRARY_PATH={}:\"${{LD_LIBRARY_PATH:-}}\"",
                                                             shell_quoted(rocm + "/lib"));
    const std::string body =
        fmt::format("cd {}{} && exec bash {}", shell_quoted(root()), libraries, shell_quoted(script));
    std::vector<std::string> words = {"bash", "-c", body};
    if (launch_.engine == "none") {
      environment.insert(exports.begin(), exports.end());
    } else {
      std::vector<std::string> head = {launch_.engine, "exec"};
      for (const auto& [name, value] : exports) head.insert(head.end(), {"-e", name + "=" + value});
      if (!token_.empty())
        head.insert(head.end(), {"-e", "HF_TOKEN"});  // passed by name: the value stays off the command line
      head.push_back(name_);
      words.insert(words.begin(), head.begin(), head.end());
    }
    CvsCounters before;
    if (of_.verify_network_errors) before = read_error_counters(launch_.machine);
    const ProcessResult result = run_({.words = words, .environment = environment, .output_file = log.string()});
    result_.log = log;
    if (of_.verify_network_errors) {
      for (CvsFinding& finding : compare_error_counters(before, read_error_counters(launch_.machine))) {
        result_.findings.push_back(std::move(finding));
      }
    }
    add("script", result.exit_code == 0, fmt::format("{} ended with exit code {}", script, result.exit_code),
        "exit code 0", fmt::format("{} says why", log.string()));
  }

  void remove_own() {
    const ProcessResult removed = engine({"rm", "-f", name_});
    if (removed.exit_code != 0)
      add("stop", FindingLevel::kWarning, words_of(removed), "", fmt::format("remove {} by hand", name_));
  }

  const CvsConfig& config_;
  const CvsCase& of_;
  const CvsLaunch& launch_;
  const ProcessRunner& run_;
  const std::string name_;
  std::string token_;
  bool is_started_ = false;
  CvsLaunched result_;
};

}  // namespace

fs::path cvs_log_path(const CvsConfig& config, const CvsCase& of, int64_t node) {
  fs::path folder = fs::path(value_of(config, "log_dir")) / (config.trainer + "-logs");
  if (config.sweep && config.trainer == "megatron") {
    const auto& runs = config.sweep->runs;
    const auto run = std::find_if(runs.begin(), runs.end(), [&](const auto& one) { return cvs_name(one) == of.gpu; });
    if (run != runs.end()) folder /= std::regex_replace(*run, std::regex("[^A-Za-z0-9._-]"), "_");
  }
  return folder / fmt::format("out-node{}", node) / "training.log";
}

fs::path cvs_run_folder(const CvsConfig& config, const CvsCase& of, int64_t node) {
  return cvs_log_path(config, of, of.is_distributed ? 0 : node).parent_path() / "run";
}

std::map<std::string, std::string> cvs_exports(const CvsConfig& config, const CvsCase& of, int64_t node_rank) {
  const auto number = [](int64_t value) { return std::to_string(value); };
  std::map<std::string, std::string> exports = {{"MOCK_DATA", of.mock_data ? "1" : "0"},
                                                {"IMAGE", value_of(config, "container_image")},
                                                {"TOKENIZER_MODEL", of.tokenizer_model},
                                                {"DATA_CACHE_PATH", value_of(config, "data_cache_dir")},
                                                {"LOG_DIR", value_of(config, "log_dir")},
                                                {"EXP_NAME", "megatron_training"},
                                                {"TEE_OUTPUT", "1"},
                                                {"RECOMPUTE", of.recompute ? "1" : "0"},
                                                {"SEQ_LENGTH", number(of.sequence_length)},
                                                {"MBS", number(of.micro_batch_size)},
                                                {"BS", number(of.batch_size)},
                                                {"TP", number(of.tensor_parallelism)},
                                                {"PP", number(of.pipeline_parallelism)},
                                                {"FSDP", of.fsdp ? "1" : "0"},
                                                {"MODEL_SIZE", of.model_size},
                                                {"TOTAL_ITERS", number(of.training_iterations)},
                                                {"TE_FP8", of.is_fp8 ? "1" : "0"}};
  if (of.is_distributed) {
    exports["NNODES"] = number(of.nnodes);
    exports["NODE_RANK"] = number(node_rank);
    exports["MASTER_ADDR"] = value_of(config, "master_address");
    const std::pair<const char*, const char*> named[] = {
        {"NCCL_IB_HCA", "nccl_ib_hca_list"},          {"NCCL_IB_HCA_LIST", "nccl_ib_hca_list"},
        {"NCCL_SOCKET_IFNAME", "nccl_socket_ifname"}, {"GLOO_SOCKET_IFNAME", "gloo_socket_ifname"},
        {"NCCL_IB_GID_INDEX", "nccl_ib_gid_index"},   {"NCCL_DEBUG", "nccl_debug"}};
    for (const auto& [variable, key] : named) {
      if (const std::string value = value_of(config, key); !value.empty()) exports[variable] = value;
    }
    if (const std::string hca = value_of(config, "nccl_ib_hca"); !hca.empty()) exports["NCCL_IB_HCA"] = hca;
    for (const auto& [name, value] : nic_settings(lower_case(value_of(config, "nic_type")))) exports[name] = value;
  }
  std::erase_if(exports, [](const auto& one) { return one.second.empty(); });
  return exports;
}

CvsLaunched launch_cvs_run(const CvsConfig& config, const CvsCase& of, const CvsLaunch& launch,
                           const ProcessRunner& run) {
  return CvsLauncher(config, of, launch, run).launch();
}

}  // namespace megalith
