// Checkpoints in host memory (--fault_tolerance restart). Every memory_checkpoint_interval steps each rank keeps its
// part of the run, and its partner a copy of it: rank r's is the rank `shift` after it, of another machine if there is
// one. A replacement receives its part from there, and all ranks go on from that step.
//
//   kept after step 20    rank 0: parts 0 and 3    rank 1: 1 and 0    rank 2: 2 and 1    rank 3: 3 and 2
//
// The last one is dropped once all ranks have the next, so some step is always whole. Source: Wang et al. 2023, GEMINI
// (SOSP '23), which keeps checkpoints in the memory of other machines.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/group.h"

namespace megalith {

class MemoryCheckpoint {
 public:
  explicit MemoryCheckpoint(int shift) : shift_(shift) {}

  // Collective. own: (n) bytes in host memory, this rank's part after the iteration. False: a part was changed on its
  // way, and the last checkpoint stays.
  bool keep(at::Tensor own, int64_t iteration, Group& world);

  // Collective, in the next era. This rank's part of the newest step that all ranks kept which are still here; unset if
  // some part is gone, with the reason.
  std::optional<at::Tensor> recover(Group& world, std::string& why);

  // The newest step kept here; -1: none.
  int64_t iteration() const { return kept_.empty() ? -1 : kept_.back().iteration; }

 private:
  struct Part {
    at::Tensor bytes;
    int64_t sum = 0;  // its checksum, as int64
    bool is_intact() const;
  };
  struct Kept {
    int64_t iteration = -1;
    Part own, of_partner;
  };

  int partner_of(const Group& world) const { return (world.rank() + shift_) % world.size(); }
  int ward_of(const Group& world) const { return (world.rank() - shift_ % world.size() + world.size()) % world.size(); }

  int shift_;
  std::vector<Kept> kept_;  // the newest last; at most two
};

}  // namespace megalith
