#include "checkpoint/fused_experts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "checkpoint/tensor_store.h"
#include "core/error.h"

namespace megalith {
namespace {

constexpr std::string_view kExperts = ".mlp.experts.", kMixtral = ".block_sparse_moe.", kMlp = ".mlp.";
constexpr std::string_view kFusedTypes[] = {"mixtral", "qwen3_moe", "deepseek_v2", "deepseek_v3", "glm4_moe"};

}  // namespace

std::string mixtral_name(std::string_view name) {
  const size_t at = name.find(kMlp);
  std::string renamed(name);
  return at == std::string_view::npos ? renamed : renamed.replace(at, kMlp.size(), kMixtral);
}

std::vector<std::string> matrices_of_fused_expert(std::string_view name, int64_t expert, bool is_mixtral) {
  const size_t at = name.find(kExperts);
  if (at == std::string_view::npos) return {};
  const std::string_view rest = name.substr(at + kExperts.size());
  std::vector<std::string_view> linears;
  if (rest == "gate_up_proj") linears = {is_mixtral ? "w1" : "gate_proj", is_mixtral ? "w3" : "up_proj"};
  if (rest == "down_proj") linears = {is_mixtral ? "w2" : "down_proj"};
  std::vector<std::string> matrices;
  for (const std::string_view linear : linears) {
    const std::string matrix = fmt::format("{}{}.{}.weight", name.substr(0, at + kExperts.size()), expert, linear);
    matrices.push_back(is_mixtral ? mixtral_name(matrix) : matrix);
  }
  return matrices;
}

void split_fused_experts(TensorStore& store, std::string_view model_type) {
  if (std::ranges::find(kFusedTypes, model_type) == std::end(kFusedTypes)) return;
  const bool is_mixtral = model_type == "mixtral";
  TensorStore split;
  bool has_any = false;
  for (const auto& [name, entry] : store.entries()) {
    const size_t num_matrices = matrices_of_fused_expert(name, 0, is_mixtral).size();
    if (num_matrices == 0) continue;
    has_any = true;
    if (entry.shape.size() != 3 || entry.shape[1] % static_cast<int64_t>(num_matrices) != 0) {
      throw UserError(fmt::format("{}: {} is [{}], expected the experts' matrices, one after another",
                                  entry.parts.at(0).path().string(), name, fmt::join(entry.shape, ", ")),
                      "save the model with save_pretrained() of transformers");
    }
  }
  if (!has_any) return;
  for (const auto& [name, entry] : store.entries()) {
    const size_t num_matrices = matrices_of_fused_expert(name, 0, is_mixtral).size();
    const std::string own = is_mixtral ? mixtral_name(name) : name;
    if (num_matrices == 0) {
      for (const TensorStore::Part& part : entry.parts) split.add(own, entry.shape, part);
      continue;
    }
    const std::vector<int64_t> shape = {entry.shape[1] / static_cast<int64_t>(num_matrices), entry.shape[2]};
    const int64_t matrix_bytes = shape[0] * shape[1] * bits_of(entry.dtype) / 8;
    for (int64_t expert = 0; expert < entry.shape[0]; ++expert) {
      int64_t number = expert * static_cast<int64_t>(num_matrices);
      for (const std::string& matrix : matrices_of_fused_expert(name, expert, is_mixtral)) {
        FileTensor stored = entry.parts.at(0).stored;
        stored.shape = shape;
        stored.strides = row_major(shape);
        stored.offset += number++ * matrix_bytes;
        stored.num_bytes = matrix_bytes;
        split.add(matrix, shape, {Box::whole(shape), std::move(stored)});
      }
    }
  }
  store = std::move(split);
}

}  // namespace megalith
