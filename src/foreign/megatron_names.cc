#include "foreign/megatron_names.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <span>
#include <utility>

#include "core/error.h"

namespace megalith {
namespace {

enum class RowForm { kPlain, kQkv, kKeyValue, kGated, kVocabulary, kExpert };

struct MegatronName {
  std::string_view theirs;
  std::string_view ours;  // below "model.layers.N." for a layer's; '?' stands for gate_up_proj or up_proj
  RowForm form = RowForm::kPlain;
  int split_dim = -1;
};

using enum RowForm;

// megatron-core's, and what Megatron-LM before it and Stanford's fork call the same.
constexpr MegatronName kEnds[] = {
    {"embedding.word_embeddings.weight", "model.embed_tokens.weight", kVocabulary, 0},
    {"embedding.position_embeddings.weight", "model.embed_positions.weight"},
    {"decoder.final_layernorm.weight", "model.norm.weight"},
    {"decoder.final_layernorm.bias", "model.norm.bias"},
    {"output_layer.weight", "lm_head.weight", kVocabulary, 0},
};
constexpr MegatronName kOlderEnds[] = {
    {"language_model.embedding.word_embeddings.weight", "model.embed_tokens.weight", kVocabulary, 0},
    {"language_model.embedding.position_embeddings.weight", "model.embed_positions.weight"},
    {"language_model.encoder.final_layernorm.weight", "model.norm.weight"},
    {"language_model.encoder.final_layernorm.bias", "model.norm.bias"},
    {"language_model.encoder.final_norm.weight", "model.norm.weight"},
    {"language_model.output_layer.weight", "lm_head.weight", kVocabulary, 0},
};
constexpr std::string_view kLayerStacks[] = {"decoder.layers.", "encoder.layers.", "language_model.encoder.layers.",
                                             "language_model.transformer.layers.", "language_model.decoder.layers."};
constexpr MegatronName kOfLayers[] = {
    {"input_layernorm.weight", "input_layernorm.weight"},
    {"input_layernorm.bias", "input_layernorm.bias"},
    {"self_attention.linear_qkv.layer_norm_weight", "input_layernorm.weight"},
    {"self_attention.linear_qkv.layer_norm_bias", "input_layernorm.bias"},
    {"self_attention.linear_qkv.weight", "self_attn.qkv_proj.weight", kQkv, 0},
    {"self_attention.linear_qkv.bias", "self_attn.qkv_proj.bias", kQkv, 0},
    {"self_attention.linear_proj.weight", "self_attn.o_proj.weight", kPlain, 1},
    {"self_attention.linear_proj.bias", "self_attn.o_proj.bias"},
    {"self_attention.q_layernorm.weight", "self_attn.q_norm.weight"},
    {"self_attention.k_layernorm.weight", "self_attn.k_norm.weight"},
    {"self_attention.linear_q_proj.weight", "self_attn.q_proj.weight", kPlain, 0},
    {"self_attention.linear_q_down_proj.weight", "self_attn.q_a_proj.weight"},
    {"self_attention.linear_q_up_proj.weight", "self_attn.q_b_proj.weight", kPlain, 0},
    {"self_attention.linear_q_up_proj.layer_norm_weight", "self_attn.q_a_layernorm.weight"},
    {"self_attention.linear_kv_down_proj.weight", "self_attn.kv_a_proj_with_mqa.weight"},
    {"self_attention.linear_kv_up_proj.weight", "self_attn.kv_b_proj.weight", kPlain, 0},
    {"self_attention.linear_kv_up_proj.layer_norm_weight", "self_attn.kv_a_layernorm.weight"},
    {"self_attention.kv_layernorm.weight", "self_attn.kv_a_layernorm.weight"},
    {"pre_mlp_layernorm.weight", "post_attention_layernorm.weight"},
    {"pre_mlp_layernorm.bias", "post_attention_layernorm.bias"},
    {"mlp.linear_fc1.layer_norm_weight", "post_attention_layernorm.weight"},
    {"mlp.linear_fc1.layer_norm_bias", "post_attention_layernorm.bias"},
    {"mlp.linear_fc1.weight", "mlp.?.weight", kGated, 0},
    {"mlp.linear_fc1.bias", "mlp.?.bias", kGated, 0},
    {"mlp.linear_fc2.weight", "mlp.down_proj.weight", kPlain, 1},
    {"mlp.linear_fc2.bias", "mlp.down_proj.bias"},
    {"mlp.router.weight", "mlp.gate.weight"},
    {"mlp.router.expert_bias", "mlp.gate.e_score_correction_bias"},
    {"mlp.experts.linear_fc1.weight", "mlp.experts.?.weight", kExpert, 0},
    {"mlp.experts.linear_fc2.weight", "mlp.experts.down_proj.weight", kExpert, 1},
    {"mlp.shared_experts.linear_fc1.weight", "mlp.shared_experts.?.weight", kGated, 0},
    {"mlp.shared_experts.linear_fc2.weight", "mlp.shared_experts.down_proj.weight", kPlain, 1},
};
constexpr MegatronName kOlderOfLayers[] = {
    {"self_attention.query_key_value.weight", "self_attn.qkv_proj.weight", kQkv, 0},
    {"self_attention.query_key_value.bias", "self_attn.qkv_proj.bias", kQkv, 0},
    {"attention.query_key_value.weight", "self_attn.qkv_proj.weight", kQkv, 0},
    {"attention.query_key_value.bias", "self_attn.qkv_proj.bias", kQkv, 0},
    {"self_attention.dense.weight", "self_attn.o_proj.weight", kPlain, 1},
    {"self_attention.dense.bias", "self_attn.o_proj.bias"},
    {"attention.dense.weight", "self_attn.o_proj.weight", kPlain, 1},
    {"attention.dense.bias", "self_attn.o_proj.bias"},
    {"input_norm.weight", "input_layernorm.weight"},
    {"post_attention_norm.weight", "post_attention_layernorm.weight"},
    {"post_attention_layernorm.weight", "post_attention_layernorm.weight"},
    {"post_attention_layernorm.bias", "post_attention_layernorm.bias"},
    {"mlp.dense_h_to_4h.weight", "mlp.?.weight", kGated, 0},
    {"mlp.dense_h_to_4h.bias", "mlp.?.bias", kGated, 0},
    {"mlp.dense_4h_to_h.weight", "mlp.down_proj.weight", kPlain, 1},
    {"mlp.dense_4h_to_h.bias", "mlp.down_proj.bias"},
};

// Tables without the last word: weights and biases are named alike.
constexpr MegatronName kBertEnds[] = {
    {"embedding.tokentype_embeddings", "model.embed_token_types"},
    {"language_model.embedding.tokentype_embeddings", "model.embed_token_types"},
    {"encoder.final_layernorm", "model.norm"},
    {"language_model.encoder.final_norm", "model.norm"},
    {"language_model.transformer.final_layernorm", "model.norm"},
    {"lm_head.dense", "cls.predictions.transform.dense"},
    {"lm_head.layer_norm", "cls.predictions.transform.LayerNorm"},
    {"lm_head.layernorm", "cls.predictions.transform.LayerNorm"},
    {"lm_head.norm", "cls.predictions.transform.LayerNorm"},
    {"output_layer", "lm_head", kVocabulary, 0},
    {"lm_head", "lm_head", kVocabulary, 0},
    {"pooler.dense", "bert.pooler.dense"},
    {"language_model.pooler.dense", "bert.pooler.dense"},
    {"binary_head", "cls.seq_relationship"},
};
constexpr MegatronName kT5Ends[] = {
    {"embedding.word_embeddings", "shared", kVocabulary, 0},
    {"embedding.position_embeddings", "shared_position_embeddings"},
    {"encoder.final_layernorm", "encoder.final_layer_norm"},
    {"encoder.final_norm", "encoder.final_layer_norm"},
    {"decoder.final_layernorm", "decoder.final_layer_norm"},
    {"decoder.final_norm", "decoder.final_layer_norm"},
    {"lm_head.output_layer", "lm_head", kVocabulary, 0},
    {"lm_head", "lm_head", kVocabulary, 0},
    {"output_layer", "lm_head", kVocabulary, 0},
    {"position_embeddings", "shared_position_embeddings"},
    {"encoder_relative_pos_emb.relative_attention_bias",
     "encoder.block.0.layer.0.SelfAttention.relative_attention_bias"},
    {"decoder_relative_pos_emb.relative_attention_bias",
     "decoder.block.0.layer.0.SelfAttention.relative_attention_bias"},
};
// Below "encoder.block.N." or "decoder.block.N."; '#' stands for the MLP's place, which follows the cross attention.
constexpr MegatronName kT5OfLayers[] = {
    {"input_layernorm", "layer.0.layer_norm"},
    {"input_norm", "layer.0.layer_norm"},
    {"self_attention.linear_qkv.layer_norm", "layer.0.layer_norm"},
    {"self_attention.linear_qkv", "layer.0.SelfAttention.qkv_proj", kQkv, 0},
    {"self_attention.query_key_value", "layer.0.SelfAttention.qkv_proj", kQkv, 0},
    {"self_attention.linear_proj", "layer.0.SelfAttention.o", kPlain, 1},
    {"self_attention.dense", "layer.0.SelfAttention.o", kPlain, 1},
    {"pre_cross_attn_layernorm", "layer.1.layer_norm"},
    {"cross_attention.linear_q.layer_norm", "layer.1.layer_norm"},
    {"cross_attention.linear_q", "layer.1.EncDecAttention.q", kPlain, 0},
    {"inter_attention.query", "layer.1.EncDecAttention.q", kPlain, 0},
    {"cross_attention.linear_kv", "layer.1.EncDecAttention.kv_proj", kKeyValue, 0},
    {"inter_attention.key_value", "layer.1.EncDecAttention.kv_proj", kKeyValue, 0},
    {"cross_attention.linear_proj", "layer.1.EncDecAttention.o", kPlain, 1},
    {"inter_attention.dense", "layer.1.EncDecAttention.o", kPlain, 1},
    // Before the MLP of an encoder's layer, before the cross attention of a decoder's.
    {"post_attention_layernorm", "layer.1.layer_norm"},
    {"post_attention_norm", "layer.1.layer_norm"},
    {"post_inter_attention_layernorm", "layer.2.layer_norm"},
    {"post_inter_attention_norm", "layer.2.layer_norm"},
    {"pre_mlp_layernorm", "layer.#.layer_norm"},
    {"mlp.linear_fc1.layer_norm", "layer.#.layer_norm"},
    {"mlp.linear_fc1", "layer.#.DenseReluDense.?", kGated, 0},
    {"mlp.dense_h_to_4h", "layer.#.DenseReluDense.?", kGated, 0},
    {"mlp.linear_fc2", "layer.#.DenseReluDense.wo", kPlain, 1},
    {"mlp.dense_4h_to_h", "layer.#.DenseReluDense.wo", kPlain, 1},
};

// "3.mlp.x" → 3 and "mlp.x".
std::optional<int64_t> take_number(std::string_view& name) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (error != std::errc() || number < 0) return std::nullopt;
  name.remove_prefix(static_cast<size_t>(end - name.data()));
  if (name.starts_with('.')) name.remove_prefix(1);
  return number;
}

std::string our_name(const CanonicalModel& model, std::string_view pattern, std::optional<int64_t> layer,
                     bool is_of_decoder = true) {
  const bool is_t5 = model.config().has_encoder();
  const std::string_view stack = !is_t5 ? "model.layers" : is_of_decoder ? "decoder.block" : "encoder.block";
  std::string name = layer ? fmt::format("{}.{}.{}", stack, *layer, pattern) : std::string(pattern);
  if (const size_t at = name.find('#'); at != std::string::npos) name.replace(at, 1, is_of_decoder ? "2" : "1");
  if (const size_t at = name.find('?'); at != std::string::npos) {
    std::string gated = name;
    gated.replace(at, 1, "gate_up_proj");
    if (model.find(gated) != nullptr) return gated;
    name.replace(at, 1, is_t5 ? "wi" : "up_proj");
  }
  return name;
}

// Rows [from, from + count) of the file's last dims are rows [to, …) of the local tensor. lead: places in the dims
// before.
Patch rows_patch(const std::vector<int64_t>& shape, const std::vector<int64_t>& lead, int64_t from, int64_t to,
                 int64_t count) {
  Patch patch{.foreign = {lead, std::vector<int64_t>(lead.size(), 1)}};
  for (size_t d = 0; d < shape.size(); ++d) {
    patch.dims.push_back(lead.size() + d);
    patch.foreign.offset.push_back(d == 0 ? from : 0);
    patch.local.offset.push_back(d == 0 ? to : 0);
    for (Box* box : {&patch.foreign, &patch.local}) box->extent.push_back(d == 0 ? count : shape[d]);
  }
  return patch;
}

std::vector<Patch> qkv_patches(const ModelConfig& config, const std::vector<int64_t>& shape,
                               const std::vector<int64_t>& lead) {
  const int64_t d = config.head_dim(), n = config.num_attention_heads, g = config.num_kv_heads(), per_group = n / g;
  std::vector<Patch> patches;
  for (int64_t group = 0; group < g; ++group) {
    const int64_t from = group * (per_group + 2) * d;
    patches.push_back(rows_patch(shape, lead, from, group * per_group * d, per_group * d));
    patches.push_back(rows_patch(shape, lead, from + per_group * d, (n + group) * d, d));
    patches.push_back(rows_patch(shape, lead, from + (per_group + 1) * d, (n + g + group) * d, d));
  }
  return patches;
}

std::vector<Patch> key_value_patches(const ModelConfig& config, const std::vector<int64_t>& shape,
                                     const std::vector<int64_t>& lead) {
  const int64_t d = config.head_dim(), g = config.num_kv_heads();
  std::vector<Patch> patches;
  for (int64_t group = 0; group < g; ++group) {
    patches.push_back(rows_patch(shape, lead, 2 * group * d, group * d, d));
    patches.push_back(rows_patch(shape, lead, (2 * group + 1) * d, (g + group) * d, d));
  }
  return patches;
}

struct FoundRow {
  std::string ours;  // a pattern
  RowForm form;
  int split_dim;
};

std::optional<FoundRow> find_row(const CanonicalModel& model, const std::optional<MegatronLayerName>& of_layer,
                                 std::string_view name) {
  using Rows = std::span<const MegatronName>;
  const std::string_view rest = of_layer ? std::string_view(of_layer->rest) : name;
  const auto find_in = [](Rows rows, std::string_view wanted) -> const MegatronName* {
    const auto found = std::ranges::find(rows, wanted, &MegatronName::theirs);
    return found == rows.end() ? nullptr : &*found;
  };
  const bool is_t5 = model.config().has_encoder();
  for (const Rows rows :
       {of_layer ? Rows(kOfLayers) : Rows(kEnds), of_layer ? Rows(kOlderOfLayers) : Rows(kOlderEnds)}) {
    const MegatronName* row = is_t5 ? nullptr : find_in(rows, rest);
    if (row != nullptr) return FoundRow{std::string(row->ours), row->form, row->split_dim};
  }
  // "x.layer_norm_weight" is the weight of x.layer_norm.
  const size_t end = rest.find_last_of("._");
  const std::string_view last = end == std::string_view::npos ? "" : rest.substr(end + 1);
  if (last != "weight" && last != "bias") return std::nullopt;
  constexpr std::string_view kOlder = "language_model.";
  std::string_view stem = rest.substr(0, end);
  if (is_t5 && stem.starts_with(kOlder)) stem.remove_prefix(kOlder.size());
  const Rows rows = !is_t5 ? Rows(kBertEnds) : of_layer ? Rows(kT5OfLayers) : Rows(kT5Ends);
  const MegatronName* row = !is_t5 && of_layer ? nullptr : find_in(rows, stem);
  if (row == nullptr) return std::nullopt;
  const bool is_whole = last == "bias" && row->split_dim == 1;
  return FoundRow{fmt::format("{}.{}", row->ours, last), row->form, is_whole ? -1 : row->split_dim};
}

}  // namespace

