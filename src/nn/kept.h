// A tensor kept from forward to backward, or how to get it back (recomputed, from a low-precision copy, from the host).
// Its producer decides; consumers call get():
//
//   Activation{y}                                                    consumers keep y
//   Activation{y, Kept::computed([x] { return act(x.get()); })}      consumers keep x, and y is computed again
//
// Copies share a source: a tensor is recomputed once, and held until the last is dropped. Backward must take a node's
// Kept (std::exchange, take()): nodes outlive it.
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
  Kept() = default;
  // Detached. get() throws InternalError if the tensor changed in place since.
  explicit Kept(const at::Tensor& tensor);
  // On demand, once, without a graph; then drops what `compute` holds.
  static Kept computed(std::function<at::Tensor()> compute);
  static std::vector<Kept> computed(size_t num_results, std::function<std::vector<at::Tensor>()> compute);

  bool is_defined() const { return source_ != nullptr; }
  // get() must compute.
  bool is_computed() const;
  // Undefined if empty.
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
  // Implicit.
  Activation(at::Tensor tensor) : value(std::move(tensor)) {}  // NOLINT(google-explicit-constructor)
  Activation(at::Tensor tensor, Kept what) : value(std::move(tensor)), kept(std::move(what)) {}

  Kept keep() const { return kept.is_defined() ? kept : Kept(value); }

  at::Tensor value;
  Kept kept;
};

}  // namespace megalith
