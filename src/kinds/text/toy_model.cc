#include "kinds/text/toy_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "comm/context_parallel.h"
#include "core/error.h"
#include "kinds/text/token_kind.h"
#include "models/layer_pattern.h"

namespace megalith {
namespace {

// Not a power of two, and different from all other widths. Products of random vectors of this width neither vanish nor
// saturate a softmax with init_method_std's toy: 20 × 0.2² is near 1.
constexpr int64_t kWidth = 20;
constexpr int64_t kInnerWidth = 24, kExpertWidth = 16;
constexpr int64_t kVocabulary = 37;
constexpr int64_t kToyWindow = 3;  // shorter than every sequence

// A multiple of `quantum` that is at least `size`, and at least two quanta.
int64_t sized(int64_t size, int64_t quantum) { return quantum * std::max<int64_t>(2, div_up(size, quantum)); }

// Number of ranks a layer's heads are spread over: tensor parallelism, and all-to-alls of context parallelism.
int64_t ranks_of_heads(const ParallelOptions& parallel) {
  int64_t ranks = 1;
  if (parallel.context_parallel_size > 1) {
    for (const ContextParallelKind kind : context_parallel_kinds(parallel)) {
      if (kind == ContextParallelKind::kAllToAll) ranks = std::lcm(ranks, parallel.context_parallel_size);
      if (kind == ContextParallelKind::kAllToAllP2p) {
        ranks = std::lcm(ranks, parallel.hierarchical_context_parallel_sizes.at(0));
      }
    }
  }
  return ranks * parallel.tensor_model_parallel_size;
}

void shrink_attention(const ParallelOptions& parallel, const ModelConfig& user, ModelConfig& model) {
  const int64_t ranks = ranks_of_heads(parallel);
  const int64_t heads = ranks * div_up(4, ranks);
  const bool shares_keys = user.num_kv_heads() != user.num_attention_heads;
  model.num_attention_heads = shares_keys ? 2 * heads : heads;
  model.num_query_groups = user.num_kv_heads() == 1 ? 1 : heads;
  int64_t channels = 4;
  if (user.position_embedding() == PositionEmbedding::kRope && !user.multi_latent_attention) {
    // Pairs of channels are rotated.
    const auto rotated = [&] { return static_cast<int64_t>(static_cast<double>(channels) * user.rotary_percent); };
    while (rotated() < 2 || rotated() % 2 != 0) ++channels;
  }
  if (!user.multi_latent_attention) model.kv_channels = channels;
  // GPT-2's heads must fill the width.
  const bool is_free = user.position_embedding() != PositionEmbedding::kLearnedAbsolute;
  model.hidden_size = is_free ? kWidth : model.num_attention_heads * channels;
  if (user.num_convolutions() > 0) model.hidden_size = sized(kWidth, parallel.tensor_model_parallel_size);
  if (user.attention_window() > 0) model.window_size = {kToyWindow - 1, user.is_causal() ? 0 : kToyWindow - 1};
}

void shrink_router(int64_t ep, const ModelConfig& user, ModelConfig& model) {
  int64_t quantum = ep, least = 8;
  model.moe_router_topk = std::min<int64_t>(user.moe_router_topk, 2);
  if (user.moe_router_num_groups.value_or(1) > 1) {
    // At most four groups of at least four experts each; a token takes one or two experts of each selected group.
    const int64_t groups = std::min<int64_t>(*user.moe_router_num_groups, 4);
    const int64_t open = std::min<int64_t>(*user.moe_router_group_topk, groups > 2 ? 2 : 1);
    model.moe_router_num_groups = groups;
    model.moe_router_group_topk = open;
    model.moe_router_topk = open * std::clamp<int64_t>(user.moe_router_topk / *user.moe_router_group_topk, 1, 2);
    quantum = std::lcm(ep, groups);
    least = 4 * groups;
  }
  model.num_experts = div_up(least, quantum) * quantum;
}

void shrink_experts(const ParallelOptions& parallel, const ModelConfig& user, ModelConfig& model) {
  const int64_t tp = parallel.tensor_model_parallel_size;
  const int64_t quantum = std::lcm(tp, parallel.expert_tensor_parallel_size.value_or(tp));
  model.ffn_hidden_size = sized(kInnerWidth, quantum);
  if (!user.has_experts()) return;
  shrink_router(parallel.expert_model_parallel_size, user, model);
  // Mixtral's experts are as wide as an MLP.
  model.moe_ffn_hidden_size.reset();
  if (user.expert_ffn_size() != user.ffn_size()) model.moe_ffn_hidden_size = sized(kExpertWidth, quantum);
  const int64_t shared = user.shared_expert_size();
  model.num_shared_experts.reset();
  model.moe_shared_expert_intermediate_size.reset();
  if (shared > 0) {
    model.moe_shared_expert_intermediate_size =
        std::clamp<int64_t>(shared / user.expert_ffn_size(), 1, 2) * model.expert_ffn_size();
  }
}

// Each toy layer has the kind, 0 or 1, of the layer it represents; both kinds occur if both did.
std::vector<int64_t> toy_layers(const std::vector<int64_t>& asked, const std::vector<int64_t>& sources) {
  std::vector<int64_t> layers;
  for (const int64_t source : sources) layers.push_back(asked[static_cast<size_t>(source)]);
  const auto has = [](const std::vector<int64_t>& list, int64_t kind) {
    return std::find(list.begin(), list.end(), kind) != list.end();
  };
  if (layers.size() > 1 && has(asked, 0) && has(asked, 1)) {
    if (!has(layers, 0)) (asked.front() == 0 ? layers.front() : layers.back()) = 0;
    if (!has(layers, 1)) (asked.front() == 1 ? layers.front() : layers.back()) = 1;
  }
  return layers;
}

std::string toy_layer_pattern(const ModelConfig& user, const std::vector<int64_t>& sources) {
  return fmt::format(
      "[{}]", fmt::join(toy_layers(parse_moe_layer_freq(user.moe_layer_freq, user.num_all_layers()), sources), ","));
}

}  // namespace

int64_t toy_prediction_modules(const ModelConfig& user) { return std::min<int64_t>(user.num_prediction_modules(), 2); }

void TokenKind::shrink_model(const ParallelOptions& ranks, const ModelConfig& asked,
                             const std::vector<int64_t>& sources, ModelConfig& model) const {
  model.num_layers = std::ssize(sources);
  if (asked.has_encoder()) {
    model.num_layers = std::ranges::count_if(sources, [&](int64_t source) { return source < asked.num_layers; });
    model.decoder_num_layers = std::ssize(sources) - model.num_layers;
  }
  shrink_attention(ranks, asked, model);
  shrink_experts(ranks, asked, model);
  if (asked.has_experts()) model.moe_layer_freq = toy_layer_pattern(asked, sources);
  if (asked.attention_window() > 0) {
    model.window_attn_skip_freq = window_attn_skip_freq_text(toy_layers(asked.layers_with_window(), sources));
  }
  if (!asked.no_rope_freq.empty()) {
    model.no_rope_freq = no_rope_freq_text(toy_layers(asked.layers_without_rotation(), sources));
  }
  if (asked.num_convolutions() > 0) {
    std::vector<int64_t> kinds;
    for (int64_t layer = 0; layer < asked.num_layers; ++layer) kinds.push_back(asked.has_convolution_at(layer));
    model.layer_types.clear();
    for (const int64_t kind : toy_layers(kinds, sources)) {
      model.layer_types.push_back(kind == 1 ? kConvolutionLayer : kAttentionLayer);
    }
  }
  if (asked.mtp_num_layers) model.mtp_num_layers = toy_prediction_modules(asked);
  // Not a multiple, so that it is padded, with a few tokens for every rank.
  model.vocab_size = std::max(kVocabulary, 8 * ranks.tensor_model_parallel_size - 3);
}

}  // namespace megalith
