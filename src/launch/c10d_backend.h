// What the one file that names NCCL or RCCL gives to c10d_world.cc. Includes c10d, so only these two files include it.
#pragma once

#include <chrono>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace megalith {

// Null when the program was built without it.
//   has_priority  the device does its work before that of other streams
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                    std::chrono::milliseconds timeout, bool has_priority);

}  // namespace megalith
