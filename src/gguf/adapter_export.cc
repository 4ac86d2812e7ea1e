#include "gguf/adapter_export.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/file.h"
#include "gguf/architectures.h"
#include "gguf/export.h"
#include "gguf/gguf_file.h"

namespace megalith {
namespace {

struct Pair {
  at::Tensor down, up;
};

// A pair as its weight's tensor needs it; nothing if that is of another shape.
std::optional<Pair> in_file(const Pair& pair, GgufChange change, const ModelConfig& config) {
  switch (change) {
    case GgufChange::kNone:
    case GgufChange::kStack:
    case GgufChange::kTranspose:  // of files whose weights are (in, out)
      return pair;
    case GgufChange::kQueryRows:
      return Pair{pair.down, with_adjacent_pairs(pair.up, config.num_attention_heads)};
    case GgufChange::kKeyRows:
      return Pair{pair.down, with_adjacent_pairs(pair.up, config.num_kv_heads())};
    default:
      return std::nullopt;
  }
}

[[noreturn]] void refuse(const std::string& what) {
  throw UserError(fmt::format("GGUF: llama.cpp's adapters have no form for {}", what),
                  "make them part of the model: --load_hf BASE --merge_adapter DIR --to gguf");
}

double alpha_of(const AdapterMatrices& matrices) {
  return matrices.scale * static_cast<double>(matrices.down.size(0));
}

std::map<std::string, Pair> pairs_of(const ReadAdapter& adapter, const GgufArchitecture& architecture,
                                     const ModelConfig& config, double alpha) {
  std::map<std::string, Pair> pairs;
  std::map<std::string, std::map<int64_t, Pair>> stacks;
  for (const auto& [name, matrices] : adapter.matrices) {
    if (matrices.length.defined()) refuse("lengths of DoRA, such as that of " + name);
    // One alpha is for all.
    const double factor = alpha_of(matrices) / alpha;
    const Pair own{matrices.down, factor == 1 ? matrices.up : matrices.up * factor};
    const std::vector<GgufTarget> targets = gguf_targets(architecture, name);
    if (targets.empty()) refuse(name);
    for (const GgufTarget& target : targets) {
      const std::optional<Pair> changed = in_file(own, target.change, config);
      if (!changed) refuse(fmt::format("{}, which becomes {}", name, target.name));
      if (target.change == GgufChange::kStack) {
        stacks[target.name].emplace(numbers_in(name).at(1), *changed);
      } else {
        pairs.emplace(target.name, *changed);
      }
    }
  }
  for (const auto& [name, experts] : stacks) {
    std::vector<at::Tensor> down, up;
    for (const auto& [expert, pair] : experts) {
      down.push_back(pair.down);
      up.push_back(pair.up);
    }
    if (std::ssize(experts) != config.expert_count()) refuse(fmt::format("only some experts of {}", name));
    pairs.emplace(name, Pair{at::stack(down), at::stack(up)});
  }
  return pairs;
}

}  // namespace

void save_gguf_adapter(const std::filesystem::path& file, const ReadAdapter& adapter, const ModelFamily& family,
                       const ModelConfig& config, GgufFileType type, const std::string& name) {
  const GgufArchitecture& architecture = gguf_architecture(family);
  if (!adapter.modules.empty()) refuse("modules that are saved whole, such as " + adapter.modules.begin()->first);
  MEGALITH_CHECK(!adapter.matrices.empty(), "adapters without matrices");
  const double alpha = alpha_of(adapter.matrices.begin()->second);
  std::vector<at::Tensor> tensors;
  std::vector<GgufTensorInfo> infos;
  for (const auto& [weight, pair] : pairs_of(adapter, architecture, config, alpha)) {
    for (const at::Tensor& tensor : {pair.down, pair.up}) {
      infos.push_back({.name = weight, .shape = tensor.sizes().vec()});
      tensors.push_back(tensor.to(at::kFloat).contiguous());
    }
  }
  choose_gguf_types(type, architecture.name, config, infos);  // as the weights they are named after
  for (size_t i = 0; i < infos.size(); ++i) infos[i].name += i % 2 == 0 ? ".lora_a" : ".lora_b";
  GgufKeys keys;
  keys.set("general.architecture", std::string(architecture.name));
  keys.set("general.type", "adapter");
  keys.set("adapter.type", "lora");
  keys.set("general.name", name);
  keys.set("adapter.lora.alpha", static_cast<float>(alpha));
  keys.set("general.quantization_version", kGgufQuantizationVersion);

  if (file.has_parent_path()) make_directories(file.parent_path());
  AtomicFile written(file);
  written.append(std::string_view(gguf_header(keys, infos)));
  for (size_t i = 0; i < infos.size(); ++i) {
    const std::span values(tensors[i].const_data_ptr<float>(), static_cast<size_t>(tensors[i].numel()));
    std::vector<std::byte> bytes(static_cast<size_t>(infos[i].num_bytes()));
    quantize(infos[i].type, values, bytes);
    bytes.resize(bytes.size() + static_cast<size_t>(gguf_padding(infos[i].num_bytes())));
    written.append(std::span<const std::byte>(bytes));
  }
  written.commit();
}

}  // namespace megalith
