// A communicator as one axis sees it, with its own name in traces, errors and the watchdog's log, its own count and
// settings. Axes with the same ranks share one (groups.h).
//
// Back ends match calls of all views by order only: a mismatch may pair an all-reduce over dp with one over the world.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/group.h"

namespace megalith {

class GroupView : public Group {
 public:
  // Inherits the communicator's log.
  GroupView(std::shared_ptr<Group> communicator, std::string axis);

  at::Device device() const override { return communicator_->device(); }
  void connect() override { communicator_->connect(); }
  bool is_connected() const override { return communicator_->is_connected(); }

 protected:
  State start_all_reduce(const at::Tensor& tensor, ReduceOp op, const Record& record) override;
  State start_all_gather(const at::Tensor& out, const at::Tensor& in, const Record& record) override;
  State start_reduce_scatter(const at::Tensor& out, const at::Tensor& in, ReduceOp op, const Record& record) override;
  State start_all_to_all(const at::Tensor& out, const at::Tensor& in, const std::vector<int64_t>& out_splits,
                         const std::vector<int64_t>& in_splits, const Record& record) override;
  State start_broadcast(const at::Tensor& tensor, int root, const Record& record) override;
  State start_send_receive(const std::vector<Transfer>& transfers, const Record& record) override;
  State start_barrier(const Record& record) override;

  // For views of several communicators.
  static State start_send_receive_on(Group& communicator, const std::vector<Transfer>& transfers, const Record& record);

 private:
  std::shared_ptr<Group> communicator_;
};

}  // namespace megalith
