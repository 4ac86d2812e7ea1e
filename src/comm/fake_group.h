// A group of any size in which only this rank exists, for dry runs: one rank of a thousand is built and counted in one
// process. Collectives return at once with outputs of the right shape but not real results: as if the other ranks had
// this one's data (gathers, exchanges), zeros for receives, local values for reductions.
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

// The groups of world rank `rank`, fake if they have several ranks.
GroupFactory fake_group_factory(int rank);

}  // namespace megalith
