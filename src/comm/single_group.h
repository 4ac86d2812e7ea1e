// The group of one rank: collectives are done when issued.
#pragma once

#include <deque>
#include <string>

#include "comm/group.h"

namespace megalith {

class SingleGroup : public Group {
 public:
  explicit SingleGroup(std::string axis, int world_rank = 0);

 protected:
  State start_all_reduce(const at::Tensor& tensor, ReduceOp op, const Record& record) override;
  State start_all_gather(const at::Tensor& out, const at::Tensor& in, const Record& record) override;
  State start_reduce_scatter(const at::Tensor& out, const at::Tensor& in, ReduceOp op, const Record& record) override;
  State start_all_to_all(const at::Tensor& out, const at::Tensor& in, const std::vector<int64_t>& out_splits,
                         const std::vector<int64_t>& in_splits, const Record& record) override;
  State start_broadcast(const at::Tensor& tensor, int root, const Record& record) override;
  // Sends go to itself. Waiting for what was never sent is an InternalError.
  State start_send_receive(const std::vector<Transfer>& transfers, const Record& record) override;
  State start_barrier(const Record& record) override;

 private:
  class Receipt;

  // Matched in order: one queue is always empty.
  struct PendingReceive {
    at::Tensor tensor;
    int tag;
    std::shared_ptr<Receipt> receipt;
  };
  struct PendingSend {
    at::Tensor copy;
    int tag;
  };
  std::deque<PendingSend> sends_;
  std::deque<PendingReceive> receives_;
};

}  // namespace megalith
