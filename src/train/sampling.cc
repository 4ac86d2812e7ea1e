#include "train/sampling.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

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

namespace {

// The most likely tokens first, equal ones by id; only as many are sorted as are asked for.
class Ranking {
 public:
  explicit Ranking(std::span<const double> scores) : scores_(scores), ids_(scores.size()) {
    std::iota(ids_.begin(), ids_.end(), 0);
  }

  int64_t at(size_t place) {
    while (place >= num_sorted_) {
      const size_t wanted = std::min(ids_.size(), std::max<size_t>(64, num_sorted_ * 8));
      std::partial_sort(ids_.begin() + sorted(), ids_.begin() + static_cast<std::ptrdiff_t>(wanted), ids_.end(),
                        [this](int64_t a, int64_t b) {
                          const double one = scores_[static_cast<size_t>(a)], other = scores_[static_cast<size_t>(b)];
                          return one != other ? one > other : a < b;
                        });
      num_sorted_ = wanted;
    }
    return ids_[place];
  }

 private:
  std::ptrdiff_t sorted() const { return static_cast<std::ptrdiff_t>(num_sorted_); }

  std::span<const double> scores_;
  std::vector<int64_t> ids_;
  size_t num_sorted_ = 0;
};

// A token of a row of logits, from those that top_k and top_p leave.
//   weights  exp(score - the largest score)
//   u        uniform in [0, 1)
int64_t choose(std::span<const double> weights, const SamplingOptions& options, double u) {
  Ranking ranking(weights);
  const auto weight_at = [&](size_t place) { return weights[static_cast<size_t>(ranking.at(place))]; };
  size_t count = weights.size();
  double mass = 0;
  if (options.top_k > 0 && options.top_k < std::ssize(weights)) {
    count = static_cast<size_t>(options.top_k);
    const double least = weight_at(count - 1);
    while (count < weights.size() && weight_at(count) == least) ++count;  // equal ones are left as well
    for (size_t i = 0; i < count; ++i) mass += weight_at(i);
  } else {
    mass = std::accumulate(weights.begin(), weights.end(), 0.0);
  }
  if (options.top_p < 1) {
    // A token stays if those before it do not reach p; the first always stays.
    double before = 0;
    size_t kept = 0;
    while (kept < count && (kept == 0 || before < options.top_p * mass)) before += weight_at(kept++);
    count = kept;
    mass = before;
  }
  double sum = 0;
  size_t place = 0;
  for (; place + 1 < count; ++place) {
    sum += weight_at(place);
    if (sum > u * mass) break;
  }
  return ranking.at(place);
}

}  // namespace

at::Tensor sample_tokens(const at::Tensor& logits, const SamplingOptions& options, int64_t step) {
  if (options.temperature == 0) return logits.argmax(-1);
  const at::Tensor scores = logits.to(at::kCPU, at::kDouble) / options.temperature;
  const at::Tensor weights = (scores - scores.amax(-1, /*keepdim=*/true)).exp_().contiguous();
  const at::Tensor ids = at::empty({logits.size(0)}, at::kLong);
  const auto v = static_cast<size_t>(logits.size(1));
  const uint64_t key = make_philox_key(static_cast<uint64_t>(options.sampling_seed), "sampling");
  for (int64_t row = 0; row < logits.size(0); ++row) {
    const std::span<const double> row_weights(weights.const_data_ptr<double>() + row * logits.size(1), v);
    ids.mutable_data_ptr<int64_t>()[row] =
        choose(row_weights, options, uniform_at(key, static_cast<uint64_t>(step), static_cast<uint64_t>(row)));
  }
  return ids;
}

}  // namespace megalith
