// A tensor kept between forward and backward, or a way to get it back (recomputed, from a low-precision copy, from host
// memory). Its producer decides how an activation is kept (SelectiveRecompute, a recipe); consumers call get():
//
//   Activation{y}                                                    consumers keep y
//   Activation{y, Kept::computed([x] { return act(x.get()); })}      consumers keep x, and y is computed again
//
// Copies share a source, which holds its result until the last holder drops it, so a recomputed tensor is computed
// once. Nodes take their Kept out in backward (std::exchange, take()), because a node lives until the whole pass is
// done.
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
  // The tensor itself, detached; empty if undefined. get() throws InternalError if the tensor was changed in place
  // since.
  explicit Kept(const at::Tensor& tensor);
  // Computed on demand, without a graph and at most once; then drops what `compute` holds.
  static Kept computed(std::function<at::Tensor()> compute);
  static std::vector<Kept> computed(size_t num_results, std::function<std::vector<at::Tensor>()> compute);

  bool is_defined() const { return source_ != nullptr; }
  // True if get() must compute.
  bool is_computed() const;
  // Undefined if nothing is kept.
  at::Tensor get() const;
  at::Tensor take() { return std::exchange(*this, Kept()).get(); }
  Kept then(std::function<at::Tensor(const at::Tensor&)> change) const;

 private:
  struct Source;
  explicit Kept(std::shared_ptr<Source> source, size_t result = 0) : source_(std::move(source)), result_(result) {}

  std::shared_ptr<Source> source_;
  size_t result_ = 0;
};

struct Activation {
  // Implicit: a tensor is an activation kept as it is.
  Activation(at::Tensor tensor) : value(std::move(tensor)) {}  // NOLINT(google-explicit-constructor)
  Activation(at::Tensor tensor, Kept what) : value(std::move(tensor)), kept(std::move(what)) {}

  Kept keep() const { return kept.is_defined() ? kept : Kept(value); }

  at::Tensor value;
  Kept kept;
};

}  // namespace megalith
