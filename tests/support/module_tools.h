// For tests of modules: canonical tensors in and out through Placement, and gradient buffers.
#pragma once

#include <ATen/ATen.h>

#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <string>

#include "nn/module.h"

namespace megalith::test {

using TensorMap = std::map<std::string, at::Tensor>;  // by canonical name

inline at::Tensor box_view(at::Tensor tensor, const Box& box) {
  for (size_t d = 0; d < box.offset.size(); ++d) {
    tensor = tensor.narrow(static_cast<int64_t>(d), box.offset[d], box.extent[d]);
  }
  return tensor;
}

// Copies what a module holds (its values, gradients, …) into whole canonical tensors; those not there yet are made,
// filled with NaN, so that elements that no module holds show.
inline void collect(const Module& module, const std::function<at::Tensor(Parameter&)>& what, TensorMap& into) {
  module.for_each_parameter([&](Parameter& parameter) {
    const at::Tensor local = what(parameter);
    if (!local.defined()) return;
    for (const Piece& piece : parameter.placement().pieces) {
      at::Tensor& whole = into[piece.name];
      if (!whole.defined()) whole = at::full(piece.shape, std::numeric_limits<double>::quiet_NaN(), local.options());
      at::Tensor part = box_view(local, piece.local);
      box_view(whole, piece.canonical).copy_(piece.is_transposed ? part.transpose(-2, -1) : part);
    }
  });
}
inline TensorMap values_of(const Module& module) {
  TensorMap map;
  collect(
      module, [](Parameter& parameter) { return parameter.unpacked(); }, map);
  return map;
}
inline TensorMap gradients_of(const Module& module) {
  TensorMap map;
  collect(
      module, [](Parameter& parameter) { return parameter.grad(); }, map);
  return map;
}

// Fills a module from whole canonical tensors, rounding to its dtype.
inline void load(const Module& module, const TensorMap& map) {
  module.for_each_parameter([&](Parameter& parameter) {
    const bool is_packed = parameter.is_packed();
    const at::Tensor local =
        is_packed ? at::zeros(parameter.value().sizes(), parameter.value().options()) : parameter.data();
    for (const Piece& piece : parameter.placement().pieces) {
      const at::Tensor part = box_view(map.at(piece.name), piece.canonical);
      box_view(local, piece.local).copy_(piece.is_transposed ? part.transpose(-2, -1) : part);
    }
    if (is_packed) parameter.pack(local);
  });
}

// Gives every trainable parameter a buffer of NaN, so that a gradient added to void content shows.
inline void attach_gradients(const Module& module) {
  module.for_each_parameter([](Parameter& parameter) {
    if (!parameter.is_trainable()) return;
    parameter.attach_grad_buffer(at::full(parameter.value().sizes(), std::numeric_limits<double>::quiet_NaN(),
                                          at::TensorOptions().dtype(parameter.grad_dtype())));
    parameter.begin_step();
  });
}

// In [-1, 1), a function of tensor number and element: reference models are filled alike anywhere (SplitMix64).
inline double unit_value(uint64_t tensor, uint64_t element) {
  uint64_t z = (tensor << 32) + element + 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  z ^= z >> 31;
  return static_cast<double>(z >> 11) * 0x1p-53 * 2 - 1;
}

// Canonical tensors of a module, numbered in byte order of their names: 0.2 u, and 1 + 0.2 u for the weights of norms.
inline TensorMap golden_weights(const Module& module, at::ScalarType dtype) {
  TensorMap map;
  module.for_each_parameter([&](Parameter& parameter) {
    for (const Piece& piece : parameter.placement().pieces) map[piece.name] = at::empty(piece.shape, at::kDouble);
  });
  uint64_t number = 0;
  for (auto& [name, tensor] : map) {
    const bool is_norm = tensor.dim() == 1 && name.ends_with(".weight");
    double* out = tensor.mutable_data_ptr<double>();
    for (int64_t j = 0; j < tensor.numel(); ++j) {
      out[j] = (is_norm ? 1 : 0) + 0.2 * unit_value(number, static_cast<uint64_t>(j));
    }
    tensor = tensor.to(dtype);
    ++number;
  }
  return map;
}

// max|a - b| / max|b|; infinity when shapes differ or a is not finite.
inline double relative_difference(const at::Tensor& a, const at::Tensor& b) {
  constexpr double kWrong = std::numeric_limits<double>::infinity();
  if (a.sizes() != b.sizes()) return kWrong;
  if (b.numel() == 0) return 0;
  const double difference = (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
  if (!std::isfinite(difference)) return kWrong;
  const double scale = b.to(at::kDouble).abs().max().item<double>();
  return scale == 0 ? difference : difference / scale;
}

}  // namespace megalith::test
