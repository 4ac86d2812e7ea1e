#include "optim/adam8bit.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "optim/piece_views.h"

namespace megalith {
namespace {

constexpr size_t kMoments = 2;

constexpr size_t codes_of(size_t moment) { return 2 * moment; }
constexpr size_t absmax_of(size_t moment) { return 2 * moment + 1; }

}  // namespace

// Elements of one canonical tensor, in its orientation.
struct Adam8bitRule::Elements {
  Piece piece;
  at::Tensor grad, master;
  std::array<at::Tensor, kMoments> codes;

  Elements part(size_t dim, int64_t begin, int64_t size) const {
    Elements part = *this;
    part.piece.canonical.offset[dim] += begin;
    part.piece.canonical.extent[dim] = size;
    for (at::Tensor* tensor : {&part.grad, &part.master, &part.codes[0], &part.codes[1]}) {
      *tensor = tensor->narrow(static_cast<int64_t>(dim), begin, size);
    }
    return part;
  }

  template <typename Visit>
  void visit_in_parts(int64_t most, const Visit& visit) const {
    const std::vector<int64_t>& extent = piece.canonical.extent;
    if (grad.numel() <= most) return visit(*this);
    const auto dim = static_cast<size_t>(
        std::find_if(extent.begin(), extent.end(), [](int64_t size) { return size > 1; }) - extent.begin());
    const int64_t half = extent[dim] / 2;
    part(dim, 0, half).visit_in_parts(most, visit);
    part(dim, half, extent[dim] - half).visit_in_parts(most, visit);
  }
};

// A step of one parameter; this rank may hold none of it.
struct Adam8bitRule::Work {
  Work(const UpdateSlot& of, const StateLayout& its_blocks) : slot(of), blocks(its_blocks) {
    for (size_t i = 0; i < kMoments; ++i) absmax.push_back(at::zeros_like(slot.state[absmax_of(i)]));
    const auto views = [&](const at::Tensor& tensor) {
      return piece_views(slot.part->parameter->placement(), tensor, slot.part->range);
    };
    const auto grads = views(slot.grad), masters = views(slot.master);
    const auto first = views(slot.state[codes_of(0)]), second = views(slot.state[codes_of(1)]);
    for (size_t i = 0; i < grads.size(); ++i) {
      elements.push_back({grads[i].piece, grads[i].tensor, masters[i].tensor, {first[i].tensor, second[i].tensor}});
    }
  }

