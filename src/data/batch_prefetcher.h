// Reads the next step's batch on its own threads while a step runs; batches and errors are those of a direct read.
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
  // num_workers  reading threads; 0: take() reads itself
  // pins         into pinned memory, for asynchronous copies to a GPU
  // source must outlive the prefetcher.
  BatchPrefetcher(BatchSource& source, int64_t num_workers, bool pins = false);
  // Drops what was not taken; waits only for microbatches being read.
  ~BatchPrefetcher();
  BatchPrefetcher(const BatchPrefetcher&) = delete;
  BatchPrefetcher& operator=(const BatchPrefetcher&) = delete;

  // Starts to read one step's microbatches and returns at once; drops earlier ones not taken.
  void prefetch(std::vector<DataPosition> positions);

  // Microbatches at these positions, in order; waits for those begun by prefetch(). Rethrows the first read error.
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
  std::mutex mutex_;  // guards the members below
  std::condition_variable has_work_, is_idle_;
  std::vector<DataPosition> wanted_;
  std::vector<Slot> slots_;                  // one for each wanted position
  size_t num_begun_ = 0, num_finished_ = 0;  // in wanted_
  bool is_stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace megalith
