// Ranks as threads of one process, for tests.
//
//   ThreadWorld(8).run(mesh, [&](Groups& groups) {
//     groups.tp->all_reduce(tensor, ReduceOp::kSum, "x").wait();
//   });
//
// It finds what real back ends tolerate or hang in:
// * Mismatched collectives (kind, label, shape, dtype, operation, root), transfers (shape, dtype, tag) or splits: an
//   InternalError shows both sides.
// * Results used before wait(): outputs hold NaN (integers: bytes 0x7B) until then.
// * Inputs changed, outputs written or storage released before wait(), and memory shared by two ranks.
// * Deadlocks: an InternalError with what every rank waits for. A send is done once its receive is issued.
// When a rank throws, the others leave their collectives with a PeerError.
//
// Reductions are in rank order, bf16 and fp16 in fp32 with one rounding: bit-reproducible. Ranks compute with one
// thread each, on the CPU or their own device (thread_devices.h), where outputs hold NaN until the waiting stream
// reaches them.
#pragma once

#include <functional>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>

#include "comm/groups.h"

namespace megalith {

class ThreadDevices;

// Thrown in ranks that wait when another fails.
class PeerError : public std::runtime_error {
 public:
  PeerError(int failed_rank, const std::string& message) : std::runtime_error(message), failed_rank_(failed_rank) {}
  int failed_rank() const { return failed_rank_; }

 private:
  int failed_rank_;
};

// Simulated duration: the last arrival plus latency plus a ring's bytes per rank over bandwidth. A group, or a
// direction between two ranks, moves one thing at a time. Computation overlaps.
struct DelayModel {
  double latency_s = 0;
  double bytes_per_s = std::numeric_limits<double>::infinity();
};

struct ThreadWorldSettings {
  DelayModel delay;
  double timeout_s = 60;                   // InternalError on longer waits
  double stall_s = 3;                      // or if all wait this long with nothing issued
  const ThreadDevices* devices = nullptr;  // null: the CPU
};

class ThreadWorld {
 public:
  explicit ThreadWorld(int size, ThreadWorldSettings settings = {});

  // Runs `body` in a thread per rank; rethrows the first failure. The factory may be called again for more groups.
  void run(const std::function<void(int rank, const GroupFactory& factory)>& body) const;

  // The mesh must have this world's size.
  void run(const Mesh& mesh, const std::function<void(Groups& groups)>& body) const;

  int size() const { return size_; }

 private:
  int size_;
  ThreadWorldSettings settings_;
};

}  // namespace megalith
