#include "nn/parameter.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <limits>

#include "comm/distribution.h"
#include "core/error.h"
#include "core/philox.h"
#include "nn/packed_weight.h"
#include "ops/standard_normal/kernel.h"

namespace megalith {

namespace {

template <typename T>
T round_once(double value) {
  return static_cast<T>(value);
}

// Sets the last bit if inexact: rounding the float to 8 or 11 bits then equals rounding the double once.
float round_to_odd(double value) {
  const float nearest = static_cast<float>(value);
  const auto bits = std::bit_cast<uint32_t>(nearest);
  if (static_cast<double>(nearest) == value || (bits & 1u) != 0) return nearest;
  const bool is_farther_from_zero = std::abs(static_cast<double>(nearest)) > std::abs(value);
  return std::bit_cast<float>(is_farther_from_zero ? bits - 1 : bits + 1);
}

template <>
c10::BFloat16 round_once(double value) {
  return c10::BFloat16(round_to_odd(value));
}
template <>
c10::Half round_once(double value) {
  return c10::Half(round_to_odd(value));
}

// out[i * step] = scale * the draw of element first + i, rounded once.
template <typename T>
struct DrawnRun {
  uint64_t key, first;
  double scale;
  T* out;
  int64_t step, count;

  void fill(Init::Kind kind) const {
    if (kind == Init::Kind::kNormal) {
      if constexpr (std::is_same_v<T, double>) return fill_all_digits();
      return fill_normals();
    }
    for (int64_t i = 0; i < count; ++i) out[i * step] = round_once<T>(scale * (2 * uniform_at(key, index(i)) - 1));
  }

 private:
  uint64_t index(int64_t i) const { return first + static_cast<uint64_t>(i); }

  void fill_all_digits() const {
    for (int64_t i = 0; i < count;) {
      const std::array<double, 4> values = normals_of_block(key, index(i) / 4);
      for (uint64_t lane = index(i) % 4; lane < 4 && i < count; ++lane, ++i) out[i * step] = scale * values[lane];
    }
  }

  // Equal to the bit to normal_at(): where the approximation's error could change the rounding, it decides.
  void fill_normals() const {
    constexpr int64_t kBatch = 4 * ops::kNormalBlocks;
    auto* const approximate = MEGALITH_CPU_KERNEL(approximate_normals);
    double values[kBatch];
    for (int64_t i = 0; i < count;) {
      approximate(key, index(i) / 4, values);
      for (auto lane = static_cast<int64_t>(index(i) % 4); lane < kBatch && i < count; ++lane, ++i) {
        const double value = scale * values[lane], margin = ops::kNormalError * std::abs(value);
        const T least = round_once<T>(value - margin), most = round_once<T>(value + margin);
        out[i * step] = least == most ? least : round_once<T>(scale * normal_at(key, index(i)));
      }
    }
  }
};

// `local` is contiguous, on the CPU.
template <typename T>
void draw_piece(T* local, const std::vector<int64_t>& local_shape, const Piece& piece, const Init& init, uint64_t key) {
  const auto strides = [](const std::vector<int64_t>& shape) {
    std::vector<int64_t> result(shape.size(), 1);
    for (size_t d = shape.size(); d-- > 1;) result[d - 1] = result[d] * shape[d];
    return result;
  };
  const size_t dims = piece.shape.size();
  const std::vector<int64_t> canonical_stride = strides(piece.shape);
  std::vector<int64_t> local_stride = strides(local_shape), local_offset = piece.local.offset;
  if (piece.is_transposed) {
    std::swap(local_stride[dims - 2], local_stride[dims - 1]);
    std::swap(local_offset[dims - 2], local_offset[dims - 1]);
  }
  const int64_t row_elements = dims == 0 ? 1 : piece.canonical.extent[dims - 1];
  const int64_t step = dims == 0 ? 1 : local_stride[dims - 1];
  if (row_elements == 0) return;
  const int64_t num_rows = piece.canonical.num_elements() / row_elements;
  constexpr int64_t kFewestElements = 4096;  // of a thread
  at::parallel_for(0, num_rows, div_up(kFewestElements, row_elements), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      int64_t from = dims == 0 ? 0 : piece.canonical.offset[dims - 1] * canonical_stride[dims - 1];
      int64_t to = dims == 0 ? 0 : local_offset[dims - 1] * step;
      int64_t rest = row;
      for (size_t d = dims; d-- > 0;) {
        if (d + 1 == dims) continue;
        const int64_t index = rest % piece.canonical.extent[d];
        rest /= piece.canonical.extent[d];
        from += (piece.canonical.offset[d] + index) * canonical_stride[d];
        to += (local_offset[d] + index) * local_stride[d];
      }
      DrawnRun<T>{key, static_cast<uint64_t>(from), init.value, local + to, step, row_elements}.fill(init.kind);
    }
  });
}

