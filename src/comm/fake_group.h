// A group of any size of which only this rank exists, for dry runs: the model of one rank of a thousand is built and
// counted in one process. Collectives return at once; outputs have the right shape, and hold what they would if every
// other rank had what this one has (gathers, exchanges), zeros where something is received, and the local values where
// something is reduced: they are not results.
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

// The groups of world rank `rank`, all fake where they have several ranks.
GroupFactory fake_group_factory(int rank);

}  // namespace megalith
