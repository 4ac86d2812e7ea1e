// The group of a ThreadWorld's rank.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/group.h"

namespace megalith {

class ThreadHub;
struct ThreadMeeting;

class ThreadGroup : public Group {
 public:
  //   position  this rank's
  //   meeting   shared by the group's members
  ThreadGroup(std::vector<int> ranks, int position, std::string axis, std::shared_ptr<ThreadHub> hub,
              std::shared_ptr<ThreadMeeting> meeting);

  at::Device device() const override;

 protected:
  State start_all_reduce(const at::Tensor& tensor, ReduceOp op, const Record& record) override;
  State start_all_gather(const at::Tensor& out, const at::Tensor& in, const Record& record) override;
  State start_reduce_scatter(const at::Tensor& out, const at::Tensor& in, ReduceOp op, const Record& record) override;
  State start_all_to_all(const at::Tensor& out, const at::Tensor& in, const std::vector<int64_t>& out_splits,
                         const std::vector<int64_t>& in_splits, const Record& record) override;
  State start_broadcast(const at::Tensor& tensor, int root, const Record& record) override;
  State start_send_receive(const std::vector<Transfer>& transfers, const Record& record) override;
  State start_barrier(const Record& record) override;

 private:
  class CollectiveWork;
  class TransferWork;
  struct Part;  // what this rank brings

  State join(const Part& part, const Record& record);
  // The host's view. Throws if not on this rank's device.
  at::Tensor host_view(const at::Tensor& tensor, const Record& record) const;

  std::shared_ptr<ThreadHub> hub_;
  std::shared_ptr<ThreadMeeting> meeting_;
  int64_t next_collective_ = 0;  // the whole group's, not send_receive
};

}  // namespace megalith
