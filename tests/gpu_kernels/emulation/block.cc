#include "gpu_kernels/emulation/block.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "gpu_kernels/emulation/synchronisation.h"

namespace megalith::gpu_emulation {
namespace {

// Shared memory of a block on every chip of the default architectures: sm_80 and gfx90a have the least.
constexpr size_t kMostStaticBytes = 48 << 10;
size_t most_shared_bytes(int wave_size) { return wave_size == 32 ? 163 << 10 : 64 << 10; }

std::string text_of(Line line) { return std::string(line.file_name()) + ":" + std::to_string(line.line()); }
bool is_same(Line a, Line b) {
  return a.line() == b.line() && a.column() == b.column() && std::strcmp(a.file_name(), b.file_name()) == 0;
}

dim3 unflatten(uint64_t number, dim3 sizes) {
  return {static_cast<unsigned>(number % sizes.x), static_cast<unsigned>(number / sizes.x % sizes.y),
          static_cast<unsigned>(number / (uint64_t{sizes.x} * sizes.y))};
}

}  // namespace

void Block::begin_launch(const Launch& launch) {
  launch_ = launch;
  refusal_.clear();
  refusal_of_thread_ = nullptr;
  while (threads_.size() < launch.num_threads) threads_.push_back(std::make_unique<Thread>());
  while (meetings_.size() < launch.settings.num_unordered_blocks) meetings_.push_back(std::make_unique<Meeting>());
  order_.resize(launch.num_threads);
  shared_.begin_launch();
  release(&launched_);
}

void Block::end_launch() {
  acquire(&ended_);
  shared_.end_launch();
}

std::string Block::run(uint64_t number, size_t identity, std::mt19937_64& random) {
  dynamic_ = nullptr;
  if (launch_.shared_bytes > 0) {
    dynamic_ = shared_.array(this, launch_.shared_bytes, most_shared_bytes(launch_.settings.wave_size));
    if (dynamic_ == nullptr)
      return std::to_string(launch_.shared_bytes) + " bytes of shared memory are more than a block has";
  }
  begin_threads(number, identity);
  do {
    run_until_barrier(random);
  } while (finish_barrier());
  if (!refusal_.empty()) abandon();
  shared_.end_block();
  return refusal_;
}

void Block::begin_threads(uint64_t number, size_t identity) {
  meeting_ = meetings_[identity].get();
  for (unsigned i = 0; i < launch_.num_threads; ++i) {
    Thread& thread = *threads_[i];
    thread.of = this;
    thread.number = i;
    thread.place = {unflatten(i, launch_.block), unflatten(number, launch_.grid), launch_.block, launch_.grid};
    thread.num_barriers = thread.num_exchanges = 0;
    thread.state = ThreadState::kReady;
    thread.fiber.start(&thread_main, &thread, identity);
  }
}

void Block::thread_main(void* argument) {
  auto& thread = *static_cast<Thread*>(argument);
  acquire(&thread.of->launched_);
  (*thread.of->launch_.thread)();
  release(&thread.of->ended_);
  thread.state = ThreadState::kEnded;
}

void Block::run_until_barrier(std::mt19937_64& random) {
  for (unsigned i = 0; i < launch_.num_threads; ++i) order_[i] = i;
  if (launch_.settings.order_seed != 0) std::shuffle(order_.begin(), order_.end(), random);
  const auto wave = static_cast<unsigned>(launch_.settings.wave_size);
  bool has_moved = true;
  while (has_moved && refusal_.empty()) {
    has_moved = false;
    for (const unsigned i : order_) {
      if (threads_[i]->state != ThreadState::kReady) continue;
      resume(*threads_[i]);
      has_moved = true;
      if (refusal_of_thread_ == nullptr) continue;
      char text[200];
      std::snprintf(text, sizeof(text), refusal_of_thread_, refused_bytes_);
      refusal_ = text;
      return;
    }
    for (unsigned first = 0; first < launch_.num_threads; first += wave) {
      if (finish_exchange(first, std::min(launch_.num_threads, first + wave))) has_moved = true;
    }
  }
}

// Lets the threads [first, last), a wave, go on from an exchange. False when they are not at one, or it is refused.
bool Block::finish_exchange(unsigned first, unsigned last) {
  const Thread* waiting = nullptr;
  for (unsigned i = first; i < last && waiting == nullptr; ++i) {
    if (threads_[i]->state == ThreadState::kAtExchange) waiting = threads_[i].get();
  }
  if (waiting == nullptr) return false;
  uint64_t votes = 0;
  uint64_t words[64];
  for (unsigned i = first; i < last; ++i) {
    const Thread& thread = *threads_[i];
    if (thread.state != ThreadState::kAtExchange) {
      refusal_ = text_of(waiting->line) + ": lanes exchange values, but lane " + std::to_string(i - first) +
                 (thread.state == ThreadState::kEnded ? " has ended" : " waits at the barrier " + text_of(thread.line));
      return false;
    }
    if (thread.kind != waiting->kind || !is_same(thread.line, waiting->line)) {
      refusal_ = "lanes of one wave exchange values at different lines: " + text_of(waiting->line) + " and " +
                 text_of(thread.line);
      return false;
    }
    words[i - first] = thread.word;
    if (thread.word != 0) votes |= uint64_t{1} << (i - first);
  }
  for (unsigned i = first; i < last; ++i) {
    Thread& thread = *threads_[i];
    if (thread.kind == ExchangeKind::kVote) {
      thread.word = votes;
    } else if (thread.source_lane < 0 || static_cast<unsigned>(thread.source_lane) >= last - first) {
      refusal_ = text_of(thread.line) + ": lane " + std::to_string(i - first) + " reads from lane " +
                 std::to_string(thread.source_lane) + " of a wave of " + std::to_string(last - first);
      return false;
    } else {
      thread.word = words[thread.source_lane];
    }
    thread.state = ThreadState::kReady;
  }
  return true;
}

// Lets all threads go on from a barrier. False when the block has ended, or is refused.
bool Block::finish_barrier() {
  if (!refusal_.empty()) return false;
  unsigned num_waiting = 0;
  const Thread* waiting = nullptr;
  for (unsigned i = 0; i < launch_.num_threads; ++i) {
    const Thread& thread = *threads_[i];
    if (thread.state == ThreadState::kEnded) continue;
    ++num_waiting;
    if (waiting == nullptr) waiting = &thread;
    if (!is_same(thread.line, waiting->line)) {
      refusal_ =
          "threads of one block wait at different barriers: " + text_of(waiting->line) + " and " + text_of(thread.line);
      return false;
    }
  }
  if (num_waiting == 0) return false;
  if (num_waiting < launch_.num_threads) {
    refusal_ = std::to_string(launch_.num_threads - num_waiting) + " of " + std::to_string(launch_.num_threads) +
               " threads have ended while others wait at the barrier " + text_of(waiting->line);
    return false;
  }
  for (unsigned i = 0; i < launch_.num_threads; ++i) threads_[i]->state = ThreadState::kReady;
  return true;
}

void Block::abandon() {
  for (unsigned i = 0; i < launch_.num_threads; ++i) {
    threads_[i]->fiber.abandon();
    threads_[i]->state = ThreadState::kEnded;
  }
}

void Block::wait_at_barrier(Thread& thread, Line line) {
  thread.line = line;
  thread.state = ThreadState::kAtBarrier;
  char* const barrier = &meeting_->barriers[thread.num_barriers++ % 2];
  release(barrier);
  thread.fiber.suspend();
  acquire(barrier);
}

uint64_t Block::exchange(Thread& thread, ExchangeKind kind, uint64_t word, int source_lane, Line line) {
  thread.line = line;
  thread.kind = kind;
  thread.word = word;
  thread.source_lane = source_lane;
  thread.state = ThreadState::kAtExchange;
  char* const meeting =
      &meeting_->waves[thread.number / static_cast<unsigned>(launch_.settings.wave_size)][thread.num_exchanges++ % 2];
  release(meeting);
  thread.fiber.suspend();
  acquire(meeting);
  return thread.word;
}

void* Block::shared_array(Thread& thread, const void* declaration, size_t bytes) {
  void* memory = shared_.array(declaration, bytes, kMostStaticBytes + launch_.shared_bytes);
  if (memory == nullptr) refuse(thread, "the shared arrays of a block need more than %zu bytes", kMostStaticBytes);
  return memory;
}

void Block::refuse(Thread& thread, const char* reason, size_t bytes) {
  refusal_of_thread_ = reason;
  refused_bytes_ = bytes;
  thread.fiber.suspend();
  std::abort();  // abandoned, never resumed
}

}  // namespace megalith::gpu_emulation
