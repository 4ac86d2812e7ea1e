// Measures the memory of a computation on the meta device: the bytes that storages made by this thread would take, now
// and at the peak. Counted are results of LibTorch's operators, views of one storage once; not earlier tensors, such as
// parameters, nor the workspace of real kernels.
#pragma once

#include <cstdint>
#include <memory>

namespace megalith {

class StorageWatch {
 public:
  // Watches until destroyed. Only the newest in a thread sees anything.
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
