// Reading Hugging Face folders; see hf.h.
#include "checkpoint/hf.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "checkpoint/checkpoint_reader.h"
#include "checkpoint/exchange.h"
#include "core/error.h"
#include "core/json.h"
#include "models/hf_config.h"
#include "models/hf_text_part.h"

namespace megalith {

bool HfWeights::may_be_unused(std::string_view name) const {
  constexpr std::array<std::string_view, 3> kEndings = {".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias"};
  return std::any_of(kEndings.begin(), kEndings.end(),
                     [&](std::string_view ending) { return name.ends_with(ending); }) ||
         std::any_of(unused.begin(), unused.end(), [&](const std::string& prefix) { return name.starts_with(prefix); });
}

namespace {

void set_quantization(const Json& quantization, const std::string& where, TensorStore& store) {
  if (json_get_or<std::string>(quantization, "quant_method", "", where) == "mxfp4") return store.unpack_mxfp4();
  const auto block = json_get_or<std::vector<int64_t>>(quantization, "weight_block_size", {128, 128}, where);
  if (block.size() != 2 || block[0] < 1 || block[1] < 1) {
    throw UserError(fmt::format("{}: weight_block_size is [{}], expected rows and columns of a block", where,
                                fmt::join(block, ", ")),
                    "the file is broken: fetch it again");
  }
  store.set_block_scales(block);
}

}  // namespace

HfWeights open_hf_weights(const std::filesystem::path& folder) {
  HfWeights weights{TensorStore::open_folder(folder), {}};
  const std::filesystem::path path = folder / kHfConfigFile;
  if (!std::filesystem::exists(path)) return weights;
  Json json = load_json(path);
  const std::string where = path.string();
  if (const HfTextPart* part = find_hf_text_part(json)) {
    json = text_config_of(*part, json, where);
    weights.store.drop_prefix(part->prefix);
    weights.unused.assign(part->others.begin(), part->others.end());
  }
  check_hf_bounds(json, where);
  if (const Json* quantization = find_member(json, "quantization_config", where)) {
    set_quantization(*quantization, where, weights.store);
  }
  if (const auto num_layers = json_find<int64_t>(json, "num_hidden_layers", where)) {
    const auto num_predictions = json_get_or<int64_t>(json, "num_nextn_predict_layers", 0, where);
    for (int64_t i = 0; i < num_predictions; ++i) {
      weights.unused.push_back(fmt::format("model.layers.{}.", *num_layers + i));
    }
  }
  return weights;
}

void load_hf(const std::filesystem::path& folder, std::span<const CheckpointTensor> tensors, const Groups& groups) {
  Group& world = *groups.world;
  std::optional<HfWeights> weights;
  std::vector<PieceView> views;
  StoreFit fit;
  run_on_all(world, "load_hf open", [&] {
    weights = open_hf_weights(folder);
    for (const CheckpointTensor& tensor : tensors) {
      for (PieceView& view : piece_views(*tensor.placement, tensor.local, tensor.range)) {
        views.push_back(std::move(view));
      }
    }
    fit = compare_with_store(weights->store, views);
  });
  // A rank wants only the tensors of its own stage; those that no rank wants are unexpected.
  std::set<std::string> used;
  for (const std::string& names :
       gather_texts(world, fmt::format("{}\n", fmt::join(fit.used, "\n")), "load_hf names")) {
    for (size_t begin = 0; begin < names.size();) {
      const size_t end = names.find('\n', begin);
      used.insert(names.substr(begin, end - begin));
      begin = end + 1;
    }
  }
  run_on_all(world, "load_hf fit", [&] {
    std::vector<std::string> unexpected;
    for (const auto& [name, entry] : weights->store.entries()) {
      if (!used.contains(name) && !weights->may_be_unused(name)) unexpected.push_back(name);
    }
    throw_unless_empty(
        folder.string(), fit.missing, fit.misshaped, unexpected,
        "give the architecture of this folder's config.json (or no architecture at all: --load_hf gives it)");
  });
  run_on_all(world, "load_hf read", [&] {
    for (const CheckpointTensor& tensor : tensors) {
      if (!padding_boxes(*tensor.placement).empty()) at::Tensor(tensor.local).zero_();
    }
    read_pieces(weights->store, views);
  });
}

}  // namespace megalith