  const UpdateSlot& slot;
  const StateLayout& blocks;
  std::vector<at::Tensor> absmax;
  std::vector<Elements> elements;
};

at::Tensor dynamic_map(bool is_signed) {
  constexpr int kDecades = 7;
  const auto fp32 = at::TensorOptions(at::kFloat);
  std::vector<at::Tensor> values = {at::zeros({1}, fp32), at::ones({1}, fp32)};
  for (int i = 0; i < kDecades; ++i) {
    const at::Tensor edges = at::linspace(0.1, 1, (is_signed ? 1 << i : 2 << i) + 1, fp32);
    const at::Tensor means = (edges.slice(0, 0, -1) + edges.slice(0, 1)) / 2;
    values.push_back(means * std::pow(10.0, i + 1 - kDecades));
    if (is_signed) values.push_back(-values.back());
  }
  return std::get<0>(at::cat(values).sort());
}

bool Adam8bitRule::takes(const Parameter& parameter) const {
  const std::vector<Piece>& pieces = parameter.placement().pieces;
  return std::all_of(pieces.begin(), pieces.end(), [&](const Piece& piece) {
    return matrix_elements(parameter, piece) >= options_.adam8bit.min_8bit_size;
  });
}

std::vector<StateSpec> Adam8bitRule::state(const Parameter& /*parameter*/) const {
  return {{"exp_avg_codes", at::kByte},
          {"exp_avg_absmax", at::kFloat, StateShape::kBlocks},
          {"exp_avg_sq_codes", at::kByte},
          {"exp_avg_sq_absmax", at::kFloat, StateShape::kBlocks}};
}

void Adam8bitRule::prepare(const DataParallel& data, const Groups& groups) {
  maxima_ = std::make_unique<SharedSums>(data, groups, [this](const Parameter& parameter) { return takes(parameter); });
  for (const SharedSums::Member& one : maxima_->members()) {
    blocks_.try_emplace(one.parameter, *one.parameter, StateShape::kBlocks);
  }
  if (data.parts().empty()) return;
  for (size_t i = 0; i < kMoments; ++i) {
    maps_[i] = dynamic_map(/*is_signed=*/i == 0).to(data.parts()[0].grad.device());
    bounds_[i] = (maps_[i].slice(0, 0, -1) + maps_[i].slice(0, 1)) / 2;
  }
}

std::array<at::Tensor, 2> Adam8bitRule::moments(const Elements& elements, const at::Tensor& places, const Work& work,
                                                const UpdateStep& step) const {
  const at::Tensor grad = elements.grad * step.grad_scale;
  const auto decayed = [&](size_t i, double beta) {
    const at::Tensor value = maps_[i].take(elements.codes[i].to(at::kLong)).to(grad.scalar_type());
    return value.mul_(work.slot.state[absmax_of(i)].take(places)).mul_(beta);
  };
  return {decayed(0, options_.adam_beta1).add_(grad, 1 - options_.adam_beta1),
          decayed(1, options_.adam_beta2).addcmul_(grad, grad, 1 - options_.adam_beta2)};
}

void Adam8bitRule::measure(const Elements& elements, const Work& work, const UpdateStep& step) const {
  const at::Tensor places = work.blocks.places_of(elements.piece, elements.grad.device());
  const auto after = moments(elements, places, work, step);
  for (size_t i = 0; i < kMoments; ++i) {
    const at::Tensor sizes = after[i].abs().to(at::kFloat).reshape({-1});
    work.absmax[i].view({-1}).scatter_reduce_(0, places.reshape({-1}), sizes, "amax");
  }
}

void Adam8bitRule::move(const Elements& elements, const Work& work, const UpdateStep& step) const {
  const at::Tensor places = work.blocks.places_of(elements.piece, elements.grad.device());
  const auto after = moments(elements, places, work, step);
  for (size_t i = 0; i < kMoments; ++i) {
    const at::Tensor absmax = work.absmax[i].take(places).clamp_min_(std::numeric_limits<float>::min());
    const at::Tensor codes = step.draft(elements.codes[i]);
    step.settle(elements.codes[i], codes.copy_(at::bucketize(after[i] / absmax, bounds_[i], /*out_int32=*/true)));
  }
  const auto correction = [&](double beta) { return 1 - at::pow(beta, step.number); };
  const at::Tensor size = (after[1].sqrt() / correction(options_.adam_beta2).sqrt()).add_(options_.adam_eps);
  const at::Tensor moved = after[0] / correction(options_.adam_beta1) / size;
  const at::Tensor master = step.draft(elements.master);
  step.settle(elements.master, master.mul_(1 - work.slot.lr * work.slot.weight_decay).sub_(moved, work.slot.lr));
}

void Adam8bitRule::update(std::span<const UpdateSlot> slots, const UpdateStep& step) {
  std::map<const Parameter*, const UpdateSlot*> slot_of;
  for (const UpdateSlot& slot : slots) slot_of[slot.part->parameter] = &slot;
  std::vector<Work> works;
  std::vector<std::vector<at::Tensor>> absmax;
  for (const SharedSums::Member& one : maxima_->members()) {
    const Work& work = works.emplace_back(*slot_of.at(one.parameter), blocks_.at(one.parameter));
    for (const Elements& elements : work.elements) {
      elements.visit_in_parts(most_elements_, [&](const Elements& part) { measure(part, work, step); });
    }
    absmax.push_back(work.absmax);
  }
  maxima_->reduce(absmax, ReduceOp::kMax, "largest moments of blocks");
  for (const Work& work : works) {
    for (const Elements& elements : work.elements) {
      elements.visit_in_parts(most_elements_, [&](const Elements& part) { move(part, work, step); });
    }
    for (size_t i = 0; i < kMoments; ++i) {
      const at::Tensor& kept = work.slot.state[absmax_of(i)];
      const at::Tensor absmax_draft = step.draft(kept);
      step.settle(kept, absmax_draft.copy_(work.absmax[i]));
    }
    if (work.slot.model.defined()) work.slot.model.copy_(work.slot.master);
  }
}

}  // namespace megalith
