// Parameter: a rank's tensor with its Placement, gradient buffer, and count of pending contributions.
//
// Gradients are computed in a wider dtype (fp32; fp64 for fp64 models) and added to a buffer of that dtype, or of bf16
// (narrow_grad); autograd's .grad is not used. Autograd Functions take value() as an input, so that the graph knows the
// dependency, save the Parameter (never its tensor), and return no gradient for it.
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
class PackedWeight;
struct PackedShare;

// Drawn by (seed, canonical name, canonical index): layouts agree.
struct Init {
  enum class Kind { kNormal, kConstant, kUniform } kind = Kind::kNormal;
  double value = 0.02;  // deviation, constant, or bound around 0

  static Init normal(double std) { return {Kind::kNormal, std}; }
  static Init constant(double value) { return {Kind::kConstant, value}; }
  static Init uniform(double bound) { return {Kind::kUniform, bound}; }
};

enum class ParameterRole {
  kVector,  // elementwise: norm weights, biases
  kMatrix,  // of linears and experts; may fuse several
  kQkv,     // q, k and v matrices in one
  kRouter,
  kEmbedding,  // a row per token or position, even if tied
  kHead,
};

// For frozen matrices (nn/packed_weight.h).
struct WeightPacking {
  // Ranks with the matrices' other, equal parts; null: none. Must outlive the parameter.
  Group* ranks = nullptr;
  int cut_dim = 0;  // the matrix dim cut over them
  Kernels kernels = Kernels::kFused;
};

struct ParameterOptions {
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;  // kMeta: no storage
  Init init;
  bool is_trainable = true;
  double decay_mult = 1;  // of weight decay: 0 for norms and biases
  ParameterRole role = ParameterRole::kVector;
  bool is_of_vocabulary = false;  // the embedding of tokens, and the head's weight
  bool is_adapter = false;  // beside the model's own weights, which may be frozen (nn/low_rank_adapter.h)
  std::optional<WeightPacking> packing = std::nullopt;
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

  // For files that omit `prefix`.
  void add_aliases_without(std::string_view prefix);
  void add_aliases(const std::function<std::vector<std::string>(const std::string& name)>& names_of);

  // An autograd leaf. Packed: only shape, dtype and device.
  const at::Tensor& value() const { return value_; }
  // Without autograd. InternalError when packed.
  at::Tensor data() const;

  bool is_packed() const { return packed_ != nullptr; }
  // data(), or freshly unpacked.
  at::Tensor unpacked() const;
  // values: local shape, the parameter's dtype and device. Collective over the packing's ranks.
  void pack(const at::Tensor& values);
  int64_t num_bytes() const;

  // What ranks may share out: the value, or a packed one's bytes (PackedWeight::bytes()).
  at::Tensor stored() const;
  // Uses this memory for stored(), as place_in().
  void place_stored_in(const at::Tensor& memory, PackedShare share);

  // Moves the value into memory of the same shape, dtype and device. value() stays the same leaf; earlier data() is
  // detached from the parameter.
  void rebind(const at::Tensor& memory);

  // Uses this memory (local shape, the parameter's dtype) without copying. FSDP empties and refills its storage;
  // meanwhile only the shape may be read.
  void place_in(const at::Tensor& memory);

  // By options().init; zeroes padding.
  void initialise(uint64_t seed);

  // ---- gradient ----
  // Of a contribution, and of the update.
  at::ScalarType wide_dtype() const { return value_.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }
  at::ScalarType grad_dtype() const { return has_narrow_grad_ ? at::kBFloat16 : wide_dtype(); }
  // A 16-bit parameter's buffer is bf16 from here on: a contribution is computed in fp32, added to the buffer's value
  // in fp32, and the sum rounded once. Call it before a buffer is attached.
  void narrow_grad();
  // Local shape, grad_dtype(); a view of a bucket. Not for frozen parameters.
  void attach_grad_buffer(at::Tensor buffer);
  // Later contributions are InternalErrors.
  void detach_grad_buffer() { grad_.reset(); }
  bool has_grad_buffer() const { return grad_.defined(); }
  // Attaches a buffer when a gradient comes and there is none.
  void set_open_hook(std::function<void()> hook) { open_hook_ = std::move(hook); }
  const at::Tensor& grad() const { return grad_; }

  // The first contribution will overwrite the buffer.
  void begin_step();
  // Called when a graph is built, not in recomputed forwards.
  void expect_contribution() { ++num_expected_; }
  // Delays readiness for contributions announced only in backward (recompute.h), until release(), which may act as the
  // last one.
  void hold() { ++num_expected_; }
  void release();

  // Memory of wide_dtype() to add a contribution to, or to overwrite if !accumulate: the buffer, or beside a narrow one
  // memory of its own until land_grad().
  struct GradTarget {
    at::Tensor buffer;
    bool accumulate;
  };
  GradTarget open_grad();
  // The contribution is written, and narrow buffers take it.
  void land_grad();
  // As open_grad() and land_grad(), for a contribution that the device adds by itself.
  void mark_grad() { is_grad_empty_ = false; }
  // Lands the contribution and counts it; the last expected one of the last microbatch calls the ready hook.
  void close_grad();
  // gradient: any floating dtype, local shape.
  void add_grad(const at::Tensor& gradient);
  // Zeroes the buffer if nothing contributed in this step.
  void finish_step();

  bool is_grad_empty() const { return is_grad_empty_; }
  void set_last_microbatch(bool is_last) { is_last_microbatch_ = is_last; }
  void set_ready_hook(std::function<void(Parameter&)> hook) { ready_hook_ = std::move(hook); }

 private:
  at::Tensor no_value(const at::TensorOptions& options) const;

  std::string name_;
  Placement placement_;
  ParameterOptions options_;
  at::Tensor value_, grad_, landing_;
  std::unique_ptr<PackedWeight> packed_;
  bool has_narrow_grad_ = false, is_grad_empty_ = true, is_last_microbatch_ = true;
  int64_t num_expected_ = 0, num_arrived_ = 0;
  std::function<void()> open_hook_;
  std::function<void(Parameter&)> ready_hook_;
};

}  // namespace megalith
