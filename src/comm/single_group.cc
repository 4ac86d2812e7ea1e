#include "comm/single_group.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "core/error.h"

namespace megalith {
namespace {

void copy_unless_same(const at::Tensor& out, const at::Tensor& in) {
  if (out.const_data_ptr() == in.const_data_ptr()) return;
  const at::NoGradGuard no_grad;
  out.view(-1).copy_(in.view(-1));
}

void deliver(const at::Tensor& src, int src_tag, const at::Tensor& dst, int dst_tag) {
  MEGALITH_CHECK(src_tag == dst_tag, "a send with tag {} meets a receive with tag {}", src_tag, dst_tag);
  MEGALITH_CHECK(src.sizes() == dst.sizes() && src.scalar_type() == dst.scalar_type(),
                 "tag {}: what is sent and what is received differ in shape or dtype", src_tag);
  copy_unless_same(dst, src);
}

}  // namespace

// Done once its receives met their sends.
class SingleGroup::Receipt : public WorkState {
 public:
  explicit Receipt(Record record) : record_(std::move(record)) {}
  void wait() override {
    MEGALITH_CHECK(open_ == 0, "{}: this rank waits for {} tensor(s) that it has not sent to itself", record_->text(),
                   open_);
  }
  bool is_done() override { return open_ == 0; }
  void expect() { ++open_; }
  void arrived() { --open_; }

 private:
  Record record_;
  int open_ = 0;
};

SingleGroup::SingleGroup(std::string axis, int world_rank) : Group({world_rank}, 0, std::move(axis)) {}

Group::State SingleGroup::start_all_reduce(const at::Tensor&, ReduceOp, const Record&) { return nullptr; }

Group::State SingleGroup::start_all_gather(const at::Tensor& out, const at::Tensor& in, const Record&) {
  copy_unless_same(out, in);
  return nullptr;
}

Group::State SingleGroup::start_reduce_scatter(const at::Tensor& out, const at::Tensor& in, ReduceOp, const Record&) {
  copy_unless_same(out, in);
  return nullptr;
}

Group::State SingleGroup::start_all_to_all(const at::Tensor& out, const at::Tensor& in, const std::vector<int64_t>&,
                                           const std::vector<int64_t>&, const Record& record) {
  MEGALITH_CHECK(out.sizes() == in.sizes(), "{}: one rank sends itself {} rows and expects {}", record->text(),
                 in.size(0), out.size(0));
  copy_unless_same(out, in);
  return nullptr;
}

Group::State SingleGroup::start_broadcast(const at::Tensor&, int, const Record&) { return nullptr; }

Group::State SingleGroup::start_send_receive(const std::vector<Transfer>& transfers, const Record& record) {
  const auto receipt = std::make_shared<Receipt>(record);
  for (const Transfer& transfer : transfers) {
    if (transfer.is_send && !receives_.empty()) {
      const PendingReceive pending = std::move(receives_.front());
      receives_.pop_front();
      deliver(transfer.tensor, transfer.tag, pending.tensor, pending.tag);
      pending.receipt->arrived();
    } else if (transfer.is_send) {
      sends_.push_back({transfer.tensor.detach().clone(), transfer.tag});
    } else if (!sends_.empty()) {
      const PendingSend pending = std::move(sends_.front());
      sends_.pop_front();
      deliver(pending.copy, pending.tag, transfer.tensor, transfer.tag);
    } else {
      receipt->expect();
      receives_.push_back({transfer.tensor, transfer.tag, receipt});
    }
  }
  return receipt;
}

Group::State SingleGroup::start_barrier(const Record&) { return nullptr; }

}  // namespace megalith
