// Weights from files of whole tensors into what the ranks hold: the part that Hugging Face's folders and PEFT's share.
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
  std::string what;  // names it in messages: its folder
  // Called on every rank, as the others are; errors are agreed on.
  std::function<TensorStore()> open;
  // UserError when these are weights of something else; null: nothing is checked.
  std::function<void(const TensorStore&, std::span<const PieceView>)> check = nullptr;
  // Whether a tensor that is wanted may be left as it is, because it is not there; null: none may.
  std::function<bool(const std::string&)> may_be_missing = nullptr;
  // Whether a tensor that no rank wants may be there; null: none may.
  std::function<bool(std::string_view)> may_be_unused = nullptr;
  std::function<std::string()> remedy;  // asked once it is open
  NonfiniteWeights nonfinite = NonfiniteWeights::kRefused;
};

// Fills the tensors that are not passed over; packed ones one after the other, so that one at a time is there in the
// model's precision. UserError, before anything is changed, that lists every missing, misshaped and unexpected tensor.
// Collective over the world.
void load_store(const StoreSource& source, std::span<const CheckpointTensor> tensors, const Groups& groups);

}  // namespace megalith