// sum += addend in the addend's dtype, rounded once. The CPU's operator would widen both whole.
void add_rounded_(const at::Tensor& sum, const at::Tensor& addend) {
  constexpr int64_t kMostElements = 1 << 18;
  const int64_t most = sum.is_cpu() ? kMostElements : std::max<int64_t>(sum.numel(), 1);
  const at::Tensor flat_sum = sum.view({-1}), flat = addend.view({-1});
  for (int64_t first = 0; first < flat.numel(); first += most) {
    const int64_t count = std::min(most, flat.numel() - first);
    flat_sum.narrow(0, first, count).add_(flat.narrow(0, first, count));
  }
}

at::Tensor box_of(at::Tensor tensor, const Box& box) {
  for (size_t d = 0; d < box.offset.size(); ++d) {
    tensor = tensor.narrow(static_cast<int64_t>(d), box.offset[d], box.extent[d]);
  }
  return tensor;
}

}  // namespace

Parameter::Parameter(std::string name, Placement placement, const ParameterOptions& options)
    : name_(std::move(name)), placement_(std::move(placement)), options_(options) {
  check_placement(placement_);
  const auto tensor_options = at::TensorOptions().dtype(options_.dtype).device(options_.device);
  if (options_.packing) {
    options_.is_trainable = false;
    packed_ = std::make_unique<PackedWeight>(name_, placement_, options_);
    value_ = no_value(tensor_options);
    return;
  }
  value_ = at::empty(placement_.local_shape, tensor_options);
  if (!value_.is_meta()) {
    for (const Box& box : padding_boxes(placement_)) box_of(value_, box).zero_();
  }
  value_.set_requires_grad(options_.is_trainable);
}

Parameter::~Parameter() = default;

// NaN: no product can mistake it for a weight.
at::Tensor Parameter::no_value(const at::TensorOptions& options) const {
  return at::full({}, std::numeric_limits<double>::quiet_NaN(), options).expand(placement_.local_shape);
}

void Parameter::set_trainable(bool trainable) {
  MEGALITH_CHECK(!trainable || !is_packed(), "{} is packed and cannot be trained", name_);
  options_.is_trainable = trainable;
  value_.set_requires_grad(trainable);
  if (!trainable) grad_.reset();
}

void Parameter::add_aliases(const std::function<std::vector<std::string>(const std::string& name)>& names_of) {
  for (Piece& piece : placement_.pieces) {
    for (std::string& alias : names_of(piece.name)) piece.aliases.push_back(std::move(alias));
  }
}

void Parameter::add_aliases_without(std::string_view prefix) {
  for (Piece& piece : placement_.pieces) {
    if (piece.name.starts_with(prefix)) piece.aliases.push_back(piece.name.substr(prefix.size()));
  }
}

at::Tensor Parameter::data() const {
  MEGALITH_CHECK(!is_packed(), "{} is packed: it has values to compute with, and none to write to", name_);
  return value_.variable_data();
}

at::Tensor Parameter::unpacked() const {
  return is_packed() ? as_distributed(packed_->unpacked(), value_) : data();
}

void Parameter::pack(const at::Tensor& values) {
  MEGALITH_CHECK(is_packed(), "{} is not packed", name_);
  packed_->pack(values);
}

int64_t Parameter::num_bytes() const {
  return is_packed() ? packed_->num_bytes() : static_cast<int64_t>(value_.nbytes());
}

at::Tensor Parameter::stored() const { return is_packed() ? packed_->bytes() : value_.variable_data(); }

void Parameter::place_stored_in(const at::Tensor& memory, PackedShare share) {
  if (!is_packed()) return place_in(memory.view(placement_.local_shape));
  packed_->place_in(memory, std::move(share));
  value_ = no_value(value_.options().device(memory.device()));
}

void Parameter::place_in(const at::Tensor& memory) {
  MEGALITH_CHECK(memory.sizes() == value_.sizes() && memory.scalar_type() == value_.scalar_type(),
                 "{}: memory of shape [{}] and dtype {} for a value of shape [{}]", name_,
                 fmt::join(memory.sizes(), ", "), c10::toString(memory.scalar_type()), fmt::join(value_.sizes(), ", "));
  value_ = memory.variable_data();
  value_.set_requires_grad(options_.is_trainable);
}

