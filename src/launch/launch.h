// This process's rank, from torchrun's, srun's or mpirun's environment.
//
//   torchrun   RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, TORCHELASTIC_…
//              (also when set by hand)
//   mpirun     OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE; over several machines also MASTER_ADDR
//   srun       SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID, SLURM_STEP_NODELIST, …
//   none       one rank
//
// In this order, so the innermost counts: under `srun torchrun`, torchrun. A Slurm batch script without srun is one
// rank.
//
// Source: torch/distributed/run.py and elastic/agent; Open MPI's FAQ on environment variables; srun(1), "OUTPUT
// ENVIRONMENT VARIABLES".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "config/yaml_document.h"

namespace megalith {

enum class Launcher { kNone, kTorchrun, kOpenMpi, kSlurm };

std::string_view name_of(Launcher launcher);  // "torchrun", "mpirun", …; "none"

struct Launch {
  Launcher launcher = Launcher::kNone;
  int rank = 0, world_size = 1;
  int local_rank = 0, local_world_size = 1;  // on this machine
  // Empty and 0 for a single rank.
  std::string master_address;
  int master_port = 0;
  bool has_agent_store = false;  // otherwise rank 0 serves the store
  int64_t restart_count = 0;

  bool is_one_machine() const { return local_world_size == world_size; }
};

// UserError if variables are missing, malformed or contradictory.
Launch discover_launch(const EnvironmentMap& environment);

// UserError if torchrun's NNODES or NODE_RANK say several machines and the launch one: each would train by itself.
void check_num_nodes(const Launch& launch, const EnvironmentMap& environment);

// "gpu[003-007,9],login" gives gpu003. UserError for an unclosed bracket.
std::string first_slurm_host(std::string_view list);

}  // namespace megalith
