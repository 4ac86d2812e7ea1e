#include "nn/low_rank_adapter.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <optional>
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

enum class Saved { kNot, kInPart, kWhole };

// PEFT trains a tied table's two names apart, so one of them would be a part.
Saved is_saved(const LoraOptions& options, const Parameter& parameter) {
  bool has_named = false, has_other = false;
  for (const Piece& piece : parameter.placement().pieces) {
    (options.saves(piece.name) ? has_named : has_other) = true;
    for (const std::string& alias : piece.aliases) {
      if (names_tied_head(alias)) (options.saves(alias) ? has_named : has_other) = true;
    }
  }
  return !has_named ? Saved::kNot : has_other ? Saved::kInPart : Saved::kWhole;
}

}  // namespace

Init adapter_init(AdapterInit kind, int64_t in, int64_t out, int64_t rank) {
  switch (kind) {
    case AdapterInit::kXavier:
      return Init::normal(std::sqrt(2.0 / static_cast<double>(in + out)));
    case AdapterInit::kKaiming:
      return Init::uniform(1 / std::sqrt(static_cast<double>(in)));
    case AdapterInit::kNormal:
      return Init::normal(kNormalStd);
    case AdapterInit::kZero:
      return Init::constant(0);
    case AdapterInit::kGaussian:
      return Init::normal(1 / static_cast<double>(rank));
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
    if (!goes_on) {
      branches.push_back(
          {.name = name, .parts = {}, .rank = options.rank_of(part.name), .scale = options.scale_of(part.name)});
    }
    Branch& branch = branches.back();
    if (is_target) branch.parts.push_back(part);
    branch.local_rows += div_exact(part.rows, tp);
  }
  if (!adds) return nullptr;
  return std::unique_ptr<LowRankAdapter>(new LowRankAdapter(context, site, std::move(branches)));
}

LowRankAdapter::LowRankAdapter(const LayerContext& context, const Site& site, std::vector<Branch> branches)
    : dropout_(context.lora->dropout),
      drops_input_(context.lora->dropout_position == AdapterDropout::kPre),
      kernels_(context.kernels),
      role_(site.role),
      tp_rank_(context.groups->tp->rank()),
      tp_size_(context.groups->tp->size()),
      seed_(context.seed),
      name_(site.name),
      branches_(std::move(branches)),
      tp_(context.groups->tp.get()) {
  const bool is_row = site.role == LinearRole::kRow;
  for (const Branch& branch : branches_) {
    if (branch.parts.empty()) continue;
    int64_t rows = 0;
    for (const LinearPart& part : branch.parts) rows += part.rows;
    if (branch.rank > std::min(rows, site.in_features)) {
      throw UserError(fmt::format("lora.dim is {}, but {} is a matrix of {} x {}", branch.rank, branch.name, rows,
                                  site.in_features),
                      fmt::format("set lora.dim to {} at most", std::min(rows, site.in_features)));
    }
  }
  trained_ = make_pair(context, site, /*is_start=*/false);
  if (context.lora->start().decomposes()) start_ = make_pair(context, site, /*is_start=*/true);
  const int64_t ranks = is_row ? tp_size_ : 1;
  const bool is_in_parts = ranks > 1 && site.input_parts.size() > 1;
  int64_t begin = 0;
  for (const int64_t width : is_in_parts ? site.input_parts : std::vector<int64_t>{site.in_features}) {
    const int64_t own = div_exact(width, ranks);
    input_columns_.push_back({begin + (is_row ? tp_rank_ * own : 0), own});
    begin += width;
  }
  if (context.lora->use_dora) register_magnitude(context, site);
}

