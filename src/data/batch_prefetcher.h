// Reads the next step's batch on threads of its own while a step runs. The step gets the same batch, or the same error,
// as if it had read itself.
#pragma once

#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "data/batch_source.h"

namespace megalith {

class BatchPrefetcher {
 public:
  // num_workers  threads that read; 0: take() reads itself
  // pins         into pinned memory, from which a GPU's copies wait for nobody
  // The source outlives the prefetcher.
  BatchPrefetcher(BatchSource& source, int64_t num_workers, bool pins = false);
  // Drops what nobody took; waits for no more than the microbatches that are being read.
  ~BatchPrefetcher();
  BatchPrefetcher(const BatchPrefetcher&) = delete;
  BatchPrefetcher& operator=(const BatchPrefetcher&) = delete;

  // Begins to read one step's microbatches and returns at once; what was begun before and not taken is dropped.
  void prefetch(std::vector<DataPosition> positions);

  // The microbatches at these positions, in their order; waits for those that prefetch() began. Throws what reading the
  // first bad one of them threw.
  std::vector<Batch> take(const std::vector<DataPosition>& positions);

 private:
  struct Slot {
    Batch batch;
    std::exception_ptr failure;
  };
  void work();
  Slot read(const DataPosition& position) noexcept;

  BatchSource& source_;
  bool pins_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable has_work_, is_idle_;
  std::vector<DataPosition> wanted_;
  std::vector<Slot> slots_;                  // one for each wanted position
  size_t num_begun_ = 0, num_finished_ = 0;  // of wanted_
  bool is_stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace megalith
