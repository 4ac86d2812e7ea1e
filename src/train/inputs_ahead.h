// The inputs of a step's microbatches on their way to a GPU: copied from pinned memory on a stream of their own, while
// the microbatch before is computed.
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
  // The microbatch as a chunk of these units takes it, on the device.
  using Make = std::function<ModelInput(int microbatch, std::span<const Unit> units)>;

  // copies  the stream that inputs are made on; nothing: each is made when it is taken, which is right on a CPU
  InputsAhead(int num_microbatches, Make make, std::optional<c10::Stream> copies);
  ~InputsAhead();

  // Behind it the current stream finds the tensors. The next microbatch of the same units is on its way then.
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
