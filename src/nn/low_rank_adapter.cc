#include "nn/low_rank_adapter.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "comm/groups.h"
#include "core/error.h"
#include "core/philox.h"
#include "nn/dropout.h"
#include "nn/function.h"

namespace megalith {

struct RescaleFunction : torch::autograd::Function<RescaleFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* node, const at::Tensor& y,
                            const at::Tensor& /*magnitude*/, const at::Tensor& lengths, LowRankAdapter* adapter) {
    expect_contribution(adapter->magnitude_);
    node->save_for_backward({y, lengths});
    hold(node, adapter);
    return compute(y, lengths, *adapter);
  }

  static at::Tensor compute(const at::Tensor& y, const at::Tensor& lengths, const LowRankAdapter& adapter) {
    return (y * factors(lengths, adapter)).to(y.scalar_type());
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* node,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = node->get_saved_variables();
    const at::Tensor &y = saved[0], &lengths = saved[1], &dy = gradients[0];
    const LowRankAdapter& adapter = *held<LowRankAdapter*>(node);
    const at::Tensor of_rows = at::sum(dy.to(lengths.scalar_type()) * y, 0) / lengths;
    adapter.magnitude_->add_grad(adapter.gathered(of_rows));
    return {(dy * factors(lengths, adapter)).to(y.scalar_type()), {}, {}, {}};
  }

  static at::Tensor factors(const at::Tensor& lengths, const LowRankAdapter& adapter) {
    return adapter.spread(adapter.magnitude_->data().to(lengths.scalar_type()), 1) / lengths;
  }
};

namespace {

constexpr double kNormalStd = 0.2;  // Megatron-Bridge's "normal"
constexpr int64_t kRowsOfLengths = 1024;

}  // namespace

Init adapter_init(AdapterInit kind, int64_t in, int64_t out) {
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
      branches_(std::move(branches)),
      tp_(context.groups->tp.get()) {
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
                                                 .weight_init = adapter_init(options.a_init, site.in_features, rank_),
                                                 .is_adapter = true,
                                                 .input_parts = site.input_parts});
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
                           .weight_init = adapter_init(options.b_init, rank_, rows),
                           .is_adapter = true};
    branch.up = std::make_unique<Linear>(plain, branch.name + ".lora_B", rank_, up_parts, up);
    register_module(*branch.up);
  }
  const int64_t ranks = is_row ? tp_size_ : 1;
  const bool is_in_parts = ranks > 1 && site.input_parts.size() > 1;
  int64_t begin = 0;
  for (const int64_t width : is_in_parts ? site.input_parts : std::vector<int64_t>{site.in_features}) {
    const int64_t own = div_exact(width, ranks);
    input_columns_.push_back({begin + (is_row ? tp_rank_ * own : 0), own});
    begin += width;
  }
  if (options.use_dora) register_magnitude(context, site);
}

void LowRankAdapter::register_magnitude(const LayerContext& context, const Site& site) {
  const bool is_cut = role_ == LinearRole::kColumn;
  Placement placement{.local_shape = {0}, .pieces = {}};
  for (const Branch& branch : branches_) {
    for (const LinearPart& part : branch.parts) {
      const int64_t count = is_cut ? div_exact(part.rows, tp_size_) : part.rows;
      placement.pieces.push_back(
          {.name = part.name + std::string(kMagnitudeEnding),
           .shape = {part.canonical_rows == 0 ? part.rows : part.canonical_rows},
           .canonical = {{part.first_row + (is_cut ? tp_rank_ * count : 0)}, {count}},
           .local = {{placement.local_shape[0]}, {count}}});
      placement.local_shape[0] += count;
    }
  }
  placement.replica_axes = placement.partial_axes = {Axis::kDp, Axis::kCp};
  if (!is_cut) placement.replica_axes.insert(Axis::kTp);
  // Replicated parts see only this rank's tokens.
  if (!is_cut && context.is_sequence_parallel) placement.partial_axes.insert(Axis::kTp);
  magnitude_ = &register_parameter(site.name + std::string(kMagnitudeEnding), std::move(placement),
                                   {.dtype = context.dtype,
                                    .device = context.device,
                                    .init = Init::constant(1),
                                    .role = ParameterRole::kVector,
                                    .is_adapter = true});
}

