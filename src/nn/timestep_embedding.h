// A number as sines and cosines, then two linear layers.
//
//   a_i = 1000 t exp(-ln(10000) i / (c / 2)), i < c / 2;  embedding = [cos a | sin a]
//   vec = Linear(SiLU(Linear(embedding)))
//
// Sources: arXiv:1706.03762, section 3.5; arXiv:2006.11239, appendix B.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "nn/linear.h"
#include "nn/module.h"

namespace megalith {

// t (b) fp32 or fp64 -> (b, channels) in `dtype`; angles in t's. channels is even.
at::Tensor timestep_embedding(const at::Tensor& t, int64_t channels, at::ScalarType dtype);

// Whole on every rank.
class VectorEmbedding : public Module {
 public:
  // name: of `.linear_1` and `.linear_2`.
  VectorEmbedding(const LayerContext& context, const std::string& name, int64_t in_features, int64_t hidden,
                  double init_std);

  // (b, in_features) -> (b, hidden)
  at::Tensor forward(const at::Tensor& x);

 protected:
  CostShape shape_of(const Module& /*child*/, const CostShape& shape) const override { return {.b = shape.b, .s = 1}; }

 private:
  Linear first_, second_;
};

}  // namespace megalith
