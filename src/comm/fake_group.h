// A group in which only this rank exists, for dry runs. Outputs have the right shape, not real values: gathers and
// exchanges repeat this rank's data, receives are zero, reductions local.
#pragma once

#include "comm/groups.h"

namespace megalith {

class FakeGroup : public Group {
 public:
  using Group::Group;

 protected:
  State start_all_reduce(const at::Tensor& tensor, ReduceOp op, const Record& record) override;
  State start_all_gather(const at::Tensor& out, const at::Tensor& in, const Record& record) override;
  State start_reduce_scatter(const at::Tensor& out, const at::Tensor& in, ReduceOp op, const Record& record) override;
  State start_all_to_all(const at::Tensor& out, const at::Tensor& in, const std::vector<int64_t>& out_splits,
                         const std::vector<int64_t>& in_splits, const Record& record) override;
  State start_broadcast(const at::Tensor& tensor, int root, const Record& record) override;
  State start_send_receive(const std::vector<Transfer>& transfers, const Record& record) override;
  State start_barrier(const Record& record) override;
};

// Groups of several ranks are fake.
GroupFactory fake_group_factory(int rank);

}  // namespace megalith
