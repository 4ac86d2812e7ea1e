// Reading ahead; see batch_prefetcher.h.
#include "data/batch_prefetcher.h"

namespace megalith {

BatchPrefetcher::BatchPrefetcher(BatchSource& source, int64_t num_workers, bool pins) : source_(source), pins_(pins) {
  for (int64_t i = 0; i < num_workers; ++i) threads_.emplace_back([this] { work(); });
}

BatchPrefetcher::~BatchPrefetcher() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  has_work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void BatchPrefetcher::prefetch(std::vector<DataPosition> positions) {
  if (threads_.empty()) return;
  {
    std::unique_lock lock(mutex_);
    wanted_.resize(num_begun_);  // no more of what was begun before
    is_idle_.wait(lock, [this] { return num_finished_ == num_begun_; });
    wanted_ = std::move(positions);
    slots_.clear();
    slots_.resize(wanted_.size());
    num_begun_ = num_finished_ = 0;
  }
  has_work_.notify_all();
}

std::vector<Batch> BatchPrefetcher::take(const std::vector<DataPosition>& positions) {
  std::vector<Slot> slots;
  if (threads_.empty()) {
    for (const DataPosition& position : positions) {
      slots.push_back(read(position));
      if (slots.back().failure) break;
    }
  } else {
    if (wanted_ != positions) prefetch(positions);  // only this thread changes wanted_
    std::unique_lock lock(mutex_);
    is_idle_.wait(lock, [this] { return num_finished_ == wanted_.size(); });
    slots = std::move(slots_);
    wanted_.clear();
    slots_.clear();
    num_begun_ = num_finished_ = 0;
  }
  std::vector<Batch> batches;
  for (Slot& slot : slots) {
    if (slot.failure) std::rethrow_exception(slot.failure);
    batches.push_back(std::move(slot.batch));
  }
  return batches;
}

void BatchPrefetcher::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    has_work_.wait(lock, [this] { return is_stopping_ || num_begun_ < wanted_.size(); });
    if (is_stopping_) return;
    const size_t i = num_begun_++;
    const DataPosition position = wanted_[i];
    lock.unlock();
    Slot slot = read(position);
    lock.lock();
    slots_[i] = std::move(slot);
    ++num_finished_;
    is_idle_.notify_all();
  }
}

BatchPrefetcher::Slot BatchPrefetcher::read(const DataPosition& position) noexcept {
  Slot slot;
  try {
    slot.batch = source_.read(position);
    if (pins_) {
      for (const BatchField& field : std::vector<BatchField>(slot.batch.fields())) {
        slot.batch.set(field.name, field.tensor.pin_memory());
      }
    }
  } catch (...) {
    slot.failure = std::current_exception();
  }
  return slot;
}

}  // namespace megalith
