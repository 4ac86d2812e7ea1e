// Parameter: a rank's tensor with its Placement, its gradient buffer, and the count of contributions it waits for.
//
// Every gradient goes through the Parameter into a buffer of a wider dtype (fp32; fp64 for fp64 models); autograd's own
// .grad is not used. Autograd Functions take value() as an input, so that the graph knows the dependency, save the
// Parameter (never its tensor), and return no gradient for it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nn/placement.h"
#include "ops/kernels.h"

namespace megalith {

class Group;
class PackedWeight;  // nn/packed_weight.h

// How initial values are drawn: by (seed, canonical name, index in the canonical tensor), so any slice comes out the
// same on whatever rank holds it.
struct Init {
  enum class Kind { kNormal, kConstant, kUniform } kind = Kind::kNormal;
  double value = 0.02;  // standard deviation, the constant, or the bound on both sides of 0

  static Init normal(double std) { return {Kind::kNormal, std}; }
  static Init constant(double value) { return {Kind::kConstant, value}; }
  static Init uniform(double bound) { return {Kind::kUniform, bound}; }
};

// What a parameter is to its model, for whoever treats parameters differently by it (optim/update_rule.h).
enum class ParameterRole {
  kVector,     // weights of norms, biases: elements act one by one
  kMatrix,     // weights of linear layers and experts; a fused one holds several (see Placement)
  kQkv,        // the queries', keys' and values' matrices in one
  kRouter,     // scores of experts
  kEmbedding,  // a row a token or a position; also where it serves as the head
  kHead,
};

// For a frozen matrix whose values are held in four bits (nn/packed_weight.h).
struct WeightPacking {
  // The ranks with the other parts of these matrices, which are as large; null: all of them is here. Outlives the
  // parameter.
  Group* ranks = nullptr;
  int cut_dim = 0;  // of a matrix, along which it is cut over them: 0, its rows, or 1
  Kernels kernels = Kernels::kFused;
};

struct ParameterOptions {
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;  // kMeta: shape only, no storage
  Init init;
  bool is_trainable = true;
  double decay_mult = 1;  // weight decay multiplier: 0 for norms and biases
  ParameterRole role = ParameterRole::kVector;
  bool is_adapter = false;  // beside the model's own weights, which may be frozen (nn/low_rank_adapter.h)
  std::optional<WeightPacking> packing = std::nullopt;  // never trainable then
};

class Parameter {
 public:
  // name: unique in this rank's model ("model.layers.0.self_attn.qkv_proj.weight").
  Parameter(std::string name, Placement placement, const ParameterOptions& options);
  Parameter(const Parameter&) = delete;
  ~Parameter();

  const std::string& name() const { return name_; }
  const Placement& placement() const { return placement_; }
  const ParameterOptions& options() const { return options_; }
  bool is_trainable() const { return options_.is_trainable; }
  void set_trainable(bool trainable);

  // Files may carry the tensors whose canonical names begin with `prefix` without it: Placement gets these aliases.
  void add_aliases_without(std::string_view prefix);
  // The same for other names of a tensor by its canonical one.
  void add_aliases(const std::function<std::vector<std::string>(const std::string& name)>& names_of);

  // The local tensor, an autograd leaf that requires a gradient when trainable. Packed: only its shape, dtype and
  // device.
  const at::Tensor& value() const { return value_; }
  // The same storage without autograd, to read into and to update. InternalError when packed.
  at::Tensor data() const;

  bool is_packed() const { return packed_ != nullptr; }
  // What products read: data(), or what is packed, computed anew in memory of its own.
  at::Tensor unpacked() const;
  // The values from now on: of the local shape, the parameter's dtype and device. All ranks of the packing at once.
  void pack(const at::Tensor& values);
  // What is held of the value on this rank.
  int64_t num_bytes() const;

  // Moves the value, contents kept, into memory of the same shape, dtype and device: a view of a larger buffer. value()
  // stays the same autograd leaf; what data() gave before is no longer the parameter's.
  void rebind(const at::Tensor& memory);

  // The value lies in this memory from now on (local shape, the parameter's dtype); nothing is copied. FSDP empties and
  // refills the memory's storage: while it is empty only the shape may be asked for.
  void place_in(const at::Tensor& memory);

  // Fills data(), or packs, by options().init; padding becomes zero.
  void initialise(uint64_t seed);

  // ---- gradient ----
  at::ScalarType grad_dtype() const { return value_.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }
  // Local shape, grad_dtype(); a view of a bucket. Not for frozen parameters.
  void attach_grad_buffer(at::Tensor buffer);
  // A contribution that comes afterwards is an InternalError.
  void detach_grad_buffer() { grad_.reset(); }
  bool has_grad_buffer() const { return grad_.defined(); }
  const at::Tensor& grad() const { return grad_; }

  // A new step: the buffer's content is void, the first contribution overwrites it.
  void begin_step();
  // A forward pass will send one gradient (called by the Functions when a graph is built, not by recomputed forwards).
  void expect_contribution() { ++num_expected_; }
  // Contributions are coming that will be announced in backward only (nn/recompute.h): until as many releases the
  // parameter is not ready. A release that comes last acts as the last contribution does.
  void hold() { ++num_expected_; }
  void release();

  // Where a kernel sums this contribution: overwrite when !accumulate. Marks the buffer as holding a gradient.
  struct GradTarget {
    at::Tensor buffer;
    bool accumulate;
  };
  GradTarget open_grad();
  // The contribution is complete; calls the ready hook when it was the last expected one of the last microbatch.
  void close_grad();
  // open, copy or add (any floating dtype, local shape), close.
  void add_grad(const at::Tensor& gradient);
  // Without contributions in this step the buffer is zeroed. Called for every parameter at the end of the step.
  void finish_step();

  bool is_grad_empty() const { return is_grad_empty_; }
  void set_last_microbatch(bool is_last) { is_last_microbatch_ = is_last; }
  void set_ready_hook(std::function<void(Parameter&)> hook) { ready_hook_ = std::move(hook); }

 private:
  std::string name_;
  Placement placement_;
  ParameterOptions options_;
  at::Tensor value_, grad_;
  std::unique_ptr<PackedWeight> packed_;  // null: value_ has the values
  bool is_grad_empty_ = true, is_last_microbatch_ = true;
  int64_t num_expected_ = 0, num_arrived_ = 0;
  std::function<void(Parameter&)> ready_hook_;
};

}  // namespace megalith
