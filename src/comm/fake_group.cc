#include "comm/fake_group.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "core/error.h"

namespace megalith {

Group::State FakeGroup::start_all_reduce(const at::Tensor&, ReduceOp, const Record&) { return nullptr; }

Group::State FakeGroup::start_all_gather(const at::Tensor& out, const at::Tensor& in, const Record&) {
  const at::NoGradGuard no_grad;
  const at::Tensor copy = in.view(-1).clone();  // in may be within out
  for (int r = 0; r < size(); ++r) out.view(-1).narrow(0, r * copy.numel(), copy.numel()).copy_(copy);
  return nullptr;
}

Group::State FakeGroup::start_reduce_scatter(const at::Tensor& out, const at::Tensor& in, ReduceOp, const Record&) {
  const at::NoGradGuard no_grad;
  // out may be these rows.
  out.view(-1).copy_(in.view(-1).narrow(0, rank() * out.numel(), out.numel()).clone());
  return nullptr;
}

Group::State FakeGroup::start_all_to_all(const at::Tensor& out, const at::Tensor& in,
                                         const std::vector<int64_t>& out_splits, const std::vector<int64_t>& in_splits,
                                         const Record&) {
  const at::NoGradGuard no_grad;
  out.zero_();
  int64_t out_row = 0, in_row = 0;
  for (size_t r = 0; r < out_splits.size(); ++r) {
    const int64_t rows = std::min(out_splits[r], in_splits[r]);
    out.narrow(0, out_row, rows).copy_(in.narrow(0, in_row, rows));
    out_row += out_splits[r];
    in_row += in_splits[r];
  }
  return nullptr;
}

Group::State FakeGroup::start_broadcast(const at::Tensor&, int, const Record&) { return nullptr; }

Group::State FakeGroup::start_send_receive(const std::vector<Transfer>& transfers, const Record&) {
  const at::NoGradGuard no_grad;
  for (const Transfer& transfer : transfers) {
    if (!transfer.is_send) transfer.tensor.zero_();
  }
  return nullptr;
}

Group::State FakeGroup::start_barrier(const Record&) { return nullptr; }

GroupFactory fake_group_factory(int rank) {
  return [rank](std::vector<int> ranks, const std::string& axis) -> std::shared_ptr<Group> {
    const auto own = std::find(ranks.begin(), ranks.end(), rank);
    MEGALITH_CHECK(own != ranks.end(), "rank {} is not in its group {}", rank, axis);
    const int position = static_cast<int>(own - ranks.begin());
    return std::make_shared<FakeGroup>(std::move(ranks), position, axis);
  };
}

}  // namespace megalith
