#include "checkpoint/flux_names.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "core/error.h"

namespace megalith {
namespace {

constexpr std::string_view kFluxPrefix = "model.diffusion_model.";

struct Renamed {
  std::string_view from, to;
};

// Without .weight or .bias.
constexpr std::array kEnds = {
    Renamed{"img_in", "x_embedder"},
    Renamed{"txt_in", "context_embedder"},
    Renamed{"time_in.in_layer", "time_text_embed.timestep_embedder.linear_1"},
    Renamed{"time_in.out_layer", "time_text_embed.timestep_embedder.linear_2"},
    Renamed{"guidance_in.in_layer", "time_text_embed.guidance_embedder.linear_1"},
    Renamed{"guidance_in.out_layer", "time_text_embed.guidance_embedder.linear_2"},
    Renamed{"vector_in.in_layer", "time_text_embed.text_embedder.linear_1"},
    Renamed{"vector_in.out_layer", "time_text_embed.text_embedder.linear_2"},
    Renamed{"final_layer.linear", "proj_out"},
};
constexpr std::array kOfJoint = {
    Renamed{"img_mod.lin", "norm1.linear"},
    Renamed{"txt_mod.lin", "norm1_context.linear"},
    Renamed{"img_attn.proj", "attn.to_out.0"},
    Renamed{"txt_attn.proj", "attn.to_add_out"},
    Renamed{"img_mlp.0", "ff.net.0.proj"},
    Renamed{"img_mlp.2", "ff.net.2"},
    Renamed{"txt_mlp.0", "ff_context.net.0.proj"},
    Renamed{"txt_mlp.2", "ff_context.net.2"},
};
constexpr std::array kOfSingle = {
    Renamed{"modulation.lin", "norm.linear"},
    Renamed{"linear2", "proj_out"},
};
// Head norms, whole names.
constexpr std::array kNormsOfJoint = {
    Renamed{"img_attn.norm.query_norm.scale", "attn.norm_q.weight"},
    Renamed{"img_attn.norm.key_norm.scale", "attn.norm_k.weight"},
    Renamed{"txt_attn.norm.query_norm.scale", "attn.norm_added_q.weight"},
    Renamed{"txt_attn.norm.key_norm.scale", "attn.norm_added_k.weight"},
};
constexpr std::array kNormsOfSingle = {
    Renamed{"norm.query_norm.scale", "attn.norm_q.weight"},
    Renamed{"norm.key_norm.scale", "attn.norm_k.weight"},
};

template <typename List>
std::string_view renamed(const List& list, std::string_view name) {
  for (const Renamed& one : list) {
    if (one.from == name) return one.to;
  }
  return {};
}

// Rows of a file's tensor that form a tensor.
struct Rows {
  std::string name;
  int64_t first = 0, count = 0;
};

// Rows of the file's tensor become rows `at` … of `name`, which has `all`.
void add_rows(TensorStore& store, const std::string& name, const TensorStore::Entry& entry, int64_t all, int64_t first,
              int64_t at) {
  std::vector<int64_t> shape = entry.shape;
  shape[0] = all;
  TensorStore::Part part = entry.parts.front();
  // The file's box in new coordinates; elements outside are never requested.
  part.box.offset[0] = at - first;
  store.add(name, shape, part);
}

class FluxTranslation {
 public:
  explicit FluxTranslation(const TensorStore& file) : file_(file) {}

  TensorStore translated() {
    for (const auto& [full, entry] : file_.entries()) {
      std::string_view name = full;
      if (name.starts_with(kFluxPrefix)) name.remove_prefix(kFluxPrefix.size());
      if (!translate(name, entry)) {
        throw UserError(fmt::format("{}: {} [{}] is no tensor of FLUX.1's single file",
                                    entry.parts.front().path().string(), full, fmt::join(entry.shape, ", ")),
                        "give FLUX.1 dev or schnell as Black Forest Labs or diffusers publish them");
      }
    }
    return std::move(result_);
  }

