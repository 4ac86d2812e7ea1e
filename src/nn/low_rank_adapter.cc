// See low_rank_adapter.h.
#include "nn/low_rank_adapter.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "comm/groups.h"
#include "core/error.h"
#include "core/philox.h"
#include "nn/dropout.h"

namespace megalith {
namespace {

constexpr double kNormalStd = 0.2;  // Megatron-Bridge's "normal"

Init init_of(AdapterInit kind, int64_t in, int64_t out) {
  switch (kind) {
    case AdapterInit::kXavier:
      return Init::normal(std::sqrt(2.0 / static_cast<double>(in + out)));
    case AdapterInit::kKaiming:
      return Init::uniform(1 / std::sqrt(static_cast<double>(in)));
    case AdapterInit::kNormal:
      return Init::normal(kNormalStd);
    case AdapterInit::kZero:
      return Init::constant(0);
  }
  throw InternalError("an initialisation without a row here");
}

}  // namespace

std::unique_ptr<LowRankAdapter> LowRankAdapter::make(const LayerContext& context, const Site& site) {
  if (context.lora == nullptr) return nullptr;
  const LoraOptions& options = *context.lora;
  const bool is_shared = options.targets(site.kind);
  std::vector<Branch> branches;
  bool adds = false;
  const int64_t tp = site.role == LinearRole::kColumn ? context.groups->tp->size() : 1;
  for (const LinearPart& part : site.parts) {
    const bool is_target = is_shared || options.targets(std::string_view(part.name));
    const std::string& name = is_shared ? site.name : part.name;
    adds |= is_target;
    const bool goes_on = !branches.empty() && branches.back().name == name;
    if (!goes_on) branches.push_back({.name = name, .parts = {}, .local_rows = 0, .up = nullptr});
    Branch& branch = branches.back();
    if (is_target) branch.parts.push_back(part);
    branch.local_rows += div_exact(part.rows, tp);
  }
  if (!adds) return nullptr;
  return std::unique_ptr<LowRankAdapter>(new LowRankAdapter(context, site, std::move(branches)));
}

LowRankAdapter::LowRankAdapter(const LayerContext& context, const Site& site, std::vector<Branch> branches)
    : scale_(context.lora->scale()),
      dropout_(context.lora->dropout),
      drops_input_(context.lora->dropout_position == AdapterDropout::kPre),
      kernels_(context.kernels),
      role_(site.role),
      tp_rank_(context.groups->tp->rank()),
      tp_size_(context.groups->tp->size()),
      seed_(context.seed),
      name_(site.name),
      rank_(context.lora->dim),
      branches_(std::move(branches)) {
  const LoraOptions& options = *context.lora;
  LayerContext plain = context;
  plain.recipe = nullptr;
  plain.lora = nullptr;
  const bool is_row = site.role == LinearRole::kRow;
  std::vector<LinearPart> down_parts;
  for (const Branch& branch : branches_) {
    if (branch.parts.empty()) continue;
    int64_t rows = 0;
    for (const LinearPart& part : branch.parts) rows += part.rows;
    if (rank_ > std::min(rows, site.in_features)) {
      throw UserError(
          fmt::format("lora.dim is {}, but {} is a matrix of {} x {}", rank_, branch.name, rows, site.in_features),
          fmt::format("set lora.dim to {} at most", std::min(rows, site.in_features)));
    }
    down_parts.push_back({branch.name + ".lora_A", rank_});
  }
  down_ = std::make_unique<Linear>(plain, site.name + ".lora_A", site.in_features, down_parts,
                                   LinearOptions{.role = is_row ? LinearRole::kRow : LinearRole::kReplicated,
                                                 .weight_init = init_of(options.a_init, site.in_features, rank_),
                                                 .is_adapter = true});
  register_module(*down_);
  for (Branch& branch : branches_) {
    if (branch.parts.empty()) continue;
    std::vector<LinearPart> up_parts;
    int64_t rows = 0;
    for (LinearPart part : branch.parts) {
      part.name += ".lora_B";
      rows += part.rows;
      up_parts.push_back(std::move(part));
    }
    const LinearOptions up{.role = site.role == LinearRole::kColumn ? LinearRole::kColumn : LinearRole::kReplicated,
                           .weight_init = init_of(options.b_init, rank_, rows),
                           .is_adapter = true};
    branch.up = std::make_unique<Linear>(plain, branch.name + ".lora_B", rank_, up_parts, up);
    register_module(*branch.up);
  }
}

at::Tensor LowRankAdapter::rows_of(const at::Tensor& x, const at::Tensor& row_ids) const {
  const at::Tensor rows = row_ids.reshape({-1});
  return rows.size(0) == x.size(0) ? rows : rows.narrow(0, tp_rank_ * x.size(0), x.size(0));
}

Activation LowRankAdapter::read(const Activation& x, const at::Tensor& row_ids) const {
  if (dropout_ == 0 || !drops_input_ || !row_ids.defined()) return x;
  const int64_t first = role_ == LinearRole::kRow ? tp_rank_ * x.value.size(1) : 0;
  const uint64_t key = make_philox_key(seed_, "dropout." + name_ + ".lora_A");
  const at::Tensor rows = rows_of(x.value, row_ids);
  const auto drop = [rows, first, p = dropout_, key, kernels = kernels_](const at::Tensor& whole) {
    return dropped(whole, rows, first, p, key, kernels);
  };
  return {drop(x.value), x.keep().then(drop)};
}

// What a branch adds, of this rank's columns of each of its parts.
at::Tensor LowRankAdapter::added(const Branch& branch, const at::Tensor& delta, const at::Tensor& row_ids) const {
  if (dropout_ == 0 || drops_input_ || !row_ids.defined()) return delta;
  const at::Tensor rows = rows_of(delta, row_ids);
  std::vector<at::Tensor> parts;
  int64_t first = 0;
  for (const LinearPart& part : branch.parts) {
    const int64_t count = role_ == LinearRole::kColumn ? div_exact(part.rows, tp_size_) : part.rows;
    const int64_t before = part.first_row + (role_ == LinearRole::kColumn ? tp_rank_ * count : 0);
    const uint64_t key = make_philox_key(seed_, "dropout." + part.name + ".lora_B");
    parts.push_back(dropped(delta.narrow(1, first, count).contiguous(), rows, before, dropout_, key, kernels_));
    first += count;
  }
  return parts.size() == 1 ? parts[0] : at::cat(parts, 1);
}

at::Tensor LowRankAdapter::add_to(at::Tensor y, const Activation& x, const at::Tensor& row_ids) {
  at::Tensor low = down_->forward(read(x, row_ids));
  if (scale_ != 1) low = low.mul(scale_);
  std::vector<at::Tensor> deltas;
  int64_t first = 0;
  for (const Branch& branch : branches_) {
    if (branch.up == nullptr) {
      deltas.push_back(y.new_zeros({y.size(0), branch.local_rows}));
      continue;
    }
    const at::Tensor own = branches_.size() == 1 ? low : low.narrow(1, first, rank_).contiguous();
    deltas.push_back(added(branch, branch.up->forward(own), row_ids));
    first += rank_;
  }
  return y.add_(deltas.size() == 1 ? deltas[0] : at::cat(deltas, 1));
}

void freeze_all_but_adapters(const std::vector<Parameter*>& parameters) {
  for (Parameter* parameter : parameters) parameter->set_trainable(parameter->options().is_adapter);
}

}  // namespace megalith