std::optional<MegatronLayerName> megatron_layer_name(std::string_view name) {
  for (const std::string_view stack : kLayerStacks) {
    if (!name.starts_with(stack)) continue;
    name.remove_prefix(stack.size());
    MegatronLayerName found;
    found.is_of_decoder = stack.ends_with("decoder.layers.");
    found.layer = take_number(name);
    constexpr std::string_view kExperts = "mlp.experts.", kInner = "experts.", kLocal = "local_experts.";
    if (name.starts_with(kExperts)) {
      std::string_view below = name.substr(kExperts.size());
      if (below.starts_with(kInner)) below.remove_prefix(kInner.size());
      if (below.starts_with(kLocal)) below.remove_prefix(kLocal.size());
      found.expert = take_number(below);
      // Transformer Engine's grouped linear: weight0, weight1, …
      constexpr std::string_view kWeight = ".weight";
      if (const size_t at = below.rfind(kWeight); at != std::string_view::npos) {
        std::string_view number = below.substr(at + kWeight.size());
        if (const auto expert = take_number(number); expert && number.empty()) {
          found.expert = expert;
          below = below.substr(0, at + kWeight.size());
        }
      }
      found.rest = fmt::format("{}{}", kExperts, below);
    } else {
      found.rest = name;
    }
    return found;
  }
  return std::nullopt;
}