LowRankAdapter::Pair LowRankAdapter::make_pair(const LayerContext& context, const Site& site, bool is_start) {
  const LoraOptions& options = *context.lora;
  LayerContext plain = context;
  plain.recipe = nullptr;
  plain.lora = nullptr;
  const std::string a = ".lora_A" + std::string(is_start ? kStartEnding : ""),
                    b = ".lora_B" + std::string(is_start ? kStartEnding : "");
  std::vector<LinearPart> down_parts;
  for (const Branch& branch : branches_) {
    if (!branch.parts.empty()) down_parts.push_back({branch.name + a, branch.rank});
  }
  // Gaussian draws by the first rank; check_lora_targets() refuses others beside it.
  const int64_t rank = down_parts.front().rows;
  Pair pair;
  pair.down = std::make_unique<Linear>(
      plain, site.name + a, site.in_features, down_parts,
      LinearOptions{.role = site.role == LinearRole::kRow ? LinearRole::kRow : LinearRole::kReplicated,
                    .weight_init = adapter_init(options.a_start(), site.in_features, options.dim, rank),
                    .is_adapter = true,
                    .is_trainable = !is_start,
                    .input_parts = site.input_parts});
  register_module(*pair.down);
  for (const Branch& branch : branches_) {
    pair.ups.push_back(nullptr);
    if (branch.parts.empty()) continue;
    std::vector<LinearPart> up_parts;
    int64_t rows = 0;
    for (LinearPart part : branch.parts) {
      part.name += b;
      rows += part.rows;
      up_parts.push_back(std::move(part));
    }
    const LinearOptions up{.role = site.role == LinearRole::kColumn ? LinearRole::kColumn : LinearRole::kReplicated,
                           .weight_init = adapter_init(options.b_start(), options.dim, rows, branch.rank),
                           .is_adapter = true,
                           .is_trainable = !is_start};
    pair.ups.back() = std::make_unique<Linear>(plain, branch.name + b, branch.rank, up_parts, up);
    register_module(*pair.ups.back());
  }
  return pair;
}

void LowRankAdapter::list_decomposed(std::vector<DecomposedMatrix>& into) const {
  if (start_.down == nullptr) return;
  int64_t in_features = 0;
  for (const ColumnRun& run : input_columns_) in_features += run.width;
  if (role_ == LinearRole::kRow) in_features *= tp_size_;
  for (const Branch& branch : branches_) {
    if (branch.parts.empty()) continue;
    into.push_back({.name = branch.name,
                    .parts = branch.parts,
                    .in_features = in_features,
                    .rank = branch.rank,
                    .scale = branch.scale});
  }
}

