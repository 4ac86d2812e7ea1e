// Loads whole tensors from Hugging Face's and PEFT's files into ranks' shares.
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
  std::string what;  // the folder
  // Called on every rank, like the others; errors are agreed on.
  std::function<TensorStore()> open;
  // UserError for something else's weights; may be null.
  std::function<void(const TensorStore&, std::span<const PieceView>)> check = nullptr;
  // A requested tensor may be missing, unchanged; null: none.
  std::function<bool(const std::string&)> may_be_missing = nullptr;
  // An unrequested tensor may be present; null: none.
  std::function<bool(std::string_view)> may_be_unused = nullptr;
  std::function<std::string()> remedy;  // after open
  NonfiniteWeights nonfinite = NonfiniteWeights::kRefused;
};

// Skips tensors passed over; packs one by one, so that only one exists in the model's precision. UserError, before
// anything changes, listing all missing, misshaped and unexpected tensors. Collective over the world.
void load_store(const StoreSource& source, std::span<const CheckpointTensor> tensors, const Groups& groups);

}  // namespace megalith
