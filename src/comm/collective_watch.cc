#include "comm/collective_watch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "comm/group_view.h"
#include "device/bits_digest.h"

namespace megalith {
namespace {

struct WatchedBuffer {
  std::string place;
  at::Tensor tensor;
};

// Digests outputs once readable.
class WatchedWork : public WorkState {
 public:
  WatchedWork(std::shared_ptr<WorkState> inner, std::shared_ptr<CollectiveWatch> watch,
              std::shared_ptr<const CollectiveRecord> record, std::vector<WatchedBuffer> outputs)
      : inner_(std::move(inner)), watch_(std::move(watch)), record_(std::move(record)), outputs_(std::move(outputs)) {}

  void wait() override {
    if (inner_) inner_->wait();
    for (const WatchedBuffer& output : std::exchange(outputs_, {})) {
      watch_->add(output.place, *record_, /*is_output=*/true, output.tensor);
    }
  }
  bool is_done() override { return !inner_ || inner_->is_done(); }
  std::function<bool()> completion() override { return inner_ ? inner_->completion() : std::function<bool()>(); }

 private:
  std::shared_ptr<WorkState> inner_;
  std::shared_ptr<CollectiveWatch> watch_;
  std::shared_ptr<const CollectiveRecord> record_;
  std::vector<WatchedBuffer> outputs_;
};

class WatchedGroup : public GroupView {
 public:
  WatchedGroup(const std::shared_ptr<Group>& communicator, std::shared_ptr<CollectiveWatch> watch)
      : GroupView(communicator, communicator->axis()),
        watch_(std::move(watch)),
        name_(fmt::format("{}/{}", axis(), fmt::join(ranks(), "+"))) {}

 protected:
  State start_all_reduce(const at::Tensor& tensor, ReduceOp op, const Record& record) override {
    return watched(record, &tensor, &tensor, [&] { return GroupView::start_all_reduce(tensor, op, record); });
  }
  State start_all_gather(const at::Tensor& out, const at::Tensor& in, const Record& record) override {
    return watched(record, &in, &out, [&] { return GroupView::start_all_gather(out, in, record); });
  }
  State start_reduce_scatter(const at::Tensor& out, const at::Tensor& in, ReduceOp op, const Record& record) override {
    return watched(record, &in, &out, [&] { return GroupView::start_reduce_scatter(out, in, op, record); });
  }
  State start_all_to_all(const at::Tensor& out, const at::Tensor& in, const std::vector<int64_t>& out_splits,
                         const std::vector<int64_t>& in_splits, const Record& record) override {
    return watched(record, &in, &out,
                   [&] { return GroupView::start_all_to_all(out, in, out_splits, in_splits, record); });
  }
  State start_broadcast(const at::Tensor& tensor, int root, const Record& record) override {
    const bool gives = rank() == root;
    return watched(record, gives ? &tensor : nullptr, gives ? nullptr : &tensor,
                   [&] { return GroupView::start_broadcast(tensor, root, record); });
  }
  State start_send_receive(const std::vector<Transfer>& transfers, const Record& record) override {
    if (!watch_->is_on()) return GroupView::start_send_receive(transfers, record);
    std::vector<WatchedBuffer> outputs;
    for (const Transfer& transfer : transfers) {
      const int from = transfer.is_send ? rank() : transfer.peer, to = transfer.is_send ? transfer.peer : rank();
      // Counted per pair: the n-th send matches the n-th receive.
      const bool is_to_itself = from == to;
      const std::string between =
          fmt::format("{} {}>{}{}", name_, from, to, is_to_itself && !transfer.is_send ? " received" : "");
      const std::string place = watch_->next_place(between);
      if (transfer.is_send) {
        watch_->add(place, *record, /*is_output=*/false, transfer.tensor);
      } else {
        outputs.push_back({place, transfer.tensor});
      }
    }
    return followed(GroupView::start_send_receive(transfers, record), record, std::move(outputs));
  }

 private:
  State followed(State inner, const Record& record, std::vector<WatchedBuffer> outputs) {
    return std::make_shared<WatchedWork>(std::move(inner), watch_, record, std::move(outputs));
  }
  template <typename Start>
  State watched(const Record& record, const at::Tensor* in, const at::Tensor* out, const Start& start) {
    if (!watch_->is_on()) return start();
    const std::string place = watch_->next_place(name_);
    if (in != nullptr) watch_->add(place, *record, /*is_output=*/false, *in);
    std::vector<WatchedBuffer> outputs;
    if (out != nullptr) outputs.push_back({place, *out});
    return followed(start(), record, std::move(outputs));
  }

  std::shared_ptr<CollectiveWatch> watch_;
  std::string name_;
};

}  // namespace

void CollectiveWatch::begin() {
  const std::lock_guard lock(mutex_);
  bits_.clear();
  counts_.clear();
  is_on_ = true;
}

std::vector<CollectiveBits> CollectiveWatch::end() {
  const std::lock_guard lock(mutex_);
  is_on_ = false;
  return std::exchange(bits_, {});
}

std::string CollectiveWatch::next_place(const std::string& between) {
  const std::lock_guard lock(mutex_);
  return fmt::format("{} {}", between, counts_[between]++);
}

void CollectiveWatch::add(const std::string& place, const CollectiveRecord& record, bool is_output,
                          const at::Tensor& tensor) {
  at::Tensor digest = bits_digest(tensor);
  const std::lock_guard lock(mutex_);
  if (!is_on_) return;  // awaited after the pass, which did not read it
  bits_.push_back({.place = place, .text = record.text(), .is_output = is_output, .digest = std::move(digest)});
}

GroupFactory watched_factory(GroupFactory factory, std::shared_ptr<CollectiveWatch> watch) {
  return [factory = std::move(factory), watch = std::move(watch)](std::vector<int> ranks, const std::string& axis) {
    return std::make_shared<WatchedGroup>(factory(std::move(ranks), axis), watch);
  };
}

}  // namespace megalith
