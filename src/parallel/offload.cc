#include "parallel/offload.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace megalith {

struct HostOffload::Entry {
  std::vector<at::Tensor> host, device;  // device: once being fetched
  StreamEvent fetched;
  bool is_fetched = false;
};

struct HostOffload::Shared {
  explicit Shared(at::Device where) : device(where), copies(side_stream(where)) {}

  bool is_accelerator() const { return !device.is_cpu(); }

  void fetch(Entry& entry) {
    if (entry.is_fetched) return;
    entry.is_fetched = true;
    const StreamScope scope(copies);
    // After the copy to the host, on the same stream.
    for (const at::Tensor& host : entry.host) {
      entry.device.push_back(at::empty(host.sizes(), host.options().device(device).pinned_memory(false)));
      entry.device.back().copy_(host, /*non_blocking=*/true);
    }
    entry.fetched.record(copies);
  }

  void remove(const std::shared_ptr<Entry>& entry) {
    for (const at::Tensor& host : entry->host) host_bytes -= static_cast<int64_t>(host.nbytes());
    entry->host.clear();
    entries.remove(entry);
  }

  at::Device device;
  c10::Stream copies;
  std::list<std::shared_ptr<Entry>> entries;  // in stored order
  int64_t host_bytes = 0, peak_host_bytes = 0;
};

HostOffload::HostOffload(at::Device device) : shared_(std::make_shared<Shared>(device)) {}
HostOffload::~HostOffload() = default;

std::function<std::vector<at::Tensor>()> HostOffload::store(const std::vector<at::Tensor>& tensors) {
  Shared& shared = *shared_;
  auto entry = std::make_shared<Entry>(Entry{{}, {}, StreamEvent(shared.device), false});
  StreamEvent computed(shared.device);
  computed.record(current_stream(shared.device));
  computed.make_wait(shared.copies);
  {
    const StreamScope scope(shared.copies);
    for (const at::Tensor& tensor : tensors) {
      at::Tensor host =
          at::empty(tensor.sizes(), tensor.options().device(at::kCPU).pinned_memory(shared.is_accelerator()));
      host.copy_(tensor, /*non_blocking=*/true);
      // Freed once the copy is done, not with the last reference.
      if (shared.is_accelerator()) tensor.record_stream(shared.copies);
      shared.host_bytes += static_cast<int64_t>(host.nbytes());
      entry->host.push_back(std::move(host));
    }
  }
  shared.peak_host_bytes = std::max(shared.peak_host_bytes, shared.host_bytes);
  shared.entries.push_back(entry);

  // Removes the entry even if the graph is dropped without backward.
  struct Handle {
    std::shared_ptr<Shared> shared;
    std::shared_ptr<Entry> entry;
    Handle(std::shared_ptr<Shared> s, std::shared_ptr<Entry> e) : shared(std::move(s)), entry(std::move(e)) {}
    Handle(const Handle&) = delete;
    ~Handle() {
      if (entry) shared->remove(entry);
    }
  };
  auto handle = std::make_shared<Handle>(shared_, entry);
  return [handle] {
    MEGALITH_CHECK(handle->entry != nullptr, "offloaded activations were asked for twice");
    Shared& shared = *handle->shared;
    const std::shared_ptr<Entry> entry = std::exchange(handle->entry, nullptr);
    shared.fetch(*entry);
    const auto place = std::find(shared.entries.begin(), shared.entries.end(), entry);
    // On the stream after this entry's own copy, overlapping this layer's recomputation.
    if (place != shared.entries.begin()) shared.fetch(**std::prev(place));
    const c10::Stream current = current_stream(shared.device);
    entry->fetched.make_wait(current);
    if (shared.is_accelerator()) {
      for (const at::Tensor& tensor : entry->device) tensor.record_stream(current);
    }
    shared.remove(entry);
    return std::move(entry->device);
  };
}

int64_t HostOffload::host_bytes() const { return shared_->host_bytes; }
int64_t HostOffload::peak_host_bytes() const { return shared_->peak_host_bytes; }

}  // namespace megalith
