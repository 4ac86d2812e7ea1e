#include "optim/host_update.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "device/transfer.h"

namespace megalith {
namespace {

// Chunks arriving, being updated, returning.
constexpr size_t kBuffersOfOverlap = 3;
// Bytes.
constexpr int64_t kPlaceAlignment = 64;

int64_t place_after(int64_t& end, int64_t bytes) {
  const int64_t begin = end;
  end = (end + bytes + kPlaceAlignment - 1) / kPlaceAlignment * kPlaceAlignment;
  return begin;
}

int64_t bytes_of(int64_t count, const at::Tensor& like) { return count * static_cast<int64_t>(like.element_size()); }

// `like`'s elements in the buffer, 1-d.
at::Tensor place_of(const at::Tensor& buffer, int64_t at, const at::Tensor& like) {
  return buffer.narrow(0, at, bytes_of(like.numel(), like)).view(like.scalar_type());
}

}  // namespace

HostUpdate::HostUpdate(at::Device device, std::vector<Entry> entries, bool overlap, int64_t chunk_elements)
    : device_(device), to_host_(side_stream(device)), to_device_(side_stream(device)), entries_(std::move(entries)) {
  cut_into_chunks(chunk_elements);
  int64_t largest = 0;
  for (Chunk& chunk : chunks_) {
    largest = std::max(largest, chunk.num_bytes);
    // Rules identify parts by address, stable from here on.
    for (Piece& piece : chunk.pieces) piece.slot.part = &piece.part;
  }
  const size_t num_buffers = std::min(overlap ? kBuffersOfOverlap : size_t{1}, chunks_.size());
  for (size_t i = 0; i < num_buffers; ++i) {
    buffers_.emplace_back(device_);
    buffers_.back().bytes = empty_for_copies({largest}, at::kByte, device_);
  }
}

HostUpdate::~HostUpdate() = default;

void HostUpdate::add_piece(const Entry& entry, int64_t begin, int64_t end) {
  const UpdateSlot& whole = entry.slot;
  const auto taken = [&](const at::Tensor& x) {
    return x.defined() ? x.view({-1}).narrow(0, begin, end - begin) : at::Tensor();
  };
  const int64_t first = whole.part->range ? whole.part->range->begin : 0;
  Piece piece{.rule = entry.rule, .part = *whole.part, .slot = whole};
  piece.part.range = FlatRange{first + begin, first + end};
  piece.part.model = taken(whole.part->model);
  piece.part.grad = taken(whole.part->grad);
  piece.slot.master = taken(whole.master);
  piece.slot.remainder = taken(whole.remainder);
  for (at::Tensor& state : piece.slot.state) state = taken(state);
  piece.is_weight_needed = !whole.master.defined();
  piece.is_own_master = piece.is_weight_needed && whole.model.scalar_type() == whole.part->parameter->wide_dtype();
  Chunk& chunk = chunks_.back();
  piece.grad_at = place_after(chunk.num_bytes, bytes_of(end - begin, whole.grad));
  piece.weight_at = place_after(chunk.num_bytes, bytes_of(end - begin, whole.model));
  chunk.pieces.push_back(std::move(piece));
}

void HostUpdate::cut_into_chunks(int64_t chunk_elements) {
  int64_t room = 0;
  for (const Entry& entry : entries_) {
    const int64_t count = entry.slot.grad.numel();
    for (int64_t begin = 0; begin < count;) {
      if (room == 0) {
        chunks_.emplace_back();
        room = chunk_elements;
      }
      const int64_t end = std::min(count, begin + room);
      add_piece(entry, begin, end);
      room -= end - begin;
      begin = end;
    }
  }
}

void HostUpdate::fetch(size_t index) {
  Buffer& buffer = buffer_of(index);
  // A copy back may still read it; the CPU writes it next.
  if (std::exchange(buffer.is_returning, false)) buffer.returned.wait();
  const StreamScope scope(to_host_);
  for (Piece& piece : chunks_[index].pieces) {
    piece.slot.grad = place_of(buffer.bytes, piece.grad_at, piece.part.grad);
    piece.slot.grad.copy_(piece.part.grad, /*non_blocking=*/true);
    const at::Tensor weight = place_of(buffer.bytes, piece.weight_at, piece.part.model);
    (piece.is_own_master ? piece.slot.master : piece.slot.model) = weight;
    if (piece.is_own_master) piece.slot.model.reset();
    if (piece.is_weight_needed) weight.copy_(piece.part.model, /*non_blocking=*/true);
  }
  buffer.fetched.record(to_host_);
}

void HostUpdate::update_chunk(size_t index, const Update& update) {
  buffer_of(index).fetched.wait();
  std::vector<Piece>& pieces = chunks_[index].pieces;
  for (auto first = pieces.begin(); first != pieces.end();) {
    const auto last = std::find_if(first, pieces.end(), [&](const Piece& piece) { return piece.rule != first->rule; });
    std::vector<UpdateSlot> slots;
    for (auto piece = first; piece != last; ++piece) slots.push_back(piece->slot);
    update(first->rule, slots);
    first = last;
  }
}

void HostUpdate::give_back(size_t index) {
  Buffer& buffer = buffer_of(index);
  const StreamScope scope(to_device_);
  for (const Piece& piece : chunks_[index].pieces) {
    piece.part.model.copy_(piece.is_own_master ? piece.slot.master : piece.slot.model, /*non_blocking=*/true);
  }
  buffer.returned.record(to_device_);
  buffer.is_returning = true;
}

void HostUpdate::run(const Update& update) {
  const at::NoGradGuard no_grad;
  // Gradients are complete, this step's weights no longer in use.
  StreamEvent computed(device_);
  const c10::Stream current = current_stream(device_);
  computed.record(current);
  computed.make_wait(to_host_);
  computed.make_wait(to_device_);
  const size_t ahead = buffers_.size() > 1 ? 1 : 0;
  size_t next = 0;
  for (size_t index = 0; index < chunks_.size(); ++index) {
    while (next < chunks_.size() && next <= index + ahead) fetch(next++);
    update_chunk(index, update);
    give_back(index);
  }
  StreamEvent written(device_);
  written.record(to_device_);
  written.make_wait(current);
}

int64_t HostUpdate::staging_bytes() const {
  int64_t bytes = 0;
  for (const Buffer& buffer : buffers_) bytes += static_cast<int64_t>(buffer.bytes.nbytes());
  return bytes;
}

}  // namespace megalith
