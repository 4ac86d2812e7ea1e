#include "device/storage_watch.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace megalith {

struct StorageWatch::State {
  using Weak = c10::weak_intrusive_ptr<c10::StorageImpl>;
  struct Seen {
    Weak storage;  // prevents address reuse
    int64_t bytes;
  };
  std::unordered_map<const c10::StorageImpl*, Seen> own;
  std::unordered_map<const c10::StorageImpl*, Weak> from_before;
  int64_t peak_bytes = 0;
  at::CallbackHandle callback{};
  State* outer = nullptr;

  int64_t live_bytes() {
    int64_t bytes = 0;
    std::erase_if(own, [&](const auto& entry) {
      const bool is_alive = !entry.second.storage.expired();
      if (is_alive) bytes += entry.second.bytes;
      return !is_alive;
    });
    return bytes;
  }

  void see_input(const at::Tensor& tensor) {
    if (!tensor.is_meta() || !tensor.has_storage()) return;
    const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
    if (!own.contains(storage)) from_before.try_emplace(storage, tensor.storage().getWeakStorageImpl());
  }
  void see_output(const at::Tensor& tensor) {
    if (!tensor.is_meta() || !tensor.has_storage()) return;
    const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
    if (from_before.contains(storage)) return;
    own.try_emplace(storage,
                    Seen{tensor.storage().getWeakStorageImpl(), static_cast<int64_t>(tensor.storage().nbytes())});
  }
};

namespace {

// Observers are plain functions, without state.
thread_local void* newest_watch = nullptr;

template <typename Visit>
void for_each_tensor(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) for_each_tensor(element, visit);
  } else if (value.isTuple()) {
    for (const c10::IValue& element : value.toTupleRef().elements()) for_each_tensor(element, visit);
  }
}

}  // namespace

StorageWatch::StorageWatch() : state_(std::make_unique<State>()) {
  state_->outer = static_cast<State*>(std::exchange(newest_watch, state_.get()));
  const auto start = [](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
    auto* state = static_cast<State*>(newest_watch);
    for (const c10::IValue& value : function.inputs()) {
      for_each_tensor(value, [&](const at::Tensor& tensor) { state->see_input(tensor); });
    }
    return nullptr;
  };
  const auto end = [](const at::RecordFunction& function, at::ObserverContext* /*context*/) {
    auto* state = static_cast<State*>(newest_watch);
    for (const c10::IValue& value : function.outputs()) {
      for_each_tensor(value, [&](const at::Tensor& tensor) { state->see_output(tensor); });
    }
    state->peak_bytes = std::max(state->peak_bytes, state->live_bytes());
  };
  state_->callback = at::addThreadLocalCallback(
      at::RecordFunctionCallback(start, end).needsInputs(true).needsOutputs(true).scopes({at::RecordScope::FUNCTION}));
}

StorageWatch::~StorageWatch() {
  at::removeCallback(state_->callback);
  newest_watch = state_->outer;
}

int64_t StorageWatch::live_bytes() const { return state_->live_bytes(); }
int64_t StorageWatch::peak_bytes() const { return state_->peak_bytes; }

}  // namespace megalith
