// Memory of tensors without memory: which storages of the meta device were made on this thread since, how many bytes
// those that still live would take, and how many it was at most.
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
  // Watches until it is destroyed. Of several on one thread only the newest sees anything.
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
