#include "train/inputs_ahead.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/record_stream.h>

#include "device/stream.h"
#include "train/input_tensors.h"

namespace megalith {

struct InputsAhead::UnderWay {
  ModelInput input;
  StreamEvent has_come;
};

InputsAhead::InputsAhead(int num_microbatches, Make make, std::optional<c10::Stream> copies)
    : num_microbatches_(num_microbatches), make_(std::move(make)), copies_(copies) {}

InputsAhead::~InputsAhead() = default;

ModelInput InputsAhead::take(int microbatch, std::span<const Unit> units) {
  if (!copies_) return make_(microbatch, units);
  const auto key = [&](int m) { return std::pair(units.data(), m); };
  const auto found = under_way_.extract(key(microbatch));
  const std::unique_ptr<UnderWay> here = found ? std::move(found.mapped()) : start(microbatch, units);
  if (microbatch + 1 < num_microbatches_) under_way_.emplace(key(microbatch + 1), start(microbatch + 1, units));
  const c10::Stream user = current_stream(copies_->device());
  here->has_come.make_wait(user);
  for_each_tensor(here->input, [&](std::string_view, const at::Tensor& tensor) {
    if (tensor.defined() && tensor.device() == copies_->device()) tensor.record_stream(user);
  });
  return here->input;
}

std::unique_ptr<InputsAhead::UnderWay> InputsAhead::start(int microbatch, std::span<const Unit> units) const {
  auto one = std::make_unique<UnderWay>(UnderWay{{}, StreamEvent(copies_->device())});
  {
    const StreamScope scope(*copies_);
    one->input = make_(microbatch, units);
  }
  one->has_come.record(*copies_);
  return one;
}

}  // namespace megalith
