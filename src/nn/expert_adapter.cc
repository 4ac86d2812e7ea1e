#include "nn/expert_adapter.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "comm/groups.h"
#include "core/error.h"
#include "nn/low_rank_adapter.h"

namespace megalith {
namespace {

std::string expert_linear(const ExpertCut& cut, int64_t expert, const std::string& linear) {
  return fmt::format("{}.{}.{}", cut.name, expert, linear);
}

struct ExpertPart {
  std::vector<int64_t> shape;
  Box box;
};
ExpertPart part_of(const ExpertCut& cut, bool is_down) {
  if (is_down) return {{cut.hidden, cut.ffn}, {{0, cut.first_column}, {cut.hidden, cut.num_columns}}};
  return {{cut.ffn, cut.hidden}, {{cut.first_column, 0}, {cut.num_columns, cut.hidden}}};
}

}  // namespace

AdaptableLayer adaptable_experts(const ExpertCut& cut, const ExpertAdapterSite& site) {
  const ExpertPart whole = part_of(cut, site.is_down);
  AdaptableLayer layer{.kind = site.is_down ? LinearKind::kMlpDown : LinearKind::kMlpUp,
                       .parts = {},
                       .rows = {},
                       .in_features = whole.shape[1],
                       .num_experts = cut.num_experts};
  for (int64_t expert = 0; expert < cut.num_experts; ++expert) {
    for (const std::string& linear : site.linears) {
      layer.parts.push_back(expert_linear(cut, expert, linear));
      layer.rows.push_back(whole.shape[0]);
    }
  }
  return layer;
}

std::unique_ptr<ExpertAdapter> ExpertAdapter::make(const LayerContext& context, const ExpertCut& cut,
                                                   const ExpertAdapterSite& site) {
  if (context.lora == nullptr) return nullptr;
  const LoraOptions& options = *context.lora;
  const bool is_shared = options.targets(site.is_down ? LinearKind::kMlpDown : LinearKind::kMlpUp);
  const int64_t rows = site.is_down ? cut.hidden : cut.num_columns;
  std::vector<Branch> branches;
  bool adds = false;
  for (const std::string& linear : site.linears) {
    int64_t num_meant = 0;
    for (int64_t expert = 0; expert < cut.num_experts && !is_shared; ++expert) {
      num_meant += options.targets(std::string_view(expert_linear(cut, expert, linear)));
    }
    MEGALITH_CHECK(num_meant == 0 || num_meant == cut.num_experts, "{}: {} of {} experts are adapted", site.name,
                   num_meant, cut.num_experts);
    if (branches.empty() || !is_shared) {
      const std::string shared_name = site.name.substr(site.name.rfind('.') + 1);
      branches.push_back({.name = is_shared ? shared_name : linear, .linears = {}});
    }
    Branch& branch = branches.back();
    if (is_shared || num_meant > 0) branch.linears.push_back(linear);
    branch.local_rows += rows;
    adds |= !branch.linears.empty();
  }
  if (!adds) return nullptr;
  return std::unique_ptr<ExpertAdapter>(new ExpertAdapter(context, cut, site, std::move(branches)));
}

ExpertAdapter::ExpertAdapter(const LayerContext& context, const ExpertCut& cut, const ExpertAdapterSite& site,
                             std::vector<Branch> branches)
    : scale_(context.lora->scale()), rank_(context.lora->dim), branches_(std::move(branches)) {
  const LoraOptions& options = *context.lora;
  LayerContext plain = context;
  plain.recipe = nullptr;
  plain.lora = nullptr;
  const ExpertPart part = part_of(cut, site.is_down);
  const int64_t in = part.shape[1], out = part.shape[0], first_in = part.box.offset[1], num_in = part.box.extent[1],
                first_out = part.box.offset[0], num_out = part.box.extent[0];
  AxisSet copied = site.axes;
  copied.insert(site.part_axis);
  const auto site_of = [&](const std::string& name, Placement placement, bool is_cut, const Init& init) {
    placement.replica_axes = placement.partial_axes = is_cut ? site.axes : copied;
    return GroupedLinearSite{.name = name,
                             .placement = std::move(placement),
                             .num_experts = cut.num_experts,
                             .first_expert = cut.first_expert,
                             .num_local = cut.num_local,
                             .rows_per_token = site.rows_per_token,
                             .init = init,
                             .is_adapter = true};
  };

  Placement down{.local_shape = {0, num_in}, .pieces = {}};
  for (int64_t j = 0; j < cut.num_local; ++j) {
    for (const Branch& branch : branches_) {
      if (branch.linears.empty()) continue;
      down.pieces.push_back({.name = expert_linear(cut, cut.first_expert + j, branch.name) + ".lora_A.weight",
                             .shape = {rank_, in},
                             .canonical = {{0, first_in}, {rank_, num_in}},
                             .local = {{down.local_shape[0], 0}, {rank_, num_in}}});
      down.local_shape[0] += rank_;
    }
  }
  down_ = std::make_unique<GroupedLinear>(plain, site_of(site.name + ".lora_A", std::move(down), site.is_down,
                                                         adapter_init(options.a_init, in, rank_)));
  register_module(*down_);
  for (Branch& branch : branches_) {
    if (branch.linears.empty()) continue;
    Placement up{.local_shape = {0, rank_}, .pieces = {}};
    for (int64_t j = 0; j < cut.num_local; ++j) {
      for (const std::string& linear : branch.linears) {
        up.pieces.push_back({.name = expert_linear(cut, cut.first_expert + j, linear) + ".lora_B.weight",
                             .shape = {out, rank_},
                             .canonical = {{first_out, 0}, {num_out, rank_}},
                             .local = {{up.local_shape[0], 0}, {num_out, rank_}}});
        up.local_shape[0] += num_out;
      }
    }
    const auto num_linears = static_cast<int64_t>(branch.linears.size());
    branch.up = std::make_unique<GroupedLinear>(
        plain, site_of(cut.name + "." + branch.name + ".lora_B", std::move(up), !site.is_down,
                       adapter_init(options.b_init, rank_, num_linears * out)));
    register_module(*branch.up);
  }
}

at::Tensor ExpertAdapter::add_to(at::Tensor y, const Activation& x, const at::Tensor& offsets) {
  at::Tensor low = down_->forward(x, offsets);
  if (scale_ != 1) low = low.mul(scale_);
  std::vector<at::Tensor> deltas;
  int64_t first = 0;
  for (const Branch& branch : branches_) {
    if (branch.up == nullptr) {
      deltas.push_back(y.new_zeros({y.size(0), branch.local_rows}));
      continue;
    }
    const at::Tensor own = branches_.size() == 1 ? low : low.narrow(1, first, rank_).contiguous();
    deltas.push_back(branch.up->forward(own, offsets));
    first += rank_;
  }
  return y.add_(deltas.size() == 1 ? deltas[0] : at::cat(deltas, 1));
}

}  // namespace megalith
