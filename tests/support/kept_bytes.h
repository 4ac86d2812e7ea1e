// Bytes that a layer holds between its forward and its backward pass, counted on the meta device.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "device/storage_watch.h"

namespace megalith::test {

// run(x) is the forward pass of a layer on the meta device for an x of this shape and dtype, which counts where the
// layer keeps it; what it gives does not, unless the layer keeps it.
template <typename Run>
int64_t kept_bytes(const std::vector<int64_t>& shape, at::ScalarType dtype, const Run& run) {
  const StorageWatch watch;
  at::Tensor end;
  {
    // No leaf, which the graph would hold.
    const at::Tensor leaf = at::empty({1}, at::TensorOptions(at::kMeta).dtype(dtype)).set_requires_grad(true);
    end = run(leaf.expand(shape).contiguous()).sum();
  }
  return watch.live_bytes() - static_cast<int64_t>(end.nbytes() + c10::elementSize(dtype));  // the leaf
}

}  // namespace megalith::test
