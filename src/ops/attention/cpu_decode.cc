// One query a sequence, as in generation: keys and values are read where they are, in blocks of 64 from the first
// visible one on, with a running maximum and sum in fp32. A sequence's bits therefore depend neither on the others nor
// on hidden keys before its own.
#include <cmath>
#include <cstring>
#include <limits>

#include "ops/attention/cpu_operands.h"
#include "ops/cpu/lane_sums.h"

namespace megalith::ops::cpu::CPU_CAPABILITY {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();

int64_t whole_lanes(int64_t size) { return padded(size, kFloatLanes); }

bool is_visible(const DecodeCall& call, int64_t b, int64_t key) {
  const int64_t position = call.sk - 1;  // the query's
  if (call.window > 0 && position - key >= call.window) return false;
  if (call.key_lengths != nullptr && key >= call.key_lengths[b]) return false;
  return call.key_documents == nullptr || call.key_documents[b * call.sk + key] == call.query_documents[b];
}

template <typename T>
class Decode {
 public:
  explicit Decode(const DecodeCall& call) : call_(call) {
    query_ = scratch_.take<float>(whole_lanes(call.d));
    out_ = scratch_.take<float>(call.task_heads * whole_lanes(call.dv));
    max_ = scratch_.take<float>(call.task_heads);
    sum_ = scratch_.take<float>(call.task_heads);
  }

  void run(int64_t b, int64_t first_head) {
    const int64_t heads = call_.task_heads, dv = whole_lanes(call_.dv);
    for (int64_t i = 0; i < heads; ++i) {
      max_[i] = kNone;
      sum_[i] = 0;
    }
    std::memset(out_, 0, static_cast<size_t>(heads * dv) * sizeof(float));
    int64_t begin = 0, end = call_.sk;
    while (begin < end && !is_visible(call_, b, begin)) ++begin;
    while (begin < end && !is_visible(call_, b, end - 1)) --end;
    const int64_t kv_head = first_head / (call_.n / call_.g);
    for (int64_t key = begin; key < end; key += kBlock) {
      count_ = end - key < kBlock ? end - key : kBlock;
      keys_ = head_rows<T>(call_.k, b, key, kv_head);
      values_ = head_rows<T>(call_.v, b, key, kv_head);
      for (int64_t j = 0; j < kBlock; ++j) visible_[j] = j < count_ && is_visible(call_, b, key + j) ? -1 : 0;
      for (int64_t i = 0; i < heads; ++i) {
        score(head_rows<T>(call_.q, b, 0, first_head + i));
        const float shrink = soften(i);
        add_values(out_ + i * dv, shrink);
      }
    }
    for (int64_t i = 0; i < heads; ++i) finish(b, first_head + i, i);
  }

 private:
  static constexpr int64_t kBlock = 64;

  // Hidden keys get -inf.
  void score(const T* query) {
    for_each_lanes<T>(call_.d, [&](int64_t c, auto n) { load(query + c, n).store(query_ + c); });
    const Lanes<float> scale(static_cast<float>(call_.scale)), cap(static_cast<float>(call_.softcap));
    for (int64_t first = 0; first < count_; first += kFloatLanes) {
      const T* rows[kFloatLanes];
      Lanes<float> dots[kFloatLanes];
#pragma GCC unroll 16
      for (int64_t j = 0; j < kFloatLanes; ++j) {
        rows[j] = keys_ + (first + j < count_ ? first + j : count_ - 1) * call_.k.row_stride;
        dots[j] = Lanes<float>(0);
      }
      for_each_lanes<T>(call_.d, [&](int64_t c, auto n) {
        const Lanes<float> q = Lanes<float>::loadu(query_ + c);
#pragma GCC unroll 16
        for (int64_t j = 0; j < kFloatLanes; ++j) dots[j] = at::vec::fmadd(q, load(rows[j] + c, n), dots[j]);
      });
      lane_sums(dots, scores_ + first);
      Lanes<float> s = Lanes<float>::loadu(scores_ + first) * scale;
      if (call_.softcap > 0) s = (s / cap).tanh() * cap;
      const auto visible = Lanes<float>::loadu(reinterpret_cast<const float*>(visible_ + first));
      Lanes<float>::blendv(Lanes<float>(kNone), s, visible).store(scores_ + first);
    }
  }

