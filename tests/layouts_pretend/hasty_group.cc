#include "layouts_pretend/hasty_group.h"

#include <ATen/ATen.h>

#include <utility>

#include "device/stream.h"

namespace megalith::test {
namespace {

class HastyWork : public WorkState {
 public:
  HastyWork(Work work, Haste haste, at::Device device) : work_(std::move(work)), haste_(haste), device_(device) {}
  void wait() override {
    if (haste_ == Haste::kNoWait) return;
    if (haste_ != Haste::kOtherStream) return work_.wait();
    const StreamScope scope(side_stream(device_));
    work_.wait();
  }
  bool is_done() override { return haste_ == Haste::kNoWait || work_.is_done(); }

 private:
  Work work_;
  Haste haste_;
  at::Device device_;
};

class HastyGroup : public Group {
 public:
  HastyGroup(std::shared_ptr<Group> inner, HastyCollective hasty)
      : Group(inner->ranks(), inner->rank(), inner->axis()), inner_(std::move(inner)), hasty_(std::move(hasty)) {}
  at::Device device() const override { return inner_->device(); }

 protected:
  State start_all_reduce(const at::Tensor& tensor, ReduceOp op, const Record& record) override {
    return hastened(inner_->all_reduce(tensor, op, record->label), tensor, record);
  }
  State start_all_gather(const at::Tensor& out, const at::Tensor& in, const Record& record) override {
    return hastened(inner_->all_gather(out, in, record->label), in, record);
  }
  State start_reduce_scatter(const at::Tensor& out, const at::Tensor& in, ReduceOp op, const Record& record) override {
    return hastened(inner_->reduce_scatter(out, in, op, record->label), in, record);
  }
  State start_all_to_all(const at::Tensor& out, const at::Tensor& in, const std::vector<int64_t>& out_splits,
                         const std::vector<int64_t>& in_splits, const Record& record) override {
    return hastened(inner_->all_to_all(out, in, out_splits, in_splits, record->label), in, record);
  }
  State start_broadcast(const at::Tensor& tensor, int root, const Record& record) override {
    return hastened(inner_->broadcast(tensor, root, record->label), tensor, record);
  }
  State start_send_receive(const std::vector<Transfer>& transfers, const Record& record) override {
    Work work = inner_->send_receive(transfers, record->label);
    for (const Transfer& transfer : transfers) {
      if (transfer.is_send) return hastened(std::move(work), transfer.tensor, record);
    }
    return hastened(std::move(work), at::Tensor(), record);
  }
  State start_barrier(const Record& record) override {
    return hastened(inner_->barrier(record->label), at::Tensor(), record);
  }

 private:
  State hastened(Work work, const at::Tensor& sent, const Record& record) const {
    const bool is_meant = record->kind == hasty_.kind && record->label.find(hasty_.label) != std::string::npos &&
                          (hasty_.haste != Haste::kWrites || (sent.defined() && sent.numel() > 0));
    const Haste haste = is_meant ? hasty_.haste : Haste::kNone;
    if (is_meant) ++*hasty_.times;
    if (haste == Haste::kWrites) sent.detach().zero_();
    return std::make_shared<HastyWork>(std::move(work), haste, device());
  }

  std::shared_ptr<Group> inner_;
  HastyCollective hasty_;
};

}  // namespace

const char* name_of(Haste haste) {
  switch (haste) {
    case Haste::kNone:
      return "nothing";
    case Haste::kNoWait:
      return "no wait";
    case Haste::kOtherStream:
      return "a wait by another stream";
    case Haste::kWrites:
      return "a write before the wait";
  }
  return "";
}

void make_hasty(Groups& groups, const HastyCollective& hasty) {
  for (Groups::Pointer* group : {&groups.world, &groups.tp, &groups.dp, &groups.dp_cp, &groups.dp_shard,
                                 &groups.dp_shard_cp, &groups.dp_replicate, &groups.cp, &groups.cp_ulysses,
                                 &groups.cp_ring, &groups.pp, &groups.embedding, &groups.tp_cp, &groups.etp, &groups.ep,
                                 &groups.edp, &groups.etp_ep, &groups.edp_shard, &groups.edp_replicate}) {
    // A group of one works on whatever device its tensors are, and nothing of it is under way.
    if (*group != nullptr && (*group)->size() > 1) *group = std::make_shared<HastyGroup>(*group, hasty);
  }
}

}  // namespace megalith::test
