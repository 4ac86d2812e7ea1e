#include "comm/share_text.h"

#include <ATen/ATen.h>

#include <utility>

namespace megalith {
namespace {

constexpr int64_t kNothing = -1;

}  // namespace

std::optional<std::string> share_text(std::optional<std::string> text, Group& group, std::string_view label) {
  if (group.size() == 1) return text;
  // NCCL moves only tensors of its device.
  const int64_t own_size = text ? std::ssize(*text) : kNothing;
  const at::Tensor size = at::full({1}, own_size, at::kLong).to(group.device());
  group.broadcast(size, 0, label).wait();
  const auto num_bytes = size.item<int64_t>();
  if (num_bytes == kNothing) return std::nullopt;
  std::string shared = group.is_first() ? std::move(*text) : std::string(static_cast<size_t>(num_bytes), '\0');
  if (num_bytes == 0) return shared;
  const at::Tensor on_host = at::from_blob(shared.data(), {num_bytes}, at::kByte);
  const at::Tensor bytes = on_host.to(group.device(), at::kByte, /*non_blocking=*/false, /*copy=*/true);
  group.broadcast(bytes, 0, label).wait();
  on_host.copy_(bytes);
  return shared;
}

}  // namespace megalith
