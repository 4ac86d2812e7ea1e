// This process's rank, from the environment set by torchrun, srun or mpirun: one pure function.
//
//   torchrun   RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, TORCHELASTIC_…
//              (also when set by hand)
//   mpirun     OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE; over several machines also MASTER_ADDR
//   srun       SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID, SLURM_STEP_NODELIST, …
//   none       a world of one
//
// In this order, so the innermost launcher counts: under `srun torchrun`, torchrun. A Slurm batch script without srun
// is a world of one.
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
  // The meeting place; empty and 0 in a world of one.
  std::string master_address;
  int master_port = 0;
  bool has_agent_store = false;  // the launcher serves the store; otherwise rank 0
  int64_t restart_count = 0;     // by the launcher

  bool is_one_machine() const { return local_world_size == world_size; }
};

// UserError when variables are missing, malformed or contradictory.
Launch discover_launch(const EnvironmentMap& environment);

// UserError when NNODES or NODE_RANK, meant for torchrun, say several machines and the launch has one: each would train
// by itself and overwrite the others' files.
void check_num_nodes(const Launch& launch, const EnvironmentMap& environment);

// The first host of Slurm's list: "gpu[003-007,9],login" is gpu003. UserError for an unclosed bracket.
std::string first_slurm_host(std::string_view list);

}  // namespace megalith
