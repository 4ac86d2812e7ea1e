#include "launch/launch.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>

#include "core/error.h"

namespace megalith {
namespace {

constexpr int kDefaultPort = 29500;

class Variables {
 public:
  explicit Variables(const EnvironmentMap& environment) : environment_(environment) {}

  // Empty is unset.
  std::optional<std::string> text(const std::string& name) const {
    const auto found = environment_.find(name);
    if (found == environment_.end() || found->second.empty()) return std::nullopt;
    return found->second;
  }

  std::optional<int> number(const std::string& name) const {
    const std::optional<std::string> value = text(name);
    if (!value) return std::nullopt;
    int result = 0;
    const char* end = value->data() + value->size();
    const auto [rest, error] = std::from_chars(value->data(), end, result);
    if (error != std::errc() || rest != end || result < 0) {
      throw UserError(fmt::format("environment variable {} is '{}', not a number", name, *value),
                      "start the ranks with torchrun, srun or mpirun, or unset it");
    }
    return result;
  }

  int required_number(const std::string& name, std::string_view because) const {
    if (const std::optional<int> value = number(name)) return *value;
    throw missing(name, because);
  }

  UserError missing(const std::string& name, std::string_view because) const {
    return UserError(fmt::format("environment variable {} is not set, but {}", name, because),
                     fmt::format("set {}, or start the ranks with torchrun, srun or mpirun", name));
  }

