// Which rank this process is: what torchrun, srun and mpirun put into the environment, read by one pure function.
//
//   torchrun   RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, TORCHELASTIC_…
//              (whoever sets the same names by hand is read the same way)
//   mpirun     OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE; over several machines also MASTER_ADDR
//   srun       SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID, SLURM_STEP_NODELIST, …
//   none       a world of one
//
// The innermost launcher is nearest to the program, and so they are asked in this order: under `srun torchrun` the
// ranks are torchrun's. A batch script of Slurm that starts the program without srun is a world of one.
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
  int local_rank = 0, local_world_size = 1;  // among the ranks of this machine
  // Where the ranks meet; empty and 0 in a world of one.
  std::string master_address;
  int master_port = 0;
  bool has_agent_store = false;  // the launcher listens there already; otherwise rank 0 does
  int64_t restart_count = 0;     // how often the launcher has started the ranks anew

  bool is_one_machine() const { return local_world_size == world_size; }
};

// UserError when variables are missing, are no numbers, or contradict one another.
Launch discover_launch(const EnvironmentMap& environment);

// Scripts hand NNODES and NODE_RANK to torchrun. UserError when these say several machines and the launch has only one:
// each machine would train by itself and overwrite the others' files.
void check_num_nodes(const Launch& launch, const EnvironmentMap& environment);

// The first host of Slurm's list: "gpu[003-007,9],login" is gpu003. UserError for an unclosed bracket.
std::string first_slurm_host(std::string_view list);

}  // namespace megalith
