// Measures memory on the meta device: storages made by this thread's operators. Excludes earlier tensors (parameters)
// and real kernels' workspace.
#pragma once

#include <cstdint>
#include <memory>

namespace megalith {

class StorageWatch {
 public:
  // Only a thread's newest watch counts.
  StorageWatch();
  ~StorageWatch();
  StorageWatch(const StorageWatch&) = delete;
  StorageWatch& operator=(const StorageWatch&) = delete;

  int64_t live_bytes() const;
  int64_t peak_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace megalith