void LowRankAdapter::register_magnitude(const LayerContext& context, const Site& site) {
  const bool is_cut = role_ == LinearRole::kColumn;
  Placement placement{.local_shape = {0}, .pieces = {}};
  for (const Branch& branch : branches_) {
    for (const LinearPart& part : branch.parts) {
      const int64_t count = is_cut ? div_exact(part.rows, tp_size_) : part.rows;
      placement.pieces.push_back({.name = part.name + std::string(kMagnitudeEnding),
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
    if (branch.parts.empty()) {
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
    if (!branch.parts.empty()) rows.push_back(of_all.narrow(0, first, branch.local_rows));
    first += branch.local_rows;
  }
  return at::cat(rows);
}

at::Tensor LowRankAdapter::lengths(const at::Tensor& weight) const {
  const at::NoGradGuard no_grad;
  const at::ScalarType wide = weight.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  std::vector<at::Tensor> squares;
  int64_t first_row = 0, first_rank = 0;
  for (size_t i = 0; i < branches_.size(); ++i) {
    const Branch& branch = branches_[i];
    const auto add = [&](const Pair& pair, int64_t row, int64_t count, double scale, const at::Tensor& to) {
      const at::Tensor a = pair.down->weight().data().narrow(0, first_rank, branch.rank).to(wide);
      return at::addmm(to, pair.ups[i]->weight().data().narrow(0, row, count).to(wide), a, 1, scale);
    };
    // By rows: a large layer's sum would double its memory.
    for (int64_t row = 0; !branch.parts.empty() && row < branch.local_rows; row += kRowsOfLengths) {
      const int64_t count = std::min(kRowsOfLengths, branch.local_rows - row);
      at::Tensor sum = add(trained_, row, count, branch.scale, weight.narrow(0, first_row + row, count).to(wide));
      if (start_.down != nullptr) sum = add(start_, row, count, -branch.scale, sum);
      squares.push_back(sum.square_().sum(1));
    }
    if (!branch.parts.empty()) first_rank += branch.rank;
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

at::Tensor LowRankAdapter::product(const Pair& pair, const at::Tensor& y, const Activation& x,
                                   const at::Tensor& row_ids) const {
  const at::Tensor low = pair.down->forward(read(x, row_ids));
  std::vector<at::Tensor> deltas;
  int64_t first = 0;
  for (size_t i = 0; i < branches_.size(); ++i) {
    const Branch& branch = branches_[i];
    if (branch.parts.empty()) {
      deltas.push_back(y.new_zeros({y.size(0), branch.local_rows}));
      continue;
    }
    at::Tensor own = branches_.size() == 1 ? low : low.narrow(1, first, branch.rank).contiguous();
    if (branch.scale != 1) own = own.mul(branch.scale);
    deltas.push_back(added(branch, pair.ups[i]->forward(own), row_ids));
    first += branch.rank;
  }
  return deltas.size() == 1 ? deltas[0] : at::cat(deltas, 1);
}

at::Tensor LowRankAdapter::add_to(at::Tensor y, const Activation& x, const at::Tensor& row_ids) {
  const at::Tensor delta = product(trained_, y, x, row_ids);
  return y.add_(start_.down == nullptr ? delta : delta - product(start_, y, x, {}));
}

void freeze_all_but_adapters(const std::vector<Parameter*>& parameters, const LoraOptions& options) {
  for (Parameter* parameter : parameters) {
    if (parameter->options().is_adapter) continue;
    parameter->set_trainable(parameter->is_trainable() && is_saved(options, *parameter) == Saved::kWhole);
  }
}

bool belongs_to_adapters(const Parameter& parameter) {
  return parameter.options().is_adapter || parameter.is_trainable();
}

std::vector<UserError> check_saved_modules(const LoraOptions& options, const std::vector<Parameter*>& parameters) {
  std::vector<UserError> errors;
  std::optional<UserError> in_part, packed, adapted;
  for (const std::string& word : options.modules_to_save) {
    LoraOptions alone;
    alone.modules_to_save = {word};
    const bool is_found = std::ranges::any_of(parameters, [&](const Parameter* parameter) {
      return !parameter->options().is_adapter && is_saved(alone, *parameter) != Saved::kNot;
    });
    if (is_found) continue;
    errors.emplace_back(
        fmt::format("lora.modules_to_save: no module of the model has a name that ends with '{}'", word),
        "name modules of the Hugging Face model, such as embed_tokens, lm_head, norm");
  }
  for (const Parameter* parameter : parameters) {
    const Saved saved = is_saved(options, *parameter);
    const std::string name = parameter->placement().pieces.empty() ? "" : parameter->placement().pieces[0].name;
    if (saved == Saved::kNot) continue;
    if (parameter->options().is_adapter) {
      adapted.emplace(
          fmt::format("lora.modules_to_save means {}, which has an adapter", name.substr(0, name.find(".lora_"))),
          "leave it out of lora.modules_to_save or of lora.target_modules");
    } else if (parameter->is_packed() || parameter->options().packing) {
      packed.emplace(fmt::format("lora.modules_to_save means {}, and lora.quantization holds it in four bits", name),
                     "save only embeddings, the head and norms beside weights in four bits");
    } else if (saved == Saved::kInPart) {
      in_part.emplace(fmt::format("lora.modules_to_save means only a part of {}, whose parts are trained together",
                                  parameter->name()),
                      "name all of them: q_proj, k_proj and v_proj, or gate_proj and up_proj; a tied model's "
                      "embed_tokens and lm_head");
    }
  }
  for (const auto& error : {adapted, packed, in_part}) {
    if (error) errors.push_back(*error);
  }
  return errors;
}

}  // namespace megalith
