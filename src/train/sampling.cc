#include "train/sampling.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "core/philox.h"

namespace megalith {

void SamplingOptions::visit(OptionVisitor& v) {
  v.group("Sampling", {.changes_numbers = false, .acts_in = {RunCommand::kGenerate}});
  v.field("temperature", temperature, "Divides the logits; 0 always takes the most likely token.").at_least(0);
  v.field("top_k", top_k,
          "Sample among the k most likely tokens; 0 for no limit. In embed: how many of the nearest texts are printed; "
          "0 for 5.")
      .at_least(0)
      .acts_in({RunCommand::kGenerate, RunCommand::kEmbed});
  v.field("top_p", top_p, "Sample among the most likely tokens that hold this much probability together.")
      .above(0)
      .at_most(1);
  v.field("sampling_seed", sampling_seed,
          "Seed of the random choice; the same seed gives the same text. In generate it is seed's value unless it is "
          "given.")
      .at_least(0);
}

at::Tensor sample_tokens(const at::Tensor& logits, const SamplingOptions& options, int64_t step) {
  if (options.temperature == 0) return logits.argmax(-1);
  const double minus_infinity = -std::numeric_limits<double>::infinity();
  at::Tensor scores = logits.to(at::kCPU, at::kDouble) / options.temperature;
  if (options.top_k > 0 && options.top_k < scores.size(1)) {
    const at::Tensor kth = std::get<0>(scores.topk(options.top_k, -1)).narrow(1, options.top_k - 1, 1);
    scores = scores.masked_fill(scores < kth, minus_infinity);
  }
  auto [sorted, order] = scores.sort(-1, /*descending=*/true);
  at::Tensor probabilities = at::softmax(sorted, -1);
  if (options.top_p < 1) {
    // A token stays if those before it do not reach p; the first always stays.
    const at::Tensor before = probabilities.cumsum(-1) - probabilities;
    probabilities = probabilities.masked_fill(before >= options.top_p, 0.0);
  }
  const at::Tensor cumulative = probabilities.cumsum(-1).contiguous();
  const at::Tensor ids = at::empty({logits.size(0)}, at::kLong);
  const int64_t v = logits.size(1);
  const uint64_t key = make_philox_key(static_cast<uint64_t>(options.sampling_seed), "sampling");
  for (int64_t row = 0; row < logits.size(0); ++row) {
    const double* sums = cumulative.const_data_ptr<double>() + row * v;
    const double point = uniform_at(key, static_cast<uint64_t>(step), static_cast<uint64_t>(row)) * sums[v - 1];
    const int64_t place = std::upper_bound(sums, sums + v, point) - sums;
    ids.mutable_data_ptr<int64_t>()[row] = order[row][std::min(place, v - 1)].item<int64_t>();
  }
  return ids;
}

}  // namespace megalith
