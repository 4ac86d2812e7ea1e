// Ranks as threads of one process, for tests: any number of ranks on any machine, under debuggers and sanitizers.
//
//   ThreadWorld(8).run(mesh, [&](Groups& groups) {
//     groups.tp->all_reduce(tensor, ReduceOp::kSum, "x").wait();
//   });
//
// It finds what real back ends tolerate or turn into a hang:
// * Mismatched collectives (kind, label, shape, dtype, operation, root), sends and receives (shape, dtype, tag) or
// splits:
//   an InternalError that shows both sides.
// * Results used before wait(): outputs hold NaN (integers: bytes 0x7B) until then.
// * Inputs changed, outputs written or storage released before wait(), and two ranks that pass the same memory.
// * Deadlocks: an InternalError with what every rank waits for. A send is done when its receive was issued.
// When a rank throws, the others leave their collectives with a PeerError.
//
// Reductions are in rank order, bf16 and fp16 in fp32 with one rounding, so results are equal on all ranks and
// bit-reproducible. Within run() every rank computes with one thread, on the CPU, or on its own device
// (thread_devices.h), where outputs hold NaN until the stream that called wait() reaches that point.
#pragma once

#include <functional>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>

#include "comm/groups.h"

namespace megalith {

class ThreadDevices;

// Thrown in a rank that waits for others, one of which failed.
class PeerError : public std::runtime_error {
 public:
  PeerError(int failed_rank, const std::string& message) : std::runtime_error(message), failed_rank_(failed_rank) {}
  int failed_rank() const { return failed_rank_; }

 private:
  int failed_rank_;
};

// Simulated duration: wait() returns no earlier than the last rank's arrival plus latency plus the bytes a rank moves
// in a ring over the bandwidth. A group, or a direction between two ranks, moves one thing at a time. The time passes
// asleep, so it overlaps with computation.
struct DelayModel {
  double latency_s = 0;
  double bytes_per_s = std::numeric_limits<double>::infinity();
};

struct ThreadWorldSettings {
  DelayModel delay;
  double timeout_s = 60;                   // waiting longer than this is an error
  double stall_s = 3;                      // and so is every rank waiting with nothing issued for this long
  const ThreadDevices* devices = nullptr;  // of the ranks; null: the CPU
};

class ThreadWorld {
 public:
  explicit ThreadWorld(int size, ThreadWorldSettings settings = {});

  // Runs `body` once per rank, each in its own thread, until all have ended. Rethrows what the first rank to fail
  // threw. The factory makes the rank's groups and may be called again for more.
  void run(const std::function<void(int rank, const GroupFactory& factory)>& body) const;

  // The same with a rank's Groups; the mesh has as many ranks as the world.
  void run(const Mesh& mesh, const std::function<void(Groups& groups)>& body) const;

  int size() const { return size_; }

 private:
  int size_;
  ThreadWorldSettings settings_;
};

}  // namespace megalith
