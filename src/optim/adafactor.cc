#include "optim/adafactor.h"

#include <ATen/ATen.h>

#include "optim/piece_views.h"

namespace megalith {

AdafactorRule::Layouts::Layouts(const Parameter& parameter) : matrices(parameter, StateShape::kMatrices) {
  if (!consists_of_matrices(parameter)) return;
  rows.emplace(parameter, StateShape::kRows);
  columns.emplace(parameter, StateShape::kColumns);
}

// A step of one parameter; this rank may hold none of it.
struct AdafactorRule::Work {
  const UpdateSlot& slot;
  const Layouts& layouts;
  at::Tensor scale = {};
  std::vector<PieceView> grads = {}, masters = {};
  at::Tensor rows = {}, columns = {};        // means of this step's squares
  at::Tensor weights = {}, directions = {};  // mean squares of each matrix
  std::vector<at::Tensor> state = {};
  std::vector<PieceView> squares = {};  // of a vector's state
};

namespace {

at::Tensor zeros_of(const StateLayout& layout, const at::Tensor& like) {
  return at::zeros(layout.placement().local_shape, like.options().dtype(at::kDouble));
}

}  // namespace

std::vector<StateSpec> AdafactorRule::state(const Parameter& parameter) const {
  const at::ScalarType dtype = parameter.wide_dtype();
  if (!consists_of_matrices(parameter)) return {{"exp_avg_sq", dtype}};
  return {{"exp_avg_sq_row", dtype, StateShape::kRows}, {"exp_avg_sq_col", dtype, StateShape::kColumns}};
}

void AdafactorRule::prepare(const DataParallel& data, const Groups& groups) {
  sums_ = std::make_unique<SharedSums>(data, groups, [this](const Parameter& parameter) { return takes(parameter); });
  for (const SharedSums::Member& one : sums_->members()) layouts_.emplace(one.parameter, *one.parameter);
}

void AdafactorRule::begin(Work& work, const UpdateStep& step) const {
  const Placement& placement = work.slot.part->parameter->placement();
  work.grads = piece_views(placement, work.slot.wide_grad(), work.slot.part->range);
  work.masters = piece_views(placement, work.slot.master, work.slot.part->range);
  work.scale = step.grad_scale;
  work.weights = zeros_of(work.layouts.matrices, work.slot.grad);
  work.directions = at::zeros_like(work.weights);
  if (work.layouts.rows) {
    work.rows = zeros_of(*work.layouts.rows, work.slot.grad);
    work.columns = zeros_of(*work.layouts.columns, work.slot.grad);
  }
  for (size_t i = 0; i < work.grads.size(); ++i) {
    const Piece& piece = work.grads[i].piece;
    work.layouts.matrices.add_means(work.weights, piece, work.masters[i].tensor.square());
    if (!work.layouts.rows) continue;
    const at::Tensor square = (work.grads[i].tensor * work.scale).square_().add_(options_.adafactor_eps1);
    work.layouts.rows->add_means(work.rows, piece, square);
    work.layouts.columns->add_means(work.columns, piece, square);
  }
}

void AdafactorRule::move_state(Work& work, const UpdateStep& step) const {
  const at::Tensor kept = 1 - step.number.pow(options_.adafactor_decay_rate);
  const auto move = [&](size_t i, const at::Tensor& square) {
    at::Tensor mean = step.draft(work.slot.state[i]);
    step.settle(work.slot.state[i], mean.mul_(kept).add_(square * (1 - kept)));
    work.state.push_back(mean);
  };
  if (work.layouts.rows) {
    move(0, work.rows);
    move(1, work.columns);
  } else {
    const UpdateSlot& slot = work.slot;
    move(0, (slot.wide_grad() * step.grad_scale).square() + options_.adafactor_eps1);
    work.squares = piece_views(slot.part->parameter->placement(), work.state[0], slot.part->range);
  }
  for (size_t i = 0; i < work.grads.size(); ++i) {
    work.layouts.matrices.add_means(work.directions, work.grads[i].piece, direction(work, i).square());
  }
}

at::Tensor AdafactorRule::direction(const Work& work, size_t view) const {
  const Piece& piece = work.grads[view].piece;
  const at::Tensor grad = work.grads[view].tensor * work.scale;
  if (!work.layouts.rows) return grad * work.squares[view].tensor.rsqrt();
  const StateLayout &rows = *work.layouts.rows, &columns = *work.layouts.columns;
  Piece whole = piece;
  const size_t row = piece.shape.size() - 2;
  whole.canonical.offset[row] = 0;
  whole.canonical.extent[row] = piece.shape[row];
  const at::Tensor mean = rows.of_piece(work.state[0], whole).mean(-2, /*keepdim=*/true);
  return grad * (rows.of_piece(work.state[0], piece) / mean).rsqrt() * columns.of_piece(work.state[1], piece).rsqrt();
}

void AdafactorRule::move_master(const Work& work, const UpdateStep& step) const {
  const UpdateSlot& slot = work.slot;
  for (size_t i = 0; i < work.masters.size(); ++i) {
    const Piece& piece = work.masters[i].piece;
    const at::Tensor& kept = work.masters[i].tensor;
    const auto rms = [&](const at::Tensor& squares) { return work.layouts.matrices.of_piece(squares, piece).sqrt(); };
    at::Tensor lr = at::full({}, slot.lr, work.weights.options());
    if (options_.adafactor_scale_parameter) lr = rms(work.weights).clamp_min(options_.adafactor_eps2) * slot.lr;
    const at::Tensor clip = (rms(work.directions) / options_.adafactor_clip_threshold).clamp_min(1);
    const at::Tensor moved = direction(work, i).mul_((lr / clip).to(kept.scalar_type()));
    at::Tensor master = step.draft(kept);
    step.settle(kept, master.mul_((1 - lr * slot.weight_decay).to(kept.scalar_type())).sub_(moved));
  }
  if (slot.model.defined()) slot.model.copy_(slot.master);
}

void AdafactorRule::update(std::span<const UpdateSlot> slots, const UpdateStep& step) {
  std::map<const Parameter*, const UpdateSlot*> slot_of;
  for (const UpdateSlot& slot : slots) slot_of[slot.part->parameter] = &slot;
  std::vector<Work> works;
  std::vector<std::vector<at::Tensor>> means, squares;
  for (const SharedSums::Member& one : sums_->members()) {
    Work& work = works.emplace_back(Work{*slot_of.at(one.parameter), layouts_.at(one.parameter)});
    begin(work, step);
    means.push_back({work.weights});
    if (work.layouts.rows) means.back().insert(means.back().end(), {work.rows, work.columns});
    squares.push_back({work.directions});
  }
  sums_->reduce(means, ReduceOp::kSum, "mean squares of rows and columns");
  for (Work& work : works) move_state(work, step);
  sums_->reduce(squares, ReduceOp::kSum, "mean squares of updates");
  for (const Work& work : works) move_master(work, step);
}

}  // namespace megalith