 private:
  const EnvironmentMap& environment_;
};

// Separates runs on one machine; below Linux's ephemeral ports, from 32768.
int port_from(std::string_view run_id) {
  if (run_id.empty()) return kDefaultPort;
  uint32_t hash = 2166136261u;  // FNV-1a
  for (const char c : run_id) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return 20000 + static_cast<int>(hash % 12000u);
}

Launch from_torchrun(const Variables& v) {
  Launch launch{.launcher = Launcher::kTorchrun};
  launch.rank = v.required_number("RANK", "WORLD_SIZE is");
  launch.world_size = v.required_number("WORLD_SIZE", "RANK is");
  if (launch.world_size > 1) {
    launch.local_rank = v.required_number("LOCAL_RANK", fmt::format("WORLD_SIZE is {}", launch.world_size));
    // Often left out by hand; assuming one machine overloads none.
    launch.local_world_size = v.number("LOCAL_WORLD_SIZE").value_or(launch.world_size);
    const std::string because = fmt::format("the {} ranks must know where to meet", launch.world_size);
    if (!v.text("MASTER_ADDR")) throw v.missing("MASTER_ADDR", because);
    launch.master_address = *v.text("MASTER_ADDR");
    launch.master_port = v.required_number("MASTER_PORT", because);
  } else {
    launch.local_rank = v.number("LOCAL_RANK").value_or(0);
    launch.local_world_size = v.number("LOCAL_WORLD_SIZE").value_or(1);
  }
  launch.has_agent_store = v.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  launch.restart_count = v.number("TORCHELASTIC_RESTART_COUNT").value_or(0);
  return launch;
}

Launch from_open_mpi(const Variables& v) {
  Launch launch{.launcher = Launcher::kOpenMpi};
  launch.world_size = v.required_number("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK is");
  launch.rank = v.required_number("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE is");
  launch.local_rank = v.required_number("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE is");
  launch.local_world_size = v.required_number("OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_SIZE is");
  if (launch.world_size == 1) return launch;
  if (const auto address = v.text("MASTER_ADDR")) {
    launch.master_address = *address;
  } else if (launch.is_one_machine()) {
    launch.master_address = "127.0.0.1";
  } else {
    throw UserError(fmt::format("mpirun started {} ranks, {} of them on this machine, and MASTER_ADDR is not set",
                                launch.world_size, launch.local_world_size),
                    "name the machine of rank 0: mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=29500 …");
  }
  std::string run_id;
  for (const char* name : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_ess_jobid"}) {
    if (run_id.empty()) run_id = v.text(name).value_or("");
  }
  launch.master_port = v.number("MASTER_PORT").value_or(port_from(run_id));
  return launch;
}

// "2(x3),1" means 2, 2, 2, 1.
int tasks_on_node(const std::string& list, int node) {
  int seen = 0;
  const char* at = list.data();
  const char* const end = list.data() + list.size();
  while (at < end) {
    int tasks = 0, times = 1;
    auto [next, error] = std::from_chars(at, end, tasks);
    bool is_valid = error == std::errc() && tasks > 0;
    if (is_valid && next + 2 < end && next[0] == '(' && next[1] == 'x') {
      const auto [closing, times_error] = std::from_chars(next + 2, end, times);
      is_valid = times_error == std::errc() && closing < end && *closing == ')' && times > 0;
      next = closing + 1;
    }
    if (!is_valid || (next < end && *next != ',')) break;
    seen += times;
    if (node < seen) return tasks;
    at = next + 1;
  }
  throw UserError(fmt::format("SLURM_STEP_TASKS_PER_NODE is '{}', which says nothing of node {}", list, node),
                  "start the ranks with srun, which sets it");
}

Launch from_slurm(const Variables& v) {
  Launch launch{.launcher = Launcher::kSlurm};
  const std::string because = "SLURM_STEP_ID is: srun sets both";
  launch.rank = v.required_number("SLURM_PROCID", because);
  launch.world_size =
      v.number("SLURM_STEP_NUM_TASKS") ? *v.number("SLURM_STEP_NUM_TASKS") : v.required_number("SLURM_NTASKS", because);
  if (launch.world_size == 1) return launch;
  launch.local_rank = v.required_number("SLURM_LOCALID", because);
  std::optional<std::string> tasks = v.text("SLURM_STEP_TASKS_PER_NODE");
  if (!tasks) tasks = v.text("SLURM_TASKS_PER_NODE");
  if (!tasks) throw v.missing("SLURM_STEP_TASKS_PER_NODE", because);
  launch.local_world_size = tasks_on_node(*tasks, v.required_number("SLURM_NODEID", because));
  if (const auto address = v.text("MASTER_ADDR")) {
    launch.master_address = *address;
  } else {
    std::optional<std::string> nodes = v.text("SLURM_STEP_NODELIST");
    if (!nodes) nodes = v.text("SLURM_JOB_NODELIST");
    if (!nodes) throw v.missing("SLURM_STEP_NODELIST", because);
    launch.master_address = first_slurm_host(*nodes);
  }
  const std::string run_id =
      fmt::format("{}.{}", v.text("SLURM_JOB_ID").value_or(""), v.text("SLURM_STEP_ID").value_or(""));
  launch.master_port = v.number("MASTER_PORT").value_or(port_from(run_id));
  return launch;
}

void check_ranks(const Launch& launch) {
  const std::string_view by = name_of(launch.launcher);
  const auto refuse = [&](const std::string& what) {
    throw UserError(
        fmt::format("the environment contradicts itself: {} (read as {} sets it)", what, by),
        "a variable may be left over from another run: unset it, or let only the launcher set these variables");
  };
  if (launch.world_size < 1) refuse("the world has 0 ranks");
  if (launch.rank >= launch.world_size) refuse(fmt::format("rank {} of {}", launch.rank, launch.world_size));
  if (launch.local_world_size > launch.world_size) {
    refuse(fmt::format("{} ranks on this machine, and {} in all", launch.local_world_size, launch.world_size));
  }
  if (launch.local_rank >= launch.local_world_size) {
    refuse(fmt::format("local rank {} of {} on this machine", launch.local_rank, launch.local_world_size));
  }
  if (launch.master_port > 65535) refuse(fmt::format("port {} to meet at", launch.master_port));
}

// Variables from a person or container image hide the launcher's: each process would train as rank 0 of 1.
void check_against_outer(const Launch& launch, const Launch& outer) {
  const bool is_same = launch.rank == outer.rank && launch.world_size == outer.world_size;
  if (launch.world_size > outer.world_size || is_same) return;
  throw UserError(fmt::format("RANK {} and WORLD_SIZE {} contradict {}, which started this as rank {} of {}",
                              launch.rank, launch.world_size, name_of(outer.launcher), outer.rank, outer.world_size),
                  "unset RANK and WORLD_SIZE");
}

}  // namespace

std::string_view name_of(Launcher launcher) {
  switch (launcher) {
    case Launcher::kNone:
      return "none";
    case Launcher::kTorchrun:
      return "torchrun";
    case Launcher::kOpenMpi:
      return "mpirun";
    case Launcher::kSlurm:
      return "srun";
  }
  return "?";
}

std::string first_slurm_host(std::string_view list) {
  std::string host;
  for (size_t i = 0; i < list.size() && list[i] != ','; ++i) {
    if (list[i] != '[') {
      host += list[i];
      continue;
    }
    const size_t close = list.find(']', i);
    if (close == std::string_view::npos) {
      throw UserError(fmt::format("the node list '{}' has an unclosed bracket", list),
                      "set MASTER_ADDR to the host of rank 0");
    }
    const std::string_view numbers = list.substr(i + 1, close - i - 1);
    host += numbers.substr(0, numbers.find_first_of("-,"));
    i = close;
  }
  if (host.empty()) throw UserError("the node list is empty", "set MASTER_ADDR to the host of rank 0");
  return host;
}

Launch discover_launch(const EnvironmentMap& environment) {
  const Variables v(environment);
  const bool has_open_mpi = v.text("OMPI_COMM_WORLD_SIZE") || v.text("OMPI_COMM_WORLD_RANK");
  const bool has_slurm = v.text("SLURM_STEP_ID") && v.text("SLURM_PROCID");
  Launch launch;
  if (v.text("RANK") || v.text("WORLD_SIZE")) {
    launch = from_torchrun(v);
    // torchrun's agent may itself be a rank.
    const bool has_agent = v.text("TORCHELASTIC_RUN_ID").has_value();
    if (has_open_mpi && !has_agent) check_against_outer(launch, from_open_mpi(v));
    if (has_slurm && !has_open_mpi && !has_agent) check_against_outer(launch, from_slurm(v));
  } else if (has_open_mpi) {
    launch = from_open_mpi(v);
  } else if (has_slurm) {
    launch = from_slurm(v);
  }
  check_ranks(launch);
  return launch;
}

void check_num_nodes(const Launch& launch, const EnvironmentMap& environment) {
  const Variables v(environment);
  const std::string num_nodes = v.text("NNODES").value_or("1");
  const bool is_range = num_nodes.find(':') != std::string::npos;  // elastic launches
  if (is_range || !v.text("NODE_RANK") || v.number("NNODES").value_or(1) <= 1 || !launch.is_one_machine()) return;
  // Unset local ranks say nothing about machines.
  if (launch.launcher == Launcher::kTorchrun && !v.text("LOCAL_WORLD_SIZE") && launch.world_size > 1) return;
  const std::string what =
      launch.launcher == Launcher::kNone
          ? "no launcher has started this process"
          : fmt::format("{} started all {} ranks on this machine", name_of(launch.launcher), launch.world_size);
  throw UserError(
      fmt::format("NNODES is {} and NODE_RANK is set, but {}: each machine would train by itself", num_nodes, what),
      "start on every machine: torchrun --no-python --nnodes $NNODES --node-rank $NODE_RANK --master-addr "
      "$MASTER_ADDR --master-port $MASTER_PORT --nproc-per-node N megalith …; or unset NNODES");
}

}  // namespace megalith
