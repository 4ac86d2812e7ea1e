#include "foreign/torchtitan_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string>

#include "core/error.h"

namespace megalith {
namespace {

enum class TitanForm { kWhole, kQueries, kKeys, kValues, kGate, kUp, kExpertGate, kExpertUp, kExpertDown };

struct TitanName {
  std::string_view theirs, ours;
  TitanForm form = TitanForm::kWhole;
};

constexpr TitanName kTitanEnds[] = {
    {"tok_embeddings.weight", "model.embed_tokens.weight"},
    {"norm.weight", "model.norm.weight"},
    {"output.weight", "lm_head.weight"},
};
constexpr TitanName kTitanLayers[] = {
    {"attention.wq.weight", "self_attn.qkv_proj.weight", TitanForm::kQueries},
    {"attention.wk.weight", "self_attn.qkv_proj.weight", TitanForm::kKeys},
    {"attention.wv.weight", "self_attn.qkv_proj.weight", TitanForm::kValues},
    {"attention.wo.weight", "self_attn.o_proj.weight"},
    {"attention.q_norm.weight", "self_attn.q_norm.weight"},
    {"attention.k_norm.weight", "self_attn.k_norm.weight"},
    {"attention_norm.weight", "input_layernorm.weight"},
    {"ffn_norm.weight", "post_attention_layernorm.weight"},
    {"feed_forward.w1.weight", "mlp.gate_up_proj.weight", TitanForm::kGate},
    {"feed_forward.w3.weight", "mlp.gate_up_proj.weight", TitanForm::kUp},
    {"feed_forward.w2.weight", "mlp.down_proj.weight"},
    {"moe.router.gate.weight", "mlp.gate.weight"},
    {"moe.expert_bias", "mlp.gate.e_score_correction_bias"},
    {"moe.experts.w1", "mlp.experts.gate_up_proj.weight", TitanForm::kExpertGate},
    {"moe.experts.w3", "mlp.experts.gate_up_proj.weight", TitanForm::kExpertUp},
    {"moe.experts.w2", "mlp.experts.down_proj.weight", TitanForm::kExpertDown},
};

const TitanName* find_titan_row(std::span<const TitanName> rows, std::string_view name) {
  const auto found = std::find_if(rows.begin(), rows.end(), [&](const TitanName& row) { return row.theirs == name; });
  return found == rows.end() ? nullptr : &*found;
}

// A parameter's tensor of a name; null if the model has none.
struct TitanParameter {
  const TitanName* row = nullptr;
  const Placement* placement = nullptr;
};
TitanParameter titan_parameter(const CanonicalModel& model, std::string_view name) {
  constexpr std::string_view kLayers = "layers.";
  TitanParameter found;
  if (!name.starts_with(kLayers)) {
    found.row = find_titan_row(kTitanEnds, name);
    if (found.row != nullptr) found.placement = model.find(found.row->ours);
    return found;
  }
  name.remove_prefix(kLayers.size());
  const size_t dot = name.find('.');
  if (dot == std::string_view::npos) return found;
  found.row = find_titan_row(kTitanLayers, name.substr(dot + 1));
  if (found.row != nullptr) {
    found.placement = model.find(fmt::format("model.layers.{}.{}", name.substr(0, dot), found.row->ours));
  }
  return found;
}

Patch rows_of(const std::vector<int64_t>& local, int64_t to, int64_t count) {
  std::vector<int64_t> shape = local;
  shape[0] = count;
  Patch patch = Patch::whole(shape);
  patch.local.offset[0] = to;
  return patch;
}

// Channel 2j + t of a stored head is channel t d / 2 + j of ours.
std::vector<Patch> pair_patches(int64_t heads, int64_t d, int64_t columns, int64_t to) {
  std::vector<Patch> patches;
  for (int64_t head = 0; head < heads; ++head) {
    for (int64_t half = 0; half < 2; ++half) {
      patches.push_back({.foreign = {{head, 0, half, 0}, {1, d / 2, 1, columns}},
                         .local = {{to + head * d + half * d / 2, 0}, {d / 2, columns}},
                         .dims = {1, 3}});
    }
  }
  return patches;
}

// One of an expert's matrices, of all experts: (e, rows, columns).
std::vector<Patch> expert_patches(int64_t num_experts, int64_t rows, int64_t columns, int64_t stride, int64_t first) {
  std::vector<Patch> patches;
  for (int64_t expert = 0; expert < num_experts; ++expert) {
    patches.push_back({.foreign = {{expert, 0, 0}, {1, rows, columns}},
                       .local = {{expert * stride + first, 0}, {rows, columns}},
                       .dims = {1, 2}});
  }
  return patches;
}

bool is_vocabulary(std::string_view name) { return name == "model.embed_tokens.weight" || name == "lm_head.weight"; }

}  // namespace

ForeignLayout titan_layout(const CanonicalModel& model, std::string_view name) {
  const auto [row, placement] = titan_parameter(model, name);
  if (placement == nullptr) return {};
  const std::vector<int64_t>& local = placement->local_shape;
  const ModelConfig& config = model.config();
  const int64_t d = config.head_dim(), n = config.num_attention_heads, g = config.num_kv_heads();
  const auto rows = [&](int64_t to, int64_t count) {
    std::vector<int64_t> shape = local;
    shape[0] = count;
    return ForeignLayout{.shape = shape, .view = {}, .places = {{placement, {rows_of(local, to, count)}}}};
  };
  const auto heads = [&](int64_t to, int64_t count) {
    // Families that norm heads have Hugging Face's order in torchtitan too.
    if (config.qk_layernorm) return rows(to, count * d);
    return ForeignLayout{.shape = {count * d, local[1]},
                         .view = {count, d / 2, 2, local[1]},
                         .places = {{placement, pair_patches(count, d, local[1], to)}}};
  };
  const auto experts = [&](int64_t count, int64_t part) {
    if (local.size() != 2) {
      throw UserError(fmt::format("{}: experts that this family keeps in one tensor have no form in other trainers' "
                                  "files",
                                  name),
                      "export the checkpoint to Hugging Face's format with its trainer, for --load_hf");
    }
    const int64_t e = config.expert_count(), per_expert = local[0] / e, own = per_expert / count;
    return ForeignLayout{.shape = {e, own, local[1]},
                         .view = {},
                         .places = {{placement, expert_patches(e, own, local[1], per_expert, part * own)}}};
  };
  switch (row->form) {
    case TitanForm::kWhole:
      // Vocabularies are padded here.
      return rows(0, is_vocabulary(row->ours) ? *config.vocab_size : local[0]);
    case TitanForm::kQueries:
      return heads(0, n);
    case TitanForm::kKeys:
      return heads(n * d, g);
    case TitanForm::kValues:
      return rows((n + g) * d, g * d);
    case TitanForm::kGate:
      return rows(0, local[0] / 2);
    case TitanForm::kUp:
      return rows(local[0] / 2, local[0] / 2);
    case TitanForm::kExpertGate:
      return experts(2, 0);
    case TitanForm::kExpertUp:
      return experts(2, 1);
    case TitanForm::kExpertDown:
      return experts(1, 0);
  }
  return {};
}

std::vector<std::pair<std::string, ForeignLayout>> titan_tensors(const CanonicalModel& model) {
  std::vector<std::pair<std::string, ForeignLayout>> tensors;
  const auto add = [&](std::string name) {
    ForeignLayout layout = titan_layout(model, name);
    if (!layout.places.empty()) tensors.emplace_back(std::move(name), std::move(layout));
  };
  for (const TitanName& row : kTitanEnds) add(std::string(row.theirs));
  for (int64_t layer = 0; layer < model.config().num_layers; ++layer) {
    for (const TitanName& row : kTitanLayers) add(fmt::format("layers.{}.{}", layer, row.theirs));
  }
  return tensors;
}

}  // namespace megalith
