// Prefetches microbatches' inputs to a GPU from pinned memory, on a side stream during the previous microbatch.
#pragma once

#include <c10/core/Stream.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "models/model.h"

namespace megalith {

class InputsAhead {
 public:
  // The microbatch on the device, as a chunk of these units needs it.
  using Make = std::function<ModelInput(int microbatch, std::span<const Unit> units)>;

  // copies  the stream for inputs; unset: made when taken, right for a CPU
  InputsAhead(int num_microbatches, Make make, std::optional<c10::Stream> copies);
  ~InputsAhead();

  // Tensors are ready in order on the current stream; prefetches the same units' next microbatch.
  ModelInput take(int microbatch, std::span<const Unit> units);

 private:
  struct UnderWay;
  std::unique_ptr<UnderWay> start(int microbatch, std::span<const Unit> units) const;

  int num_microbatches_;
  Make make_;
  std::optional<c10::Stream> copies_;
  std::map<std::pair<const Unit*, int>, std::unique_ptr<UnderWay>> under_way_;
};

}  // namespace megalith
