// Updates that the CPU makes of parts that lie on a device: their masters and moments are in host memory
// (optimizer_cpu_offload). Gradients travel there and updated weights back, a chunk at a time, through pinned buffers:
//
//   to the host    | gradients 0 | gradients 1 | gradients 2 |
//   CPU                          | update 0    | update 1    | update 2   |
//   to the device                              | weights 0   | weights 1  | weights 2 |
//
// Without overlap each chunk goes there, is updated and comes back before the next begins: one buffer instead of three.
//
// Masters and moments never travel, so they lie in ordinary memory. Where the master is the weight itself (an fp32
// model), or needs the weight (a remainder, or no master), the weight comes with its gradient: what is on the device is
// the truth, also after a checkpoint or an import wrote it. Source of the idea: Ren et al. 2021 (ZeRO-Offload),
// arXiv:2101.06840.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "device/stream.h"
#include "optim/update_rule.h"

namespace megalith {

class HostUpdate {
 public:
  // Elements of a chunk: 64 MiB of fp32 gradients.
  static constexpr int64_t kChunkElements = int64_t{1} << 24;

  // A part: grad and model on the device, the rest of the slot on the host.
  struct Entry {
    size_t rule;
    UpdateSlot slot;
  };
  // Moves slots that lie on the host whole, and are of one rule.
  using Update = std::function<void(size_t rule, std::span<UpdateSlot> slots)>;

  // entries  their rules update element by element; the parts outlive this. A slot without a master has the weight that
  //          it needs in `model`.
  HostUpdate(at::Device device, std::vector<Entry> entries, bool overlap, int64_t chunk_elements = kChunkElements);
  ~HostUpdate();
  HostUpdate(const HostUpdate&) = delete;

  const std::vector<Entry>& entries() const { return entries_; }

  // Updates all: the host waits for the gradients, behind what the current stream was given, and the current stream for
  // the weights.
  void run(const Update& update);

  // What the pinned buffers take.
  int64_t staging_bytes() const;
  size_t num_chunks() const { return chunks_.size(); }

 private:
  // A run of an entry's elements. part says which, for rules that ask where elements lie.
  struct Piece {
    size_t rule;
    OwnedPart part;
    UpdateSlot slot;                     // grad, and model or master, are views of a buffer while it is updated
    bool is_weight_needed = false;       // the weight travels to the host too
    bool is_own_master = false;          // the weight is what the rule moves
    int64_t grad_at = 0, weight_at = 0;  // bytes from the beginning of the buffer
  };
  struct Chunk {
    std::vector<Piece> pieces;
    int64_t num_bytes = 0;
  };
  struct Buffer {
    explicit Buffer(at::Device device) : fetched(device), returned(device) {}
    at::Tensor bytes;
    StreamEvent fetched, returned;
    bool is_returning = false;
  };
  void cut_into_chunks(int64_t chunk_elements);
  void add_piece(const Entry& entry, int64_t begin, int64_t end);
  Buffer& buffer_of(size_t chunk) { return buffers_[chunk % buffers_.size()]; }
  void fetch(size_t chunk);
  void update_chunk(size_t chunk, const Update& update);
  void give_back(size_t chunk);

  at::Device device_;
  c10::Stream to_host_, to_device_;
  std::vector<Entry> entries_;
  std::vector<Chunk> chunks_;
  std::vector<Buffer> buffers_;
};

}  // namespace megalith
