// Measures the memory of a computation that runs on the meta device, which allocates none: how many bytes the storages
// that this thread has made since would take, those that still live, and the most at any time.
//
// On the meta device operators run for their shapes only, so a forward and backward pass of a model of any size takes
// milliseconds. What the watch sees are the results of LibTorch's operators, views of one storage once; tensors from
// before, such as parameters, do not count. Nor does what a real kernel would need while it runs.
#pragma once

#include <cstdint>
#include <memory>

namespace megalith {

class StorageWatch {
 public:
  // Watches until it is destroyed. When a thread has several, only the newest sees anything.
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
