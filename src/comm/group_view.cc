#include "comm/group_view.h"

#include <utility>

namespace megalith {

GroupView::GroupView(std::shared_ptr<Group> communicator, std::string axis)
    : Group(communicator->ranks(), communicator->rank(), std::move(axis)), communicator_(std::move(communicator)) {
  if (communicator_->collective_log()) set_collective_log(communicator_->collective_log());
}

Group::State GroupView::start_all_reduce(const at::Tensor& tensor, ReduceOp op, const Record& record) {
  return communicator_->start_all_reduce(tensor, op, record);
}

Group::State GroupView::start_all_gather(const at::Tensor& out, const at::Tensor& in, const Record& record) {
  return communicator_->start_all_gather(out, in, record);
}

Group::State GroupView::start_reduce_scatter(const at::Tensor& out, const at::Tensor& in, ReduceOp op,
                                             const Record& record) {
  return communicator_->start_reduce_scatter(out, in, op, record);
}

Group::State GroupView::start_all_to_all(const at::Tensor& out, const at::Tensor& in,
                                         const std::vector<int64_t>& out_splits, const std::vector<int64_t>& in_splits,
                                         const Record& record) {
  return communicator_->start_all_to_all(out, in, out_splits, in_splits, record);
}

Group::State GroupView::start_broadcast(const at::Tensor& tensor, int root, const Record& record) {
  return communicator_->start_broadcast(tensor, root, record);
}

Group::State GroupView::start_send_receive(const std::vector<Transfer>& transfers, const Record& record) {
  return communicator_->start_send_receive(transfers, record);
}

Group::State GroupView::start_send_receive_on(Group& communicator, const std::vector<Transfer>& transfers,
                                              const Record& record) {
  return communicator.start_send_receive(transfers, record);
}

Group::State GroupView::start_barrier(const Record& record) { return communicator_->start_barrier(record); }

}  // namespace megalith
