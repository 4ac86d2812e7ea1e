#include "checkpoint/finite_weights.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <vector>

#include "core/error.h"

namespace megalith {
namespace {

// "[3, 17]", in the whole tensor.
std::string place_of(int64_t flat, at::IntArrayRef shape, std::span<const int64_t> offset) {
  std::vector<int64_t> place(offset.begin(), offset.end());
  for (int64_t d = std::ssize(shape) - 1; d >= 0; --d) {
    place[static_cast<size_t>(d)] += flat % shape[static_cast<size_t>(d)];
    flat /= shape[static_cast<size_t>(d)];
  }
  return fmt::format("[{}]", fmt::join(place, ", "));
}

}  // namespace

void require_finite(std::string_view name, const at::Tensor& values, std::span<const int64_t> offset,
                    const std::filesystem::path& file) {
  if (values.numel() == 0 || !at::isFloatingType(values.scalar_type())) return;
  const at::Tensor wide = values.element_size() == 1 ? values.to(at::kFloat) : values;  // 8-bit types have no min
  const auto [least, most] = at::aminmax(wide);                                         // one pass; NaN makes both NaN
  const double low = least.to(at::kDouble).item<double>(), high = most.to(at::kDouble).item<double>();
  const bool may_be_off = name.ends_with("bias") || name.ends_with("sinks");
  if ((std::isfinite(low) || (may_be_off && low < 0)) && std::isfinite(high)) return;
  at::Tensor is_bad = wide.isfinite().logical_not_();
  if (may_be_off) is_bad.logical_and_(wide.isneginf().logical_not_());
  if (!is_bad.any().item<bool>()) return;  // only -inf
  const int64_t first = is_bad.reshape({-1}).to(at::kInt).argmax().item<int64_t>();
  const double value = wide.reshape({-1})[first].to(at::kDouble).item<double>();
  throw UserError(
      fmt::format("{}: {} is {} at {}, and {} of the {} elements read are no finite numbers", file.string(), name,
                  std::isnan(value) ? "nan"
                  : value > 0       ? "inf"
                                    : "-inf",
                  place_of(first, wide.sizes(), offset), is_bad.sum().item<int64_t>(), wide.numel()),
      "these weights are damaged, or of training that diverged: load others (train, generate, evaluate, "
      "embed and convert take them as they are with --allow_nonfinite_weights)");
}

}  // namespace megalith
