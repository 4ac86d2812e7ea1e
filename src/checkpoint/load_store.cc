#include "checkpoint/load_store.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <exception>
#include <optional>
#include <set>
#include <vector>

#include "checkpoint/checkpoint_reader.h"
#include "checkpoint/exchange.h"

namespace megalith {

void load_store(const StoreSource& source, std::span<const CheckpointTensor> tensors, const Groups& groups) {
  Group& world = *groups.world;
  std::optional<TensorStore> store;
  std::vector<PieceView> views, passed_over;
  std::set<std::string> left;  // unchanged
  StoreFit fit;
  run_on_all(world, "load open", [&] {
    store = source.open();
    for (const CheckpointTensor& tensor : tensors) {
      for (PieceView& view : piece_views(*tensor.placement, tensor.local, tensor.range)) {
        (tensor.is_passed_over ? passed_over : views).push_back(std::move(view));
      }
    }
    if (source.check != nullptr) source.check(*store, views);
    fit = compare_with_store(*store, views);
    fit.used.merge(compare_with_store(*store, passed_over).used);
    if (source.may_be_missing == nullptr) return;
    std::erase_if(fit.missing,
                  [&](const std::string& name) { return source.may_be_missing(name) && left.insert(name).second; });
  });
  // Ranks request their stage's tensors; unexpected is what none requests.
  std::set<std::string> used;
  for (const std::string& names : gather_texts(world, fmt::format("{}\n", fmt::join(fit.used, "\n")), "load names")) {
    for (size_t begin = 0; begin < names.size();) {
      const size_t end = names.find('\n', begin);
      used.insert(names.substr(begin, end - begin));
      begin = end + 1;
    }
  }
  run_on_all(world, "load fit", [&] {
    std::vector<std::string> unexpected;
    for (const auto& [name, entry] : store->entries()) {
      const bool may_be_there = source.may_be_unused != nullptr && source.may_be_unused(name);
      if (!used.contains(name) && !may_be_there) unexpected.push_back(name);
    }
    throw_unless_empty(source.what, fit.missing, fit.misshaped, unexpected, source.remedy());
  });
  run_on_all(world, "load read", [&] {
    const auto add_views = [&](const CheckpointTensor& tensor, const at::Tensor& local, std::vector<PieceView>& to) {
      for (PieceView& view : piece_views(*tensor.placement, local, tensor.range)) {
        if (!left.contains(view.piece.name)) to.push_back(std::move(view));
      }
    };
    std::vector<PieceView> read;
    for (const CheckpointTensor& tensor : tensors) {
      if (tensor.is_passed_over || tensor.packed != nullptr) continue;
      if (!padding_boxes(*tensor.placement).empty()) at::Tensor(tensor.local).zero_();
      add_views(tensor, tensor.local, read);
    }
    // Packing is collective: ranks that cannot read take part and throw at the end.
    std::exception_ptr failure;
    try {
      read_pieces(*store, read, source.nonfinite);
    } catch (...) {
      failure = std::current_exception();
    }
    for (const CheckpointTensor& tensor : tensors) {
      if (tensor.is_passed_over || tensor.packed == nullptr) continue;
      const at::Tensor values = at::zeros(tensor.local.sizes(), tensor.local.options());
      read.clear();
      add_views(tensor, values, read);
      if (read.empty()) continue;
      try {
        if (failure == nullptr) read_pieces(*store, read, source.nonfinite);
      } catch (...) {
        failure = std::current_exception();
      }
      tensor.packed->pack(values);
    }
    if (failure != nullptr) std::rethrow_exception(failure);
  });
}

}  // namespace megalith