void Parameter::rebind(const at::Tensor& memory) {
  MEGALITH_CHECK(memory.sizes() == value_.sizes() && memory.scalar_type() == value_.scalar_type() &&
                     memory.device() == value_.device() && memory.is_contiguous(),
                 "{}: memory of shape [{}] and dtype {} for a value of shape [{}] and dtype {}", name_,
                 fmt::join(memory.sizes(), ", "), c10::toString(memory.scalar_type()), fmt::join(value_.sizes(), ", "),
                 c10::toString(value_.scalar_type()));
  memory.copy_(data());
  value_.set_data(memory);
}

void Parameter::initialise(uint64_t seed) {
  if (value_.is_meta()) return;
  const at::Tensor target = is_packed() ? at::empty(placement_.local_shape, value_.options()) : data();
  // Drawn on the CPU: every device starts from the same bits.
  const at::Tensor drawn = target.is_cpu() && target.is_contiguous()
                               ? target
                               : at::empty(placement_.local_shape, target.options().device(at::kCPU));
  for (const Box& box : padding_boxes(placement_)) box_of(drawn, box).zero_();
  for (const Piece& piece : placement_.pieces) {
    if (options_.init.kind == Init::Kind::kConstant) {
      box_of(drawn, piece.local).fill_(options_.init.value);
      continue;
    }
    const uint64_t key = make_philox_key(seed, piece.name);
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, drawn.scalar_type(), "initialise", [&] {
      draw_piece(drawn.mutable_data_ptr<scalar_t>(), placement_.local_shape, piece, options_.init, key);
    });
  }
  if (!drawn.is_same(target)) target.copy_(drawn);
  if (is_packed()) pack(target);
}

void Parameter::attach_grad_buffer(at::Tensor buffer) {
  MEGALITH_CHECK(is_trainable(), "{} is frozen and takes no gradient buffer", name_);
  MEGALITH_CHECK(buffer.sizes() == value_.sizes() && buffer.scalar_type() == grad_dtype(),
                 "{}: a gradient buffer of shape [{}] and dtype {} for a value of shape [{}]", name_,
                 fmt::join(buffer.sizes(), ", "), c10::toString(buffer.scalar_type()), fmt::join(value_.sizes(), ", "));
  grad_ = std::move(buffer);
  is_grad_empty_ = true;
}

void Parameter::begin_step() {
  is_grad_empty_ = true;
  num_expected_ = num_arrived_ = 0;
  landing_.reset();  // a step that failed half-way may have left it open
}

void Parameter::narrow_grad() { has_narrow_grad_ = c10::elementSize(value_.scalar_type()) == 2; }

Parameter::GradTarget Parameter::open_grad() {
  if (!grad_.defined() && open_hook_) open_hook_();
  MEGALITH_CHECK(grad_.defined(), "{} got a gradient but has no buffer", name_);
  MEGALITH_CHECK(!landing_.defined(), "{} is open already", name_);
  if (has_narrow_grad_) {
    landing_ = at::empty(grad_.sizes(), grad_.options().dtype(wide_dtype()));
    return {landing_, false};
  }
  const bool accumulate = !is_grad_empty_;
  is_grad_empty_ = false;
  return {grad_, accumulate};
}

void Parameter::land_grad() {
  if (!landing_.defined()) return;
  if (is_grad_empty_)
    grad_.copy_(landing_);
  else if (!grad_.is_meta())
    add_rounded_(grad_, landing_);
  is_grad_empty_ = false;
  landing_.reset();
}

void Parameter::close_grad() {
  land_grad();
  ++num_arrived_;
  if (is_last_microbatch_ && num_arrived_ == num_expected_ && ready_hook_) ready_hook_(*this);
}

void Parameter::release() {
  ++num_arrived_;
  // Otherwise finish_step() zeroes the buffer.
  if (is_last_microbatch_ && num_arrived_ == num_expected_ && !is_grad_empty_ && ready_hook_) ready_hook_(*this);
}

void Parameter::add_grad(const at::Tensor& gradient) {
  MEGALITH_CHECK(gradient.sizes() == value_.sizes(), "{}: a gradient of shape [{}] for a value of shape [{}]", name_,
                 fmt::join(gradient.sizes(), ", "), fmt::join(value_.sizes(), ", "));
  const GradTarget target = open_grad();
  if (target.accumulate)
    target.buffer.add_(gradient);
  else
    target.buffer.copy_(gradient);
  close_grad();
}

void Parameter::finish_step() {
  if (!grad_.defined() || !is_grad_empty_) return;
  grad_.zero_();
  is_grad_empty_ = false;
}

}  // namespace megalith
