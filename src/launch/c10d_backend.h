// The NCCL or RCCL back end for c10d_world.cc. Includes c10d.
#pragma once

#include <chrono>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace megalith {

// Null if built without it.
//   has_priority  its work precedes that of other streams
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                    std::chrono::milliseconds timeout, bool has_priority);

}  // namespace megalith