 private:
  bool translate(std::string_view name, const TensorStore::Entry& entry) {
    for (const auto& [from, to, is_joint] : {std::tuple("double_blocks.", "transformer_blocks.", true),
                                             std::tuple("single_blocks.", "single_transformer_blocks.", false)}) {
      if (!name.starts_with(from)) continue;
      const std::string_view rest = name.substr(std::string_view(from).size());
      const size_t dot = rest.find('.');
      if (dot == std::string_view::npos) return false;
      const std::string block = fmt::format("{}{}.", to, rest.substr(0, dot));
      return is_joint ? of_joint(block, rest.substr(dot + 1), entry) : of_single(block, rest.substr(dot + 1), entry);
    }
    const auto [stem, ending] = split_name(name);
    if (const std::string_view to = renamed(kEnds, stem); !to.empty()) return keep(fmt::format("{}{}", to, ending), entry);
    if (stem != "final_layer.adaLN_modulation.1" || entry.shape.empty() || entry.shape[0] % 2 != 0) return false;
    const std::string last = fmt::format("norm_out.linear{}", ending);
    const int64_t half = entry.shape[0] / 2;
    // The file has [shift | scale].
    add_rows(result_, last, entry, 2 * half, half, 0);
    add_rows(result_, last, entry, 2 * half, 0, half);
    return true;
  }

  // "a.b" and ".weight" of "a.b.weight".
  static std::pair<std::string_view, std::string_view> split_name(std::string_view name) {
    const size_t dot = name.rfind('.');
    if (dot == std::string_view::npos) return {name, {}};
    return {name.substr(0, dot), name.substr(dot)};
  }

  bool keep(const std::string& name, const TensorStore::Entry& entry) {
    result_.add(name, entry.shape, entry.parts.front());
    return true;
  }

  bool split_rows(const TensorStore::Entry& entry, const std::vector<Rows>& parts) {
    int64_t all = 0;
    for (const Rows& rows : parts) all += rows.count;
    if (entry.shape.empty() || entry.shape[0] != all) return false;
    for (const Rows& rows : parts) add_rows(result_, rows.name, entry, rows.count, rows.first, 0);
    return true;
  }

  bool of_joint(const std::string& block, std::string_view name, const TensorStore::Entry& entry) {
    if (const std::string_view to = renamed(kNormsOfJoint, name); !to.empty()) {
      return keep(block + std::string(to), entry);
    }
    const auto [stem, ending] = split_name(name);
    if (const std::string_view to = renamed(kOfJoint, stem); !to.empty()) {
      return keep(fmt::format("{}{}{}", block, to, ending), entry);
    }
    if ((stem != "img_attn.qkv" && stem != "txt_attn.qkv") || entry.shape.empty()) return false;
    const int64_t h = entry.shape[0] / 3;
    const auto part = [&, ending = ending](std::string_view to, int64_t which) {
      return Rows{fmt::format("{}attn.{}{}", block, to, ending), which * h, h};
    };
    if (stem == "img_attn.qkv") return split_rows(entry, {part("to_q", 0), part("to_k", 1), part("to_v", 2)});
    return split_rows(entry, {part("add_q_proj", 0), part("add_k_proj", 1), part("add_v_proj", 2)});
  }

  bool of_single(const std::string& block, std::string_view name, const TensorStore::Entry& entry) {
    if (const std::string_view to = renamed(kNormsOfSingle, name); !to.empty()) {
      return keep(block + std::string(to), entry);
    }
    const auto [stem, ending] = split_name(name);
    if (const std::string_view to = renamed(kOfSingle, stem); !to.empty()) {
      return keep(fmt::format("{}{}{}", block, to, ending), entry);
    }
    if (stem != "linear1" || entry.shape.empty()) return false;
    // Queries, keys, values, and an MLP of four times the width.
    const int64_t h = entry.shape[0] / 7;
    const auto part = [&, ending = ending](std::string_view to, int64_t which, int64_t count) {
      return Rows{fmt::format("{}{}{}", block, to, ending), which * h, count};
    };
    return split_rows(entry, {part("attn.to_q", 0, h), part("attn.to_k", 1, h), part("attn.to_v", 2, h),
                              part("proj_mlp", 3, 4 * h)});
  }

  const TensorStore& file_;
  TensorStore result_;
};

}  // namespace

void translate_flux_names(TensorStore& store) {
  const auto has = [&](const std::string& name) {
    return store.find(name) != nullptr || store.find(std::string(kFluxPrefix) + name) != nullptr;
  };
  if (!has("double_blocks.0.img_attn.qkv.weight")) return;
  store = FluxTranslation(store).translated();
}

}  // namespace megalith
