#include "nn/kept.h"

#include <ATen/core/grad_mode.h>

#include "core/error.h"

namespace megalith {

struct Kept::Source {
  std::vector<at::Tensor> results;
  std::function<std::vector<at::Tensor>()> compute;  // until called
  bool is_given = false;
  uint32_t version = 0;

  const at::Tensor& result(size_t i) {
    if (compute) {
      const at::NoGradGuard no_grad;
      const size_t num_results = results.size();
      results = std::exchange(compute, {})();
      MEGALITH_CHECK(results.size() == num_results, "{} tensors were kept, {} came back", num_results, results.size());
    }
    MEGALITH_CHECK(!is_given || static_cast<uint32_t>(results[0]._version()) == version,
                   "a tensor of {} elements was changed in place while it was kept", results[0].numel());
    return results.at(i);
  }
};

Kept::Kept(const at::Tensor& tensor) {
  if (!tensor.defined()) return;
  source_ = std::make_shared<Source>();
  source_->results = {tensor.detach()};
  // Inference tensors have no version.
  source_->is_given = !tensor.is_inference();
  if (source_->is_given) source_->version = static_cast<uint32_t>(tensor._version());
}

Kept Kept::computed(std::function<at::Tensor()> compute) {
  return computed(1, [compute = std::move(compute)] { return std::vector<at::Tensor>{compute()}; })[0];
}

std::vector<Kept> Kept::computed(size_t num_results, std::function<std::vector<at::Tensor>()> compute) {
  const auto source = std::make_shared<Source>();
  source->results.resize(num_results);
  source->compute = std::move(compute);
  std::vector<Kept> all;
  for (size_t i = 0; i < num_results; ++i) all.push_back(Kept(source, i));
  return all;
}

bool Kept::is_computed() const { return source_ != nullptr && source_->compute; }

at::Tensor Kept::get() const { return source_ == nullptr ? at::Tensor() : source_->result(result_); }

Kept Kept::then(std::function<at::Tensor(const at::Tensor&)> change) const {
  return computed([kept = *this, change = std::move(change)] { return change(kept.get()); });
}

}  // namespace megalith
