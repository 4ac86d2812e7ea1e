// Loads whole tensors from files into the ranks' shares: the common part of Hugging Face's and PEFT's folders.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "checkpoint/checkpoint_state.h"
#include "checkpoint/tensor_store.h"
#include "comm/groups.h"

namespace megalith {

struct StoreSource {
  std::string what;  // the folder, for messages
  // Called on every rank, like the others; errors are agreed on.
  std::function<TensorStore()> open;
  // UserError for weights of something else; may be null.
  std::function<void(const TensorStore&, std::span<const PieceView>)> check = nullptr;
  // True if a requested tensor may be missing and stay unchanged; null: none.
  std::function<bool(const std::string&)> may_be_missing = nullptr;
  // True if an unrequested tensor may be present; null: none.
  std::function<bool(std::string_view)> may_be_unused = nullptr;
  std::function<std::string()> remedy;  // called after open
  NonfiniteWeights nonfinite = NonfiniteWeights::kRefused;
};

// Fills the tensors that are not passed over; packed ones one by one, so that only one exists in the model's precision.
// UserError, before anything changes, listing every missing, misshaped and unexpected tensor. Collective over the
// world.
void load_store(const StoreSource& source, std::span<const CheckpointTensor> tensors, const Groups& groups);

}  // namespace megalith