at::Tensor LowRankAdapter::spread(const at::Tensor& of_adapted, double fill) const {
  std::vector<at::Tensor> rows;
  int64_t first = 0;
  for (const Branch& branch : branches_) {
    if (branch.up == nullptr) {
      rows.push_back(at::full({branch.local_rows}, fill, of_adapted.options()));
      continue;
    }
    rows.push_back(of_adapted.narrow(0, first, branch.local_rows));
    first += branch.local_rows;
  }
  return at::cat(rows);
}

at::Tensor LowRankAdapter::gathered(const at::Tensor& of_all) const {
  std::vector<at::Tensor> rows;
  int64_t first = 0;
  for (const Branch& branch : branches_) {
    if (branch.up != nullptr) rows.push_back(of_all.narrow(0, first, branch.local_rows));
    first += branch.local_rows;
  }
  return at::cat(rows);
}

at::Tensor LowRankAdapter::lengths(const at::Tensor& weight) const {
  const at::NoGradGuard no_grad;
  const at::ScalarType wide = weight.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor down = down_->weight().data();
  std::vector<at::Tensor> squares;
  int64_t first_row = 0, first_rank = 0;
  for (const Branch& branch : branches_) {
    if (branch.up != nullptr) {
      const at::Tensor a = down.narrow(0, first_rank, rank_).to(wide), b = branch.up->weight().data();
      first_rank += rank_;
      // By rows: a large layer's sum would double its memory.
      for (int64_t row = 0; row < branch.local_rows; row += kRowsOfLengths) {
        const int64_t count = std::min(kRowsOfLengths, branch.local_rows - row);
        const at::Tensor own = weight.narrow(0, first_row + row, count).to(wide);
        squares.push_back(at::addmm(own, b.narrow(0, row, count).to(wide), a, 1, scale_).square_().sum(1));
      }
    }
    first_row += branch.local_rows;
  }
  at::Tensor sums = at::cat(squares);
  if (role_ == LinearRole::kRow && tp_size_ > 1) {
    tp_->all_reduce(sums, ReduceOp::kSum, magnitude_->name()).wait();
  }
  return spread(sums.sqrt_(), 1);
}

at::Tensor LowRankAdapter::rescale(const at::Tensor& y, const at::Tensor& weight) {
  const at::Tensor of_rows = lengths(weight);
  if (!is_recording({y, magnitude_->value()})) return RescaleFunction::compute(y, of_rows, *this);
  return RescaleFunction::apply(y, magnitude_->value(), of_rows, this);
}

at::Tensor LowRankAdapter::rows_of(const at::Tensor& x, const at::Tensor& row_ids) const {
  const at::Tensor rows = row_ids.reshape({-1});
  return rows.size(0) == x.size(0) ? rows : rows.narrow(0, tp_rank_ * x.size(0), x.size(0));
}

Activation LowRankAdapter::read(const Activation& x, const at::Tensor& row_ids) const {
  if (dropout_ == 0 || !drops_input_ || !row_ids.defined()) return x;
  const uint64_t key = make_philox_key(seed_, "dropout." + name_ + ".lora_A");
  const at::Tensor rows = rows_of(x.value, row_ids);
  const auto drop = [rows, runs = input_columns_, p = dropout_, key, kernels = kernels_](const at::Tensor& whole) {
    if (runs.size() == 1) return dropped(whole, rows, runs[0].first, p, key, kernels);
    std::vector<at::Tensor> parts;
    int64_t column = 0;
    for (const ColumnRun& run : runs) {
      parts.push_back(dropped(whole.narrow(1, column, run.width).contiguous(), rows, run.first, p, key, kernels));
      column += run.width;
    }
    return at::cat(parts, 1);
  };
  return {drop(x.value), x.keep().then(drop)};
}

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
