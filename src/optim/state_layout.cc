#include "optim/state_layout.h"

#include <ATen/ATen.h>

#include "core/error.h"
#include "optim/piece_views.h"

namespace megalith {

bool consists_of_matrices(const Parameter& parameter) {
  return parameter.options().role != ParameterRole::kVector && parameter.placement().local_shape.size() >= 2;
}

std::optional<Axis> slice_axis(const Parameter& parameter) {
  const Placement& placement = parameter.placement();
  const Axis axis = placement.partial_axes.contains(Axis::kEdp) ? Axis::kEtp : Axis::kTp;
  return placement.replica_axes.contains(axis) ? std::nullopt : std::optional(axis);
}

int64_t matrix_elements(const Parameter& parameter, const Piece& piece) {
  const int64_t rows = consists_of_matrices(parameter) ? piece.shape[piece.shape.size() - 2] : 1;
  return rows * piece.shape.back();
}

StateLayout::StateLayout(const Parameter& parameter, StateShape shape)
    : num_own_dims_(consists_of_matrices(parameter) ? 2 : 1) {
  if (shape == StateShape::kRows) kept_ = 0;
  if (shape == StateShape::kColumns) kept_ = 1;
  MEGALITH_CHECK(shape != StateShape::kElements && (!kept_ || num_own_dims_ == 2), "{} has no such values",
                 parameter.name());
  const Placement& of_parameter = parameter.placement();
  placement_.replica_axes = of_parameter.replica_axes;
  if (const auto axis = slice_axis(parameter)) placement_.replica_axes.insert(*axis);
  placement_.pipeline_ranks = of_parameter.pipeline_ranks;
  const auto& local_shape = of_parameter.local_shape;
  const auto stacks_end = local_shape.end() - static_cast<int64_t>(num_own_dims_);
  placement_.local_shape.assign(local_shape.begin(), stacks_end);
  placement_.local_shape.push_back(0);
  for (const Piece& piece : of_parameter.pieces) {
    if (!piece_of_.try_emplace(piece.name, placement_.pieces.size()).second) continue;
    const size_t stacks = piece.shape.size() - num_own_dims_;
    int64_t count = kept_ ? piece.shape[stacks + *kept_] : 1;
    if (shape == StateShape::kBlocks) count = div_up(matrix_elements(parameter, piece), kBlockSize);
    Piece state{.name = piece.name,
                .shape = piece.shape,
                .canonical = piece.canonical,
                .local = piece.local,
                .aliases = piece.aliases};
    for (auto* of_stacks :
         {&state.shape, &state.canonical.offset, &state.canonical.extent, &state.local.offset, &state.local.extent}) {
      of_stacks->resize(stacks);
    }
    state.shape.push_back(count);
    state.canonical.offset.push_back(0);
    state.canonical.extent.push_back(count);
    state.local.offset.push_back(placement_.local_shape.back());
    state.local.extent.push_back(count);
    placement_.local_shape.back() += count;
    placement_.pieces.push_back(std::move(state));
  }
  check_placement(placement_);
}

at::Tensor StateLayout::places_of(const Piece& piece, at::Device device) const {
  const Piece& whole = placement_.pieces[piece_of_.at(piece.name)];
  const size_t stacks = piece.shape.size() - num_own_dims_;
  at::Tensor place = at::zeros({}, at::TensorOptions(device).dtype(at::kLong)), element = place;
  for (size_t d = 0; d < piece.shape.size(); ++d) {
    std::vector<int64_t> along(piece.shape.size(), 1);
    along[d] = piece.canonical.extent[d];
    const int64_t first = piece.canonical.offset[d];
    const at::Tensor index = at::arange(first, first + along[d], place.options()).view(along);
    if (d < stacks) {
      place = place * placement_.local_shape[d] + (index - whole.canonical.offset[d] + whole.local.offset[d]);
    } else {
      element = element * piece.shape[d] + index;
    }
  }
  return place * placement_.local_shape.back() + whole.local.offset.back() + element.div(kBlockSize, "floor");
}

at::Tensor StateLayout::of_piece(const at::Tensor& state, const Piece& piece) const {
  const Piece& whole = placement_.pieces[piece_of_.at(piece.name)];
  const size_t stacks = piece.shape.size() - num_own_dims_;
  Box box = whole.canonical;
  for (size_t d = 0; d < stacks; ++d) {
    box.offset[d] = piece.canonical.offset[d];
    box.extent[d] = piece.canonical.extent[d];
  }
  if (kept_) {
    box.offset[stacks] = piece.canonical.offset[stacks + *kept_];
    box.extent[stacks] = piece.canonical.extent[stacks + *kept_];
  }
  std::vector<int64_t> origin = whole.canonical.offset;
  for (size_t d = 0; d < origin.size(); ++d) origin[d] -= whole.local.offset[d];
  at::Tensor values = slice_box(state, box, origin);
  if (num_own_dims_ == 2) values = values.unsqueeze(kept_ == size_t{1} ? -2 : -1);
  return values;
}

void StateLayout::add_means(const at::Tensor& means, const Piece& piece, const at::Tensor& values) const {
  const size_t stacks = piece.shape.size() - num_own_dims_;
  std::vector<int64_t> dims;
  double count = 1;
  for (size_t d = 0; d < num_own_dims_; ++d) {
    if (kept_ == d) continue;
    dims.push_back(static_cast<int64_t>(stacks + d));
    count *= static_cast<double>(piece.shape[stacks + d]);
  }
  of_piece(means, piece).add_(values.sum(dims, /*keepdim=*/true, means.scalar_type()), 1 / count);
}

}  // namespace megalith