ForeignLayout megatron_layout(const CanonicalModel& model, std::string_view name,
                              const std::optional<std::vector<int64_t>>& stored) {
  const ModelConfig& config = model.config();
  const auto of_layer = megatron_layer_name(name);
  const auto row = find_row(model, of_layer, name);
  if (!row) return {};
  const bool is_stacked = of_layer && !of_layer->layer, is_expert = row->form == kExpert;
  const int64_t num_experts = is_expert ? config.expert_count() : 1;
  const int64_t first = of_layer && of_layer->layer ? *of_layer->layer : 0;
  const bool is_of_decoder = of_layer && of_layer->is_of_decoder;
  const int64_t num_layers = is_of_decoder && config.has_encoder() ? config.num_decoder_layers() : config.num_layers;
  const int64_t count = is_stacked ? num_layers : 1;
  ForeignLayout found;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t layer = first + i;
    const std::string ours =
        our_name(model, row->ours, of_layer ? std::optional(layer) : std::nullopt, is_of_decoder);
    const Placement* placement = model.find(ours);
    if (placement == nullptr) return {};
    if (is_expert && placement->local_shape.size() != 2) {
      throw UserError(
          fmt::format("{}: experts that this family keeps in one tensor have no form in other trainers' files", name),
          "export the checkpoint to Hugging Face's format with Megatron Bridge, for --load_hf");
    }
    // A layer's own dims, and those of the stack and of the experts before.
    std::vector<int64_t> own = placement->local_shape, lead;
    own[0] = is_expert ? own[0] / num_experts : own[0];
    const bool are_stacked_experts = is_expert && !of_layer->expert;
    std::vector<int64_t> expected = own;
    if (are_stacked_experts) expected.insert(expected.begin(), num_experts);
    if (is_stacked) expected.insert(expected.begin(), num_layers);
    if (row->form == kVocabulary) expected[0] = *config.vocab_size;  // padded or not, in the file and here
    found.shape = stored.value_or(expected);
    const std::vector<int64_t>& shape = found.shape;
    bool fits = expected.size() == shape.size() && (!is_expert || of_layer->expert.value_or(0) < num_experts);
    for (size_t d = 0; fits && d < expected.size(); ++d) {
      fits = shape[d] == expected[d] || (row->form == kVocabulary && d == 0 && shape[d] > expected[d]);
    }
    if (!fits) {
      throw UserError(fmt::format("{} is [{}] in the checkpoint, and [{}] in this model", name, fmt::join(shape, ", "),
                                  fmt::join(expected, ", ")),
                      "give the architecture that it was trained with");
    }
    ForeignLayout::Place place{.placement = placement, .patches = {}};
    if (is_stacked) lead.push_back(layer);
    if (row->form == kQkv) {
      place.patches = qkv_patches(config, own, lead);
    } else if (row->form == kKeyValue) {
      place.patches = key_value_patches(config, own, lead);
    } else if (!is_expert) {
      const int64_t rows = row->form == kVocabulary ? std::min(own[0], shape[0]) : own[0];
      place.patches = {rows_patch(own, lead, 0, 0, rows)};
    }
    for (int64_t expert = 0; is_expert && expert < num_experts; ++expert) {
      if (of_layer->expert && *of_layer->expert != expert) continue;
      std::vector<int64_t> at = lead;
      if (are_stacked_experts) at.push_back(expert);
      place.patches.push_back(rows_patch(own, at, 0, expert * own[0], own[0]));
    }
    found.places.push_back(std::move(place));
  }
  return found;
}

