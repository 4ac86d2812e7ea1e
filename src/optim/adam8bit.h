// AdamW with 8-bit moments, as bitsandbytes' AdamW8bit, for parameters whose canonical tensors all have min_8bit_size
// elements; AdamW takes the rest.
//
//   m = map[code] * absmax of the block, v likewise;   a step of AdamW in the gradient's dtype
//   absmax = largest |m| of the block;   code = of the map's value that is nearest to m / absmax
//
// A block is 256 row-major elements of a canonical tensor (of one expert). Ranks that hold parts of a block exchange
// maxima (shared_sums.h), so steps do not depend on layout. Moments are decoded both before and after that exchange, to
// keep no temporary of their size.
// Source: Dettmers et al. 2021, arXiv:2110.02861; maps: bitsandbytes.functional.create_dynamic_map. As on its CPU,
// unlike its CUDA kernel, a moment near zero may lose its sign.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "optim/optimizer_options.h"
#include "optim/shared_sums.h"
#include "optim/state_layout.h"
#include "optim/update_rule.h"

namespace megalith {

// The 256 code values, ascending, fp32: seven decades, denser in the upper ones.
at::Tensor dynamic_map(bool is_signed);

class Adam8bitRule : public UpdateRule {
 public:
  // most_elements: per pass, which bounds temporaries.
  explicit Adam8bitRule(const OptimizerOptions& options, int64_t most_elements = 1 << 22)
      : options_(options), most_elements_(most_elements) {}

  std::string_view name() const override { return "AdamW 8-bit"; }
  Granularity granularity() const override { return Granularity::kSums; }
  bool takes(const Parameter& parameter) const override;
  std::vector<StateSpec> state(const Parameter& parameter) const override;
  void prepare(const DataParallel& data, const Groups& groups) override;
  void update(std::span<const UpdateSlot> slots, const UpdateStep& step) override;

 private:
  struct Elements;
  struct Work;

  std::array<at::Tensor, 2> moments(const Elements& elements, const at::Tensor& places, const Work& work,
                                    const UpdateStep& step) const;
  void measure(const Elements& elements, const Work& work, const UpdateStep& step) const;
  void move(const Elements& elements, const Work& work, const UpdateStep& step) const;

  OptimizerOptions options_;
  int64_t most_elements_;
  std::unique_ptr<SharedSums> maxima_;
  std::map<const Parameter*, StateLayout> blocks_;
  std::array<at::Tensor, 2> maps_, bounds_;  // for each moment; bounds_: between neighbours of a map
};

}  // namespace megalith
