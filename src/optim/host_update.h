// CPU updates of device parts (optimizer_cpu_offload): masters and moments are in pageable host memory; gradients and
// updated weights travel in chunks through pinned buffers:
//
//   to the host    | gradients 0 | gradients 1 | gradients 2 |
//   CPU                          | update 0    | update 1    | update 2   |
//   to the device                              | weights 0   | weights 1  | weights 2 |
//
// Without overlap: one chunk at a time, one buffer. A weight that the rule needs (as its own master, with a remainder,
// or without master) travels with its gradient: the device's value is authoritative. Source of the idea: Ren et al.
// 2021 (ZeRO-Offload), arXiv:2101.06840.
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
  // 64 MiB of fp32 gradients.
  static constexpr int64_t kChunkElements = int64_t{1} << 24;

  // A part: grad and model on the device, the rest on the host.
  struct Entry {
    size_t rule;
    UpdateSlot slot;
  };
  // Updates host slots of one rule.
  using Update = std::function<void(size_t rule, std::span<UpdateSlot> slots)>;

  // entries  of element-wise rules; parts must outlive this. A slot without a master has any weight it needs in
  //          `model`.
  HostUpdate(at::Device device, std::vector<Entry> entries, bool overlap, int64_t chunk_elements = kChunkElements);
  ~HostUpdate();
  HostUpdate(const HostUpdate&) = delete;

  const std::vector<Entry>& entries() const { return entries_; }

  // Updates everything: the host waits for gradients, the current stream for weights.
  void run(const Update& update);

  int64_t staging_bytes() const;
  size_t num_chunks() const { return chunks_.size(); }

 private:
  // A run of an entry's elements; `part` serves rules that need positions.
  struct Piece {
    size_t rule;
    OwnedPart part;
    UpdateSlot slot;                // grad, and model or master, view a buffer during the update
    bool is_weight_needed = false;  // on the host
    bool is_own_master = false;     // the rule updates the weight itself
    int64_t grad_at = 0, weight_at = 0;
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