std::vector<MegatronTensor> megatron_tensors(const CanonicalModel& model) {
  std::vector<MegatronTensor> tensors;
  const auto add = [&](const std::string& name) {
    ForeignLayout layout = megatron_layout(model, name);
    if (layout.places.empty()) return;
    const Placement* placement = layout.places.front().placement;
    const auto same = std::ranges::find(
        tensors, placement, [](const MegatronTensor& tensor) { return tensor.layout.places.front().placement; });
    if (same == tensors.end()) {
      tensors.push_back({.names = {name}, .layout = std::move(layout)});
    } else {
      same->names.push_back(name);
    }
  };
  for (const MegatronName& row : kEnds) add(std::string(row.theirs));
  const int64_t num_layers = model.config().num_layers;
  bool are_alike = true;
  for (int64_t layer = 1; layer < num_layers; ++layer) {
    for (const MegatronName& row : kOfLayers) {
      const auto has_it = [&](int64_t i) { return model.find(our_name(model, row.ours, i)) != nullptr; };
      are_alike = are_alike && has_it(layer) == has_it(0);
    }
  }
  for (int64_t layer = 0; layer < (are_alike ? 1 : num_layers); ++layer) {
    for (const MegatronName& row : kOfLayers) {
      constexpr std::string_view kExperts = "mlp.experts.";
      std::string name(row.theirs);
      if (name.starts_with(kExperts)) name.insert(kExperts.size(), "experts.");
      add(fmt::format("{}{}{}", kLayerStacks[0], are_alike ? "" : fmt::format("{}.", layer), name));
    }
  }
  return tensors;
}

