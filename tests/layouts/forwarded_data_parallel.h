// A data parallelism around another one, for tests that change one thing of it.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "parallel/data_parallel.h"
#include "train/setup.h"

namespace megalith::test {

// Does everything as the inner one; what it changes or forgets is in the derived ones.
class ForwardedDataParallel : public DataParallel {
 public:
  ForwardedDataParallel(std::unique_ptr<DataParallel> inner, const BuiltModel& model)
      : inner_(std::move(inner)), model_(model) {}
  void begin_step() override { inner_->begin_step(); }
  void begin_microbatch(bool is_last) override { inner_->begin_microbatch(is_last); }
  void finish_step() override { inner_->finish_step(); }
  void publish() override { inner_->publish(); }
  void wait_for_parameters() override { inner_->wait_for_parameters(); }
  void initialise(uint64_t seed, bool only_adapters) override { inner_->initialise(seed, only_adapters); }
  const std::vector<OwnedPart>& parts() const override { return inner_->parts(); }
  std::vector<ParameterRuns> runs() const override { return inner_->runs(); }
  const std::vector<OwnedPart>& model_parts() const override { return inner_->model_parts(); }
  BlockRunner* runner() override { return inner_->runner(); }
  int64_t parameter_bytes() const override { return inner_->parameter_bytes(); }
  int64_t gradient_bytes() const override { return inner_->gradient_bytes(); }

 protected:
  std::unique_ptr<DataParallel> inner_;
  const BuiltModel& model_;
};

}  // namespace megalith::test
