#include "gguf/type_mix.h"

#include <algorithm>
#include <charconv>
#include <tuple>

#include "core/error.h"

namespace megalith {
namespace {

struct FileType {
  std::string_view word;
  GgufFileType type;
  GgufType of_most;
};
constexpr FileType kFileTypes[] = {
    {"fp32", GgufFileType::kF32, GgufType::kF32},      {"fp16", GgufFileType::kF16, GgufType::kF16},
    {"bf16", GgufFileType::kBf16, GgufType::kBf16},    {"q8_0", GgufFileType::kQ8_0, GgufType::kQ8_0},
    {"q4_k_m", GgufFileType::kQ4KM, GgufType::kQ4K}, {"q5_k_m", GgufFileType::kQ5KM, GgufType::kQ5K},
    {"q6_k", GgufFileType::kQ6K, GgufType::kQ6K},
};

const FileType& row_of(GgufFileType type) { return *std::ranges::find(kFileTypes, type, &FileType::type); }

bool has(const GgufTensorInfo& tensor, std::string_view part) { return tensor.name.find(part) != std::string::npos; }

bool stays_f32(const GgufTensorInfo& tensor) {
  return tensor.shape.size() < 2 || !tensor.name.ends_with(".weight") || tensor.name.ends_with("_norm.weight") ||
         tensor.name.ends_with(".ffn_gate_inp.weight") || tensor.name == "position_embd.weight";
}

// -1 outside of the layers.
int64_t layer_of(const GgufTensorInfo& tensor) {
  constexpr std::string_view kPrefix = "blk.";
  int64_t layer = -1;
  if (tensor.name.starts_with(kPrefix))
    std::from_chars(tensor.name.data() + kPrefix.size(), tensor.name.data() + tensor.name.size(), layer);
  return layer;
}

// The first and last eighths of the layers, and every third between.
bool gets_more_bits(int64_t index, int64_t count) {
  return index < count / 8 || index >= 7 * count / 8 || (index - count / 8) % 3 == 2;
}

// Heads of keys and values shared by many of queries: a small matrix that counts.
bool has_few_large_values(std::string_view architecture, const ModelConfig& config) {
  const bool shares_heads = config.num_kv_heads() != config.num_attention_heads;
  return config.num_layers == 80 &&
         (architecture == "qwen2" || (architecture == "llama" && config.expert_count() != 8 && shares_heads));
}

GgufType fitting(GgufType type, int64_t columns) {
  if (columns % block_size(type) == 0) return type;
  const GgufType next = type == GgufType::kQ4K   ? GgufType::kQ5_0
                        : type == GgufType::kQ5K ? GgufType::kQ5_1
                        : type == GgufType::kQ6K ? GgufType::kQ8_0
                                                 : GgufType::kF16;
  return next == GgufType::kF16 ? next : fitting(next, columns);
}

}  // namespace

std::optional<GgufFileType> parse_gguf_file_type(std::string_view word) {
  const auto found = std::ranges::find(kFileTypes, word, &FileType::word);
  if (found == std::ranges::end(kFileTypes)) return std::nullopt;
  return found->type;
}

bool is_k_quant(GgufFileType type) { return block_size(row_of(type).of_most) == 256; }

void choose_gguf_types(GgufFileType type, std::string_view architecture, const ModelConfig& config,
                       std::vector<GgufTensorInfo>& tensors) {
  const GgufType of_most = row_of(type).of_most;
  if (!is_k_quant(type)) {
    for (GgufTensorInfo& tensor : tensors) {
      tensor.type = stays_f32(tensor) ? GgufType::kF32 : fitting(of_most, tensor.shape.back());
    }
    return;
  }
  const auto place = [](const GgufTensorInfo& t) { return std::tuple(layer_of(t), std::string_view(t.name)); };
  std::ranges::sort(tensors, {}, place);
  const bool is_mixed = type != GgufFileType::kQ6K, has_eight_experts = config.expert_count() == 8;
  const auto is_values = [](const GgufTensorInfo& t) { return has(t, "attn_v.weight") || has(t, "attn_qkv.weight"); };
  const auto is_head = [](const GgufTensorInfo& t) { return t.name == "output.weight"; };
  const bool is_tied = std::ranges::none_of(tensors, is_head);
  const int64_t num_values = std::ranges::count_if(tensors, is_values);
  int64_t values = 0;  // so far
  for (GgufTensorInfo& tensor : tensors) {
    tensor.type = GgufType::kF32;
    if (stays_f32(tensor)) continue;
    GgufType chosen = of_most;
    if (is_head(tensor) || (is_tied && tensor.name == "token_embd.weight")) {
      chosen = tensor.shape.back() % 256 == 0 ? GgufType::kQ6K : GgufType::kQ8_0;
    } else if (is_values(tensor)) {
      if (is_mixed && gets_more_bits(values, num_values)) chosen = GgufType::kQ6K;
      if (chosen == GgufType::kQ4K && has_few_large_values(architecture, config)) chosen = GgufType::kQ5K;
      if (has_eight_experts) chosen = GgufType::kQ8_0;
      ++values;
    } else if (has(tensor, "attn_k.weight")) {
      if (has_eight_experts) chosen = GgufType::kQ8_0;
    } else if (has(tensor, "ffn_down")) {
      if (is_mixed && gets_more_bits(layer_of(tensor), config.num_layers)) chosen = GgufType::kQ6K;
    } else if (has(tensor, "attn_output.weight")) {
      if (has_eight_experts && type == GgufFileType::kQ4KM) chosen = GgufType::kQ5K;
    }
    tensor.type = fitting(chosen, tensor.shape.back());
  }
}

}  // namespace megalith