std::optional<MegatronCut> megatron_cut(const CanonicalModel& model, std::string_view name) {
  const auto of_layer = megatron_layer_name(name);
  const auto row = find_row(model, of_layer, name);
  if (!row) return std::nullopt;
  const std::string ours = our_name(model, row->ours, of_layer ? of_layer->layer : std::nullopt,
                                    of_layer && of_layer->is_of_decoder);
  if (model.find(ours) == nullptr) return std::nullopt;
  const bool is_gated = row->split_dim == 0 && ours.find("gate_up_proj") != std::string::npos;
  return MegatronCut{.dim = row->split_dim, .num_parts = is_gated ? 2 : 1};
}

bool is_second_megatron_name(const CanonicalModel& model, std::string_view name) {
  return model.config().has_encoder() && (name.starts_with("output_layer.") || name.starts_with("position_embeddings."));
}

std::string_view megatron_model_type(const std::vector<std::string>& names) {
  constexpr std::pair<std::string_view, std::string_view> kMarks[] = {{"cross_attention.", "t5"},
                                                                      {"inter_attention.", "t5"},
                                                                      {"lm_head.dense.", "bert"},
                                                                      {"tokentype_embeddings.", "bert"}};
  for (const std::string& name : names) {
    for (const auto& [part, type] : kMarks) {
      if (name.find(part) != std::string::npos) return type;
    }
  }
  return "";
}

std::string_view unused_in_megatron(std::string_view name) {
  struct Reason {
    std::string_view part, why;
  };
  constexpr Reason kReasons[] = {
      {"_extra_state", "Transformer Engine's scales of FP8, which are measured anew"},
      {"inv_freq", "rotary frequencies, which follow from rotary_base"},
      {"rng_state", "random states: ours are a function of seed and position"},
      {"rerun_state_machine", "a monitor's state"},
      {"local_tokens_per_expert", "loads of experts since the last update"},
      {".per_bucket_numel", "sizes of buckets, which their tensors have"},
  };
  for (const Reason& reason : kReasons) {
    if (name.find(reason.part) != std::string_view::npos) return reason.why;
  }
  return "";
}

}  // namespace megalith
