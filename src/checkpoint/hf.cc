// Reading Hugging Face folders; see hf.h.
#include "checkpoint/hf.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "checkpoint/checkpoint_reader.h"
#include "checkpoint/exchange.h"
#include "checkpoint/tensor_store.h"

namespace megalith {

bool is_saved_buffer(std::string_view name) {
  constexpr std::array<std::string_view, 3> kEndings = {".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias"};
  return std::any_of(kEndings.begin(), kEndings.end(), [&](std::string_view ending) { return name.ends_with(ending); });
}

void load_hf(const std::filesystem::path& folder, std::span<const CheckpointTensor> tensors, const Groups& groups) {
  Group& world = *groups.world;
  std::optional<TensorStore> store;
  std::vector<PieceView> views;
  StoreFit fit;
  run_on_all(world, "load_hf open", [&] {
    store = TensorStore::open_folder(folder);
    for (const CheckpointTensor& tensor : tensors) {
      for (PieceView& view : piece_views(*tensor.placement, tensor.local, tensor.range)) {
        views.push_back(std::move(view));
      }
    }
    fit = compare_with_store(*store, views);
  });
  // A rank sees only its own stage: what no rank wants is unexpected.
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
    for (const auto& [name, entry] : store->entries()) {
      if (!used.contains(name) && !is_saved_buffer(name)) unexpected.push_back(name);
    }
    throw_unless_empty(
        folder.string(), fit.missing, fit.misshaped, unexpected,
        "give the architecture of this folder's config.json (or no architecture at all: --load_hf gives it)");
  });
  run_on_all(world, "load_hf read", [&] {
    for (const CheckpointTensor& tensor : tensors) {
      if (!padding_boxes(*tensor.placement).empty()) at::Tensor(tensor.local).zero_();
    }
    read_pieces(*store, views);
  });
}

}  // namespace megalith
