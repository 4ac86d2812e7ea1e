// NCCL and AMD's RCCL, one name in c10d.
#ifdef MEGALITH_NCCL
#define USE_C10D_NCCL 1
#endif

#include "launch/c10d_backend.h"

#ifdef MEGALITH_NCCL
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif

namespace megalith {

#ifdef MEGALITH_NCCL
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                    std::chrono::milliseconds timeout, bool has_priority) {
  const auto options = c10d::ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/has_priority);
  options->timeout = timeout;
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, options);
}
#else
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>&, int, int,
                                                    std::chrono::milliseconds, bool) {
  return nullptr;
}
#endif

}  // namespace megalith
