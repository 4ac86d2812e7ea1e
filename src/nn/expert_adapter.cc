#include "nn/expert_adapter.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "comm/groups.h"
#include "core/error.h"

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
      const std::string first = expert_linear(cut, 0, linear);
      branches.push_back({.name = is_shared ? shared_name : linear,
                          .linears = {},
                          .rank = options.rank_of(first),
                          .scale = options.scale_of(first)});
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
    : branches_(std::move(branches)) {
  trained_ = make_pair(context, cut, site, /*is_start=*/false);
  if (!context.lora->start().decomposes()) return;
  start_ = make_pair(context, cut, site, /*is_start=*/true);
  const std::vector<int64_t> shape = part_of(cut, site.is_down).shape;
  for (int64_t expert = cut.first_expert; expert < cut.first_expert + cut.num_local; ++expert) {
    for (const Branch& branch : branches_) {
      if (branch.linears.empty()) continue;
      DecomposedMatrix matrix{.name = expert_linear(cut, expert, branch.name),
                              .parts = {},
                              .in_features = shape[1],
                              .rank = branch.rank,
                              .scale = branch.scale};
      for (const std::string& linear : branch.linears) {
        matrix.parts.push_back({expert_linear(cut, expert, linear), shape[0]});
      }
      decomposed_.push_back(std::move(matrix));
    }
  }
}

void ExpertAdapter::list_decomposed(std::vector<DecomposedMatrix>& into) const {
  into.insert(into.end(), decomposed_.begin(), decomposed_.end());
}

ExpertAdapter::Pair ExpertAdapter::make_pair(const LayerContext& context, const ExpertCut& cut,
                                             const ExpertAdapterSite& site, bool is_start) {
  const LoraOptions& options = *context.lora;
  LayerContext plain = context;
  plain.recipe = nullptr;
  plain.lora = nullptr;
  const std::string a = ".lora_A" + std::string(is_start ? kStartEnding : ""),
                    b = ".lora_B" + std::string(is_start ? kStartEnding : "");
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
                             .is_adapter = true,
                             .is_trainable = !is_start};
  };

  Placement down{.local_shape = {0, num_in}, .pieces = {}};
  int64_t rank = 0;
  for (int64_t j = 0; j < cut.num_local; ++j) {
    for (const Branch& branch : branches_) {
      if (branch.linears.empty()) continue;
      rank = branch.rank;
      down.pieces.push_back({.name = expert_linear(cut, cut.first_expert + j, branch.name) + a + ".weight",
                             .shape = {rank, in},
                             .canonical = {{0, first_in}, {rank, num_in}},
                             .local = {{down.local_shape[0], 0}, {rank, num_in}}});
      down.local_shape[0] += rank;
    }
  }
  Pair pair;
  pair.down = std::make_unique<GroupedLinear>(plain, site_of(site.name + a, std::move(down), site.is_down,
                                                             adapter_init(options.a_start(), in, options.dim, rank)));
  register_module(*pair.down);
  for (const Branch& branch : branches_) {
    pair.ups.push_back(nullptr);
    if (branch.linears.empty()) continue;
    Placement up{.local_shape = {0, branch.rank}, .pieces = {}};
    for (int64_t j = 0; j < cut.num_local; ++j) {
      for (const std::string& linear : branch.linears) {
        up.pieces.push_back({.name = expert_linear(cut, cut.first_expert + j, linear) + b + ".weight",
                             .shape = {out, branch.rank},
                             .canonical = {{first_out, 0}, {num_out, branch.rank}},
                             .local = {{up.local_shape[0], 0}, {num_out, branch.rank}}});
        up.local_shape[0] += num_out;
      }
    }
    const auto num_linears = static_cast<int64_t>(branch.linears.size());
    pair.ups.back() = std::make_unique<GroupedLinear>(
        plain, site_of(cut.name + "." + branch.name + b, std::move(up), !site.is_down,
                       adapter_init(options.b_start(), options.dim, num_linears * out, branch.rank)));
    register_module(*pair.ups.back());
  }
  return pair;
}

at::Tensor ExpertAdapter::product(const Pair& pair, const at::Tensor& y, const Activation& x,
                                  const at::Tensor& offsets) const {
  const at::Tensor low = pair.down->forward(x, offsets);
  std::vector<at::Tensor> deltas;
  int64_t first = 0;
  for (size_t i = 0; i < branches_.size(); ++i) {
    const Branch& branch = branches_[i];
    if (branch.linears.empty()) {
      deltas.push_back(y.new_zeros({y.size(0), branch.local_rows}));
      continue;
    }
    at::Tensor own = branches_.size() == 1 ? low : low.narrow(1, first, branch.rank).contiguous();
    if (branch.scale != 1) own = own.mul(branch.scale);
    deltas.push_back(pair.ups[i]->forward(own, offsets));
    first += branch.rank;
  }
  return deltas.size() == 1 ? deltas[0] : at::cat(deltas, 1);
}

at::Tensor ExpertAdapter::add_to(at::Tensor y, const Activation& x, const at::Tensor& offsets) {
  const at::Tensor delta = product(trained_, y, x, offsets);
  return y.add_(start_.down == nullptr ? delta : delta - product(start_, y, x, offsets));
}

}  // namespace megalith
