// Layers of networks that are only read: the encoders of an image model, whose weights no run changes. They are plain
// ATen calls, without a Placement over ranks and without gradients; whoever calls them has autograd switched off.
//
// Parameters carry the names that files have, so that a network is loaded like any other (checkpoint/load_store.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "nn/module.h"

namespace megalith {

struct FrozenContext {
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;  // kMeta: shapes only
};

class FrozenModule : public Module {
 protected:
  // A weight of this name and shape, which a file fills.
  Parameter& add_weight(const FrozenContext& context, const std::string& name, std::vector<int64_t> shape);
};

// Each has `name`.weight and `name`.bias.

class FrozenLinear : public FrozenModule {
 public:
  FrozenLinear(const FrozenContext& context, const std::string& name, int64_t in, int64_t out);
  at::Tensor forward(const at::Tensor& x) const;  // (…, in) -> (…, out)

 private:
  Parameter *weight_, *bias_;
};

class FrozenConv : public FrozenModule {
 public:
  // kernel is square; padding is added at all four sides.
  FrozenConv(const FrozenContext& context, const std::string& name, int64_t in, int64_t out, int64_t kernel,
             int64_t stride = 1, int64_t padding = 0);
  at::Tensor forward(const at::Tensor& x) const;  // (b, in, h, w) -> (b, out, h', w')

 private:
  Parameter *weight_, *bias_;
  int64_t stride_, padding_;
};

// Statistics over the channels of a group and all positions.
class FrozenGroupNorm : public FrozenModule {
 public:
  FrozenGroupNorm(const FrozenContext& context, const std::string& name, int64_t channels, int64_t groups,
                  double epsilon);
  at::Tensor forward(const at::Tensor& x) const;  // (b, channels, …)

 private:
  Parameter *weight_, *bias_;
  int64_t groups_;
  double epsilon_;
};

class FrozenLayerNorm : public FrozenModule {
 public:
  FrozenLayerNorm(const FrozenContext& context, const std::string& name, int64_t width, double epsilon);
  at::Tensor forward(const at::Tensor& x) const;  // (…, width)

 private:
  Parameter *weight_, *bias_;
  int64_t width_;
  double epsilon_;
};

// A table of vectors; has only `name`.weight.
class FrozenTable : public FrozenModule {
 public:
  FrozenTable(const FrozenContext& context, const std::string& name, int64_t rows, int64_t width);
  at::Tensor forward(const at::Tensor& ids) const;  // (…) int64 -> (…, width)

 private:
  Parameter* weight_;
};

}  // namespace megalith
