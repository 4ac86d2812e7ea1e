#include "optim/muon.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "core/error.h"

namespace megalith {
namespace {

// A run of a part, itself perhaps a run; both count from the parameter's first element.
at::Tensor run_of_part(const OwnedPart& part, const at::Tensor& tensor, const FlatRange& range) {
  const int64_t first = part.range ? part.range->begin : 0;
  return tensor.view({-1}).narrow(0, range.begin - first, range.size());
}

// bf16 suffices for a direction; fp32 models use it only on request, fp64 models never.
bool is_computed_in_bf16(const MuonOptions& options, const Parameter& parameter) {
  if (parameter.wide_dtype() == at::kDouble) return false;
  if (options.muon_fp32_matmul_prec) return *options.muon_fp32_matmul_prec == "medium";
  return parameter.value().scalar_type() != at::kFloat;
}

}  // namespace

double muon_scale(MuonScaleMode mode, int64_t rows, int64_t columns) {
  const auto r = static_cast<double>(rows), c = static_cast<double>(columns);
  switch (mode) {
    case MuonScaleMode::kSpectral:
      return std::sqrt(std::max(r, c));
    case MuonScaleMode::kUnitRmsNorm:
      return std::sqrt(r / c);
    case MuonScaleMode::kShapeScaling:
      return std::sqrt(std::max(1.0, r / c));
  }
  MEGALITH_CHECK(false, "a scale mode without a case");
}

MuonRule::MuonRule(const MuonOptions& options)
    : options_(options), steps_(newton_schulz_steps(options.muon_coefficient_type, options.muon_num_ns_steps)) {}

void MuonRule::prepare(const DataParallel& data, const Groups& groups) {
  exchange_ = std::make_unique<MatrixExchange>(
      data, groups, [this](const Parameter& parameter) { return takes(parameter); },
      MatrixExchange::Rules{.joins_qkv = !options_.muon_split_qkv, .dtype = [this](const Parameter& parameter) {
                              return is_computed_in_bf16(options_, parameter) ? at::kBFloat16 : parameter.wide_dtype();
                            }});
}

void MuonRule::update(std::span<const UpdateSlot> slots, const UpdateStep& step) {
  const double momentum = options_.muon_momentum;
  std::unordered_map<const Parameter*, const UpdateSlot*> slot_of;
  for (const UpdateSlot& slot : slots) {
    slot_of[slot.part->parameter] = &slot;
    at::Tensor mean = step.draft(slot.state[0]);
    step.settle(slot.state[0], mean.lerp_(slot.wide_grad() * step.grad_scale, 1 - momentum));
  }
  const auto read = [&](const ExchangedMatrix& one, const FlatRange& range) {
    const UpdateSlot& slot = *slot_of.at(one.parameter);
    const at::Tensor mean = run_of_part(*slot.part, slot.state[0], range);
    if (!options_.muon_nesterov) return mean;
    return (run_of_part(*slot.part, slot.grad, range).to(mean.scalar_type()) * step.grad_scale).lerp_(mean, momentum);
  };
  const auto compute = [&](const ExchangedMatrix& /*one*/, const at::Tensor& whole) {
    return orthogonalize(whole, steps_);
  };
  const auto write = [&](const ExchangedMatrix& one, const FlatRange& range, const at::Tensor& direction) {
    const UpdateSlot& slot = *slot_of.at(one.parameter);
    const double scale =
        options_.muon_extra_scale_factor * muon_scale(options_.muon_scale_mode, one.matrix.rows, one.matrix.columns);
    const at::Tensor kept = run_of_part(*slot.part, slot.master, range);
    at::Tensor master = step.draft(kept);
    step.settle(kept, master.mul_(1 - slot.lr * slot.weight_decay).add_(direction, -slot.lr * scale));
  };
  exchange_->run(read, compute, write);
  for (const UpdateSlot& slot : slots) {
    if (slot.model.defined()) slot.model.copy_(slot.master);
  }
}

}  // namespace megalith
