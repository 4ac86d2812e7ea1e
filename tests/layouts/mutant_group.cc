#include "layouts/mutant_group.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace megalith::test {
namespace {

class Forwarded : public WorkState {
 public:
  explicit Forwarded(Work work = {}) : work_(std::move(work)) {}
  void wait() override { work_.wait(); }
  bool is_done() override { return work_.is_done(); }

 private:
  Work work_;
};

class MutantGroup : public Group {
 public:
  MutantGroup(std::shared_ptr<Group> inner, WrongCollective wrong)
      : Group(inner->ranks(), inner->rank(), inner->axis()), inner_(std::move(inner)), wrong_(std::move(wrong)) {}

 protected:
  using How = WrongCollective::How;

  State start_all_reduce(const at::Tensor& tensor, ReduceOp op, const Record& record) override {
    if (!is_wrong(tensor, op, record)) return forwarded(inner_->all_reduce(tensor, op, record->label));
    if (wrong_.how == How::kAverage) return forwarded(inner_->all_reduce(tensor, ReduceOp::kAvg, record->label));
    if (wrong_.how == How::kTwice) {
      inner_->all_reduce(tensor, op, record->label).wait();
      return forwarded(inner_->all_reduce(tensor, op, record->label));
    }
    return std::make_shared<Forwarded>();
  }

  State start_all_gather(const at::Tensor& out, const at::Tensor& in, const Record& record) override {
    if (!is_wrong(in, ReduceOp::kSum, record)) return forwarded(inner_->all_gather(out, in, record->label));
    at::Tensor parts = at::empty_like(out);
    if (wrong_.how == How::kReverse) {
      inner_->all_gather(parts, in, record->label).wait();
      parts = reversed(parts);
    } else {
      const at::Tensor own = in.clone();
      parts = at::cat(std::vector<at::Tensor>(static_cast<size_t>(size()), own));
    }
    out.copy_(parts);
    return std::make_shared<Forwarded>();
  }

  State start_reduce_scatter(const at::Tensor& out, const at::Tensor& in, ReduceOp op, const Record& record) override {
    if (!is_wrong(in, op, record)) return forwarded(inner_->reduce_scatter(out, in, op, record->label));
    if (wrong_.how == How::kReverse) {
      inner_->reduce_scatter(out, reversed(in), op, record->label).wait();
    } else {
      out.copy_(in.narrow(0, rank() * out.size(0), out.size(0)).clone());
    }
    return std::make_shared<Forwarded>();
  }

  State start_all_to_all(const at::Tensor& out, const at::Tensor& in, const std::vector<int64_t>& out_splits,
                         const std::vector<int64_t>& in_splits, const Record& record) override {
    if (!is_wrong(in, ReduceOp::kSum, record)) {
      return forwarded(inner_->all_to_all(out, in, out_splits, in_splits, record->label));
    }
    if (wrong_.how == How::kSkip) {
      copy_rows(out, in.clone());
    } else if (wrong_.how == How::kReverse) {
      inner_->all_to_all(out, reversed(in), out_splits, in_splits, record->label).wait();
    } else {
      inner_->all_to_all(out, in, out_splits, in_splits, record->label).wait();
      const at::Tensor received = out.clone();
      if (wrong_.how == How::kZero) out.zero_();
      if (wrong_.how == How::kLate && late_.defined()) copy_rows(out, late_);
      late_ = received;
    }
    return std::make_shared<Forwarded>();
  }
  State start_broadcast(const at::Tensor& tensor, int root, const Record& record) override {
    return forwarded(inner_->broadcast(tensor, root, record->label));
  }
  State start_send_receive(const std::vector<Transfer>& transfers, const Record& record) override {
    const bool is_any_wrong = std::any_of(transfers.begin(), transfers.end(), [&](const Transfer& transfer) {
      return is_wrong(transfer.tensor, ReduceOp::kSum, record);
    });
    if (!is_any_wrong) {
      return forwarded(inner_->send_receive(transfers, record->label));
    }
    if (wrong_.how == How::kReverse) {
      // All sends of a ring go to one rank and all receives come from one: the other way round.
      int next = 0, previous = 0;
      for (const Transfer& transfer : transfers) (transfer.is_send ? next : previous) = transfer.peer;
      std::vector<Transfer> changed = transfers;
      for (Transfer& transfer : changed) transfer.peer = transfer.is_send ? previous : next;
      return forwarded(inner_->send_receive(changed, record->label));
    }
    if (wrong_.how == How::kSkip) {
      // What should come from elsewhere is this rank's own.
      std::vector<at::Tensor> own;
      for (const Transfer& transfer : transfers) {
        if (transfer.is_send) own.push_back(transfer.tensor);
      }
      size_t next = 0;
      for (const Transfer& transfer : transfers) {
        if (!transfer.is_send) transfer.tensor.copy_(own.at(next++));
      }
      return std::make_shared<Forwarded>();
    }
    Work work = inner_->send_receive(transfers, record->label);
    if (transfers[0].is_send) return forwarded(std::move(work));
    work.wait();
    for (const Transfer& transfer : transfers) {
      if (!is_wrong(transfer.tensor, ReduceOp::kSum, record)) continue;
      const at::Tensor received = transfer.tensor.clone();
      if (wrong_.how == How::kZero) transfer.tensor.zero_();
      if (wrong_.how == How::kLate && late_.defined()) transfer.tensor.copy_(late_);
      late_ = received;
    }
    return std::make_shared<Forwarded>();
  }
  State start_barrier(const Record& record) override { return forwarded(inner_->barrier(record->label)); }

 private:
  static State forwarded(Work work) { return std::make_shared<Forwarded>(std::move(work)); }

  bool is_wrong(const at::Tensor& in, ReduceOp op, const Record& record) const {
    return record->kind == wrong_.kind && record->label.find(wrong_.label) != std::string::npos &&
           (!wrong_.when || wrong_.when(in, op));
  }

  // As many rows as both have: exchanges of unequal parts differ in their numbers.
  static void copy_rows(const at::Tensor& out, const at::Tensor& from) {
    const int64_t rows = std::min(out.size(0), from.size(0));
    out.zero_().narrow(0, 0, rows).copy_(from.narrow(0, 0, rows));
  }

  at::Tensor reversed(const at::Tensor& parts) const {
    std::vector<at::Tensor> chunks = parts.chunk(size());
    return at::cat(std::vector<at::Tensor>(chunks.rbegin(), chunks.rend()));
  }

  std::shared_ptr<Group> inner_;
  WrongCollective wrong_;
  at::Tensor late_;  // the last that was received
};

}  // namespace

void replace_groups(Groups& groups, const WrongCollective& wrong) {
  for (Groups::Pointer* group : {&groups.world, &groups.tp, &groups.dp, &groups.dp_cp, &groups.dp_shard,
                                 &groups.dp_shard_cp, &groups.dp_replicate, &groups.cp, &groups.cp_ulysses,
                                 &groups.cp_ring, &groups.pp, &groups.embedding, &groups.tp_cp, &groups.etp, &groups.ep,
                                 &groups.edp, &groups.etp_ep, &groups.edp_shard, &groups.edp_replicate}) {
    if (*group == nullptr) continue;  // no end of the pipeline
    *group = std::make_shared<MutantGroup>(*group, wrong);
  }
}

}  // namespace megalith::test