  // Scores become probabilities, but for the sum. Returns the factor of earlier ones.
  float soften(int64_t i) {
    const int64_t size = whole_lanes(count_);
    Lanes<float> highest(kNone);
    for (int64_t j = 0; j < size; j += kFloatLanes) {
      highest = at::vec::maximum(highest, Lanes<float>::loadu(scores_ + j));
    }
    const float here = max_of(highest), old = max_[i];
    const float next = here > old || here != here ? here : old;  // passes NaN on
    const Lanes<float> shift(next == kNone ? 0.f : next);        // exp(-inf + inf) is NaN
    Lanes<float> sums(0);
    for (int64_t j = 0; j < size; j += kFloatLanes) {
      const Lanes<float> p = (Lanes<float>::loadu(scores_ + j) - shift).exp();
      p.store(scores_ + j);
      sums = sums + p;
    }
    const float shrink = old == kNone ? 0.f : std::exp(old - next);
    max_[i] = next;
    sum_[i] = sum_[i] * shrink + sum_of(sums);
    return shrink;
  }

  void add_values(float* out, float shrink) {
    constexpr int64_t kWide = 4 * kFloatLanes;
    int64_t c = 0;
    for (; c + kWide <= call_.dv; c += kWide) add_columns<4>(out, c, shrink, FullCount<T>{});
    for (; c + kFloatLanes <= call_.dv; c += kFloatLanes) add_columns<1>(out, c, shrink, FullCount<T>{});
    if (c < call_.dv) add_columns<1>(out, c, shrink, call_.dv - c);
  }
  template <int kRegisters, typename Count>
  void add_columns(float* out, int64_t c, float shrink, Count n) {
    const Lanes<float> factor(shrink);
    Lanes<float> sums[kRegisters];
    for (int x = 0; x < kRegisters; ++x) sums[x] = Lanes<float>::loadu(out + c + x * kFloatLanes) * factor;
    for (int64_t j = 0; j < count_; ++j) {
      if (visible_[j] == 0) continue;
      const Lanes<float> p(scores_[j]);
      const T* value = values_ + j * call_.v.row_stride + c;
      for (int x = 0; x < kRegisters; ++x) sums[x] = at::vec::fmadd(p, load(value + x * kFloatLanes, n), sums[x]);
    }
    for (int x = 0; x < kRegisters; ++x) sums[x].store(out + c + x * kFloatLanes);
  }

  void finish(int64_t b, int64_t head, int64_t i) {
    T* to = head_rows<T>(call_.out, b, 0, head);
    const float* from = out_ + i * whole_lanes(call_.dv);
    const bool is_empty = sum_[i] == 0;
    const Lanes<float> scale(is_empty ? 0.f : 1 / sum_[i]);
    for_each_lanes<T>(call_.dv, [&](int64_t c, auto n) { store(to + c, Lanes<float>::loadu(from + c) * scale, n); });
    call_.lse[b * call_.n + head] = is_empty ? kNone : max_[i] + std::log(sum_[i]);
  }

  const DecodeCall& call_;
  Scratch scratch_;
  float *query_, *out_, *max_, *sum_;
  alignas(64) float scores_[kBlock];
  alignas(64) int32_t visible_[kBlock];  // all bits, or none
  int64_t count_ = 0;                    // keys of the block
  const T *keys_ = nullptr, *values_ = nullptr;
};

}  // namespace

void attention_decode(const DecodeCall& call, std::atomic<int64_t>* next) {
  with_type(call.dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (!std::is_same_v<T, double>) {
      Decode<T> decode(call);
      const int64_t tasks = call.n / call.task_heads;
      for (int64_t task; (task = next->fetch_add(1)) < call.b * tasks;) {
        decode.run(task / tasks, task % tasks * call.task_heads);
      }
    }
  });
}

}  // namespace megalith::ops::cpu::CPU_CAPABILITY
