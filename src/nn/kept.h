// What a layer keeps of a tensor between forward and backward, as a value: the tensor itself, or a way to have it again
// (computed from what else is kept, read from a low-precision copy, fetched from host memory).
//
// An activation travels with what is to be kept of it, so whoever makes it decides (SelectiveRecompute, a recipe), and
// who needs it in backward asks get() without knowing which it is:
//
//   Activation{y}                                                    whoever keeps y keeps the tensor
//   Activation{y, Kept::computed([x] { return act(x.get()); })}      whoever keeps y keeps x, and y is computed again
//
// Copies share one source. What a source has computed it keeps until its last holder has dropped it, so two layers that
// read one recomputed tensor compute it once; a node of the graph takes its Kept in backward (std::exchange, take()),
// because the node itself lives until the whole backward pass is done.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace megalith {

class Kept {
 public:
  Kept() = default;  // nothing
  // The tensor itself, without its graph. Nothing, when it is undefined. InternalError in get() when the tensor was
  // changed in place since.
  explicit Kept(const at::Tensor& tensor);
  // Computed when it is asked for, without recording a graph and at most once; what `compute` holds is dropped then.
  static Kept computed(std::function<at::Tensor()> compute);
  // num_results tensors that one computation gives.
  static std::vector<Kept> computed(size_t num_results, std::function<std::vector<at::Tensor>()> compute);

  bool is_defined() const { return source_ != nullptr; }
  // Whether get() takes more than a look: what it gives is not there as such.
  bool is_computed() const;
  // Undefined when nothing is kept.
  at::Tensor get() const;
  // The same, and nothing is kept any more.
  at::Tensor take() { return std::exchange(*this, Kept()).get(); }
  // What `change` makes of the tensor, computed when it is asked for.
  Kept then(std::function<at::Tensor(const at::Tensor&)> change) const;

 private:
  struct Source;
  explicit Kept(std::shared_ptr<Source> source, size_t result = 0) : source_(std::move(source)), result_(result) {}

  std::shared_ptr<Source> source_;
  size_t result_ = 0;
};

// A tensor between two layers, and what is to be kept of it.
struct Activation {
  // Implicit: a tensor is an activation that is kept as it is.
  Activation(at::Tensor tensor) : value(std::move(tensor)) {}  // NOLINT(google-explicit-constructor)
  Activation(at::Tensor tensor, Kept what) : value(std::move(tensor)), kept(std::move(what)) {}

  // What a layer holds that needs the tensor in backward.
  Kept keep() const { return kept.is_defined() ? kept : Kept(value); }

  at::Tensor value;
  Kept kept;  // nothing: the value itself
};

}  // namespace megalith
