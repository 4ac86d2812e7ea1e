// Layers of frozen networks, the encoders of an image model: plain ATen calls, without Placement or gradients; callers
// disable autograd. Parameters have the files' names, so any loader serves (checkpoint/load_store.h).
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
  Parameter& add_weight(const FrozenContext& context, const std::string& name, std::vector<int64_t> shape);
};

// Has `name`.weight and `name`.bias.

class FrozenLinear : public FrozenModule {
 public:
  FrozenLinear(const FrozenContext& context, const std::string& name, int64_t in, int64_t out);
  at::Tensor forward(const at::Tensor& x) const;  // (…, in) -> (…, out)

 private:
  Parameter *weight_, *bias_;
};

class FrozenConv : public FrozenModule {
 public:
  // Square kernel; padding on all four sides.
  FrozenConv(const FrozenContext& context, const std::string& name, int64_t in, int64_t out, int64_t kernel,
             int64_t stride = 1, int64_t padding = 0);
  at::Tensor forward(const at::Tensor& x) const;  // (b, in, h, w) -> (b, out, h', w')

 private:
  Parameter *weight_, *bias_;
  int64_t stride_, padding_;
};

// Statistics over a group's channels and all positions.
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

// Has only `name`.weight.
class FrozenTable : public FrozenModule {
 public:
  FrozenTable(const FrozenContext& context, const std::string& name, int64_t rows, int64_t width);
  at::Tensor forward(const at::Tensor& ids) const;  // (…) int64 -> (…, width)

 private:
  Parameter* weight_;
};

}  // namespace megalith
