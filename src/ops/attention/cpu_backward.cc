// Attention backward, for a block of 64 queries and a chunk of up to 256 keys:
//
//   S^T = K Q^T,  P^T = exp(scale S^T - lse),  dV += P^T dO,  dP^T = V dO^T,  dS^T = P^T (dP^T - delta)
//   dK += scale dS^T Q,  dQ^T += scale K^T dS^T,  delta = dO . out of each query
//
// Rows hold 64 queries: lse and delta are vectors along the lanes, and the loop transposes nothing.
//
// A task is a (sequence, KV head): dK and dV stay in fp32 over its query heads. With fewer tasks than threads, keys and
// queries are done separately (seven products instead of five), adding the same numbers in the same order.
#include <cmath>
#include <limits>

#include "ops/attention/cpu_mask.h"
#include "ops/attention/cpu_operands.h"

namespace megalith::ops::cpu::CPU_CAPABILITY {
namespace {

constexpr int64_t kPanelsPerChunk = kBackwardChunk / kKeyPanel;

inline int64_t rows_of(int64_t total, int64_t first, int64_t block) {
  return total - first < block ? total - first : block;
}

// A thread's operands and products. Scores and gradients are (chunk's keys, 64 queries).
class TileBackward {
 public:
  using T = c10::BFloat16;
  using Element = uint16_t;

  TileBackward(const AttentionCall& call, Scratch& scratch)
      : d_(padded(call.d, 32)), dv_(padded(call.dv, 32)), rows_(call.num_backward_chunks() * kBackwardChunk) {
    queries_ = scratch.take<uint16_t>(kQueryBlock * d_);
    queries_t_ = scratch.take<uint16_t>(kQueryBlock * d_);
    queries_b_ = scratch.take<uint16_t>(kQueryBlock * d_);
    dout_ = scratch.take<uint16_t>(kQueryBlock * dv_);
    dout_t_ = scratch.take<uint16_t>(kQueryBlock * dv_);
    dout_b_ = scratch.take<uint16_t>(kQueryBlock * dv_);
    p_ = scratch.take<uint16_t>(kBackwardChunk * kQueryBlock);
    ds_ = scratch.take<uint16_t>(kBackwardChunk * kQueryBlock);
    ds_b_ = scratch.take<uint16_t>(kBackwardChunk * kQueryBlock);
    dq_t_ = scratch.take<float>(d_ * kQueryBlock);
    dq_ = scratch.take<float>(kQueryBlock * d_);
  }
  int64_t d_stride() const { return d_; }
  int64_t dv_stride() const { return dv_; }

  // K (rows, d) and V (rows, dv), left operands of S^T and dP^T; each chunk's K^T, that of dQ^T.
  void pack(const AttentionCall& call, int64_t b, int64_t g, int64_t chunk, Element* packed) {
    const int64_t first = chunk * kBackwardChunk, count = rows_of(call.sk, first, kBackwardChunk);
    uint16_t* keys = packed + first * d_;
    copy_rows<T>(call.k, b, first, count, g, call.d, kBackwardChunk, keys, d_);
    copy_rows<T>(call.v, b, first, count, g, call.dv, kBackwardChunk, packed + rows_ * d_ + first * dv_, dv_);
    uint16_t* transposed = packed + rows_ * (d_ + dv_) + chunk * kTransposedStride * d_;
    for (int64_t row = 0; row < kBackwardChunk; ++row) {
      for (int64_t c = 0; c < d_; ++c) transposed[c * kTransposedStride + row] = keys[row * d_ + c];
    }
  }
  void use(const Element* packed) {
    keys_ = packed;
    values_ = packed + rows_ * d_;
    keys_t_ = values_ + rows_ * dv_;
  }

  void load_queries(const AttentionCall& call, int64_t b, int64_t h, int64_t q0, int64_t rows) {
    copy_rows<T>(call.q, b, q0, rows, h, call.d, kQueryBlock, queries_, d_);
    transpose_pairs(queries_, d_, kQueryBlock, d_ / 2, queries_t_, kQueryBlock);
    pack_rows(queries_, d_, kQueryBlock, d_, queries_b_, 64 * kQueryBlock);
    copy_rows<T>(call.dout, b, q0, rows, h, call.dv, kQueryBlock, dout_, dv_);
    transpose_pairs(dout_, dv_, kQueryBlock, dv_ / 2, dout_t_, kQueryBlock);
    pack_rows(dout_, dv_, kQueryBlock, dv_, dout_b_, 64 * kQueryBlock);
  }
  void compute_scores(int64_t key, int64_t count, float* scores, float* gradients) {
    tile_product(count, kQueryBlock, d_, keys_ + key * d_, d_, queries_t_, kQueryBlock, scores, kQueryBlock, false);
    tile_product(count, kQueryBlock, dv_, values_ + key * dv_, dv_, dout_t_, kQueryBlock, gradients, kQueryBlock,
                 false);
  }
  // Base 2 merges into the scale.
  static constexpr float kBase = kLog2E;
  static Lanes<T> power(const Lanes<T>& x) { return exp2_lanes(x); }
  void set(int64_t row, int64_t lane, const Lanes<T>& p, const Lanes<T>& ds) {
    store_bf16(p_ + row * kQueryBlock + lane, p);
    store_bf16(ds_ + row * kQueryBlock + lane, ds);
  }
  void add_keys(int64_t count, float* dk, float* dv) {
    tile_product_panels(count, dv_, kQueryBlock, p_, kQueryBlock, dout_b_, 0, 64 * kQueryBlock, dv, dv_, true);
    tile_product_panels(count, d_, kQueryBlock, ds_, kQueryBlock, queries_b_, 0, 64 * kQueryBlock, dk, d_, true);
  }
  void add_queries(int64_t key, int64_t count, bool accumulate) {
    for (int64_t row = 0; row < count; row += 2) {
      interleave(ds_ + row * kQueryBlock, ds_ + (row + 1) * kQueryBlock, kQueryBlock, ds_b_ + row * kQueryBlock);
    }
    const uint16_t* keys = keys_t_ + key / kBackwardChunk * kTransposedStride * d_ + key % kBackwardChunk;
    tile_product(d_, kQueryBlock, count, keys, kTransposedStride, ds_b_, kQueryBlock, dq_t_, kQueryBlock, accumulate);
  }
  // (64, d_stride)
  const float* query_gradients() {
    transpose(dq_t_, d_, kQueryBlock, dq_, d_);
    return dq_;
  }
  static void release() { release_tiles(); }

 private:
  int64_t d_, dv_, rows_;
  uint16_t *queries_, *queries_t_, *queries_b_, *dout_, *dout_t_, *dout_b_, *p_, *ds_, *ds_b_;
  float *dq_t_, *dq_;
  const Element *keys_ = nullptr, *values_ = nullptr, *keys_t_ = nullptr;
};

template <typename Type>
class PlainBackward {
 public:
  using T = Type;
  using Element = Wide<T>;

  PlainBackward(const AttentionCall& call, Scratch& scratch)
      : d_(padded(call.d, 16)), dv_(padded(call.dv, 16)), rows_(call.num_backward_chunks() * kBackwardChunk) {
    queries_ = scratch.take<Element>(kQueryBlock * d_);
    queries_t_ = scratch.take<Element>(kQueryBlock * d_);
    dout_ = scratch.take<Element>(kQueryBlock * dv_);
    dout_t_ = scratch.take<Element>(kQueryBlock * dv_);
    dq_t_ = scratch.take<Element>(kQueryBlock * d_);
    dq_ = scratch.take<Element>(kQueryBlock * d_);
  }
  int64_t d_stride() const { return d_; }
  int64_t dv_stride() const { return dv_; }

  void pack(const AttentionCall& call, int64_t b, int64_t g, int64_t chunk, Element* packed) {
    const int64_t first = chunk * kBackwardChunk, count = rows_of(call.sk, first, kBackwardChunk);
    Element* keys = packed + first * d_;
    copy_rows<T>(call.k, b, first, count, g, call.d, kBackwardChunk, keys, d_);
    copy_rows<T>(call.v, b, first, count, g, call.dv, kBackwardChunk, packed + rows_ * d_ + first * dv_, dv_);
    transpose(keys, kBackwardChunk, d_, packed + rows_ * (d_ + dv_) + chunk * kTransposedStride * d_,
              kTransposedStride);
  }
  void use(const Element* packed) {
    keys_ = packed;
    values_ = packed + rows_ * d_;
    keys_t_ = values_ + rows_ * dv_;
  }
  void load_queries(const AttentionCall& call, int64_t b, int64_t h, int64_t q0, int64_t rows) {
    copy_rows<T>(call.q, b, q0, rows, h, call.d, kQueryBlock, queries_, d_);
    transpose(queries_, kQueryBlock, d_, queries_t_, kQueryBlock);
    copy_rows<T>(call.dout, b, q0, rows, h, call.dv, kQueryBlock, dout_, dv_);
    transpose(dout_, kQueryBlock, dv_, dout_t_, kQueryBlock);
  }
  void compute_scores(int64_t key, int64_t count, Element* scores, Element* gradients) {
    scores_ = scores;
    gradients_ = gradients;
    plain_product(count, kQueryBlock, d_, keys_ + key * d_, d_, queries_t_, kQueryBlock, scores, kQueryBlock, false);
    plain_product(count, kQueryBlock, dv_, values_ + key * dv_, dv_, dout_t_, kQueryBlock, gradients, kQueryBlock,
                  false);
  }
  static constexpr Element kBase = 1;
  static Lanes<T> power(const Lanes<T>& x) { return x.exp(); }
  void set(int64_t row, int64_t lane, const Lanes<T>& p, const Lanes<T>& ds) {
    p.store(scores_ + row * kQueryBlock + lane);
    ds.store(gradients_ + row * kQueryBlock + lane);
  }
  void add_keys(int64_t count, Element* dk, Element* dv) {
    plain_product(count, dv_, kQueryBlock, scores_, kQueryBlock, dout_, dv_, dv, dv_, true);
    plain_product(count, d_, kQueryBlock, gradients_, kQueryBlock, queries_, d_, dk, d_, true);
  }
  void add_queries(int64_t key, int64_t count, bool accumulate) {
    const Element* keys = keys_t_ + key / kBackwardChunk * kTransposedStride * d_ + key % kBackwardChunk;
    plain_product(d_, kQueryBlock, count, keys, kTransposedStride, gradients_, kQueryBlock, dq_t_, kQueryBlock,
                  accumulate);
  }
  const Element* query_gradients() {
    transpose(dq_t_, d_, kQueryBlock, dq_, d_);
    return dq_;
  }
  static void release() {}

 private:
  int64_t d_, dv_, rows_;
  Element *queries_, *queries_t_, *dout_, *dout_t_, *dq_t_, *dq_, *scores_ = nullptr, *gradients_ = nullptr;
  const Element *keys_ = nullptr, *values_ = nullptr, *keys_t_ = nullptr;
};

template <typename Products>
class Backward {
 public:
  using T = typename Products::T;
  using W = Wide<T>;
  using Element = typename Products::Element;

  explicit Backward(const AttentionCall& call) : call_(call), products_(call, scratch_) {
    scores_ = scratch_.take<W>(kBackwardChunk * kQueryBlock);
    gradients_ = scratch_.take<W>(kBackwardChunk * kQueryBlock);
    if (call.dropout_p > 0) factors_ = scratch_.take<W>(kBackwardChunk * kQueryBlock);
  }

  void pack_all(std::atomic<int64_t>* next) {
    const int64_t chunks = call_.num_backward_chunks();
    for (int64_t task; (task = next->fetch_add(1)) < call_.b * call_.g * chunks;) {
      const int64_t unit = task / chunks;
      products_.pack(call_, unit / call_.g, unit % call_.g, task % chunks, shared(unit));
    }
  }

  void run(std::atomic<int64_t>* next) {
    const int64_t chunks = call_.num_backward_chunks();
    auto* own = reinterpret_cast<Element*>(scratch_.take<char>(packed_backward_bytes(call_)));
    take_key_sums(chunks * kBackwardChunk);
    for (int64_t unit; (unit = next->fetch_add(1)) < call_.b * call_.g;) {
      const int64_t b = unit / call_.g, g = unit % call_.g;
      for (int64_t c = 0; c < chunks; ++c) products_.pack(call_, b, g, c, own);
      products_.use(own);
      clear_key_sums(chunks * kBackwardChunk);
      for_each_query_block(g, [&](int64_t h, int64_t i) {
        load_block(b, h, i);
        bool is_first = true;
        for (int64_t c = 0; c < chunks; ++c) {
          const int64_t offset = compute_chunk(c, false);
          if (offset < 0) continue;
          products_.add_keys(keys_, dk_ + offset * products_.d_stride(), dv_ + offset * products_.dv_stride());
          products_.add_queries(offset, keys_, !is_first);
          is_first = false;
        }
        store_queries(is_first);
      });
      store_keys(b, g, 0, call_.sk);
    }
    Products::release();
  }

  void run_keys(std::atomic<int64_t>* next) {
    const int64_t chunks = call_.num_backward_chunks();
    take_key_sums(kBackwardChunk);
    for (int64_t task; (task = next->fetch_add(1)) < call_.b * call_.g * chunks;) {
      const int64_t unit = task / chunks, b = unit / call_.g, g = unit % call_.g, c = task % chunks;
      products_.use(shared(unit));
      clear_key_sums(kBackwardChunk);
      const int64_t first = c * kBackwardChunk;
      for_each_query_block(g, [&](int64_t h, int64_t i) {
        const PanelRange range = seen_panels(call_, b, i, c * kPanelsPerChunk, (c + 1) * kPanelsPerChunk);
        if (range.begin >= range.end) return;
        load_block(b, h, i);
        const int64_t offset = compute_chunk(c, false) - first;
        products_.add_keys(keys_, dk_ + offset * products_.d_stride(), dv_ + offset * products_.dv_stride());
      });
      store_keys(b, g, first, rows_of(call_.sk, first, kBackwardChunk));
    }
    Products::release();
  }

  void run_queries(std::atomic<int64_t>* next) {
    const int64_t blocks = call_.num_query_blocks(), heads_per_group = call_.n / call_.g;
    for (int64_t task; (task = next->fetch_add(1)) < call_.b * call_.n * blocks;) {
      const int64_t i = blocks - 1 - task % blocks, h = task / blocks % call_.n, b = task / blocks / call_.n;
      products_.use(shared(b * call_.g + h / heads_per_group));
      load_block(b, h, i);
      bool is_first = true;
      for (int64_t c = 0; c < call_.num_backward_chunks(); ++c) {
        const int64_t offset = compute_chunk(c, false);
        if (offset < 0) continue;
        products_.add_queries(offset, keys_, !is_first);
        is_first = false;
      }
      store_queries(is_first);
    }
    Products::release();
  }

  // A task owns a query block's rows of dbias, summed over the sequences and heads that share them.
  void run_bias(std::atomic<int64_t>* next) {
    const int64_t blocks = call_.num_query_blocks(), heads_per_group = call_.n / call_.g;
    for (int64_t task; (task = next->fetch_add(1)) < call_.bias_b * call_.bias_n * blocks;) {
      const int64_t i = task % blocks, bias_h = task / blocks % call_.bias_n, bias_b = task / blocks / call_.bias_n;
      W* dbias = static_cast<W*>(call_.dbias);
      dbias += ((bias_b * call_.bias_n + bias_h) * call_.sq + i * kQueryBlock) * call_.sk;
      for (int64_t b = bias_b; b < (call_.bias_b == 1 ? call_.b : bias_b + 1); ++b) {
        for (int64_t h = bias_h; h < (call_.bias_n == 1 ? call_.n : bias_h + 1); ++h) {
          products_.use(shared(b * call_.g + h / heads_per_group));
          load_block(b, h, i);
          for (int64_t c = 0; c < call_.num_backward_chunks(); ++c) {
            const int64_t offset = compute_chunk(c, true);
            if (offset < 0) continue;
            for (int64_t r = 0; r < rows_; ++r) {
              for (int64_t j = 0; j < rows_of(call_.sk, offset, keys_); ++j) {
                dbias[r * call_.sk + offset + j] += gradients_[j * kQueryBlock + r];
              }
            }
          }
        }
      }
    }
    Products::release();
  }

 private:
  static constexpr W kInfinity = std::numeric_limits<W>::infinity();
  static constexpr int64_t kPerRow = kQueryBlock / kLanes<T>;

  Element* shared(int64_t unit) const {
    return reinterpret_cast<Element*>(static_cast<char*>(call_.packed) + unit * packed_backward_bytes(call_));
  }

  template <typename Body>
  void for_each_query_block(int64_t g, Body&& body) {
    const int64_t heads_per_group = call_.n / call_.g;
    for (int64_t h = g * heads_per_group; h < (g + 1) * heads_per_group; ++h) {
      for (int64_t i = 0; i < call_.num_query_blocks(); ++i) body(h, i);
    }
  }

  void take_key_sums(int64_t rows) {
    dk_ = scratch_.take<W>(rows * products_.d_stride());
    dv_ = scratch_.take<W>(rows * products_.dv_stride());
  }
  void clear_key_sums(int64_t rows) {
    std::memset(dk_, 0, static_cast<size_t>(rows * products_.d_stride()) * sizeof(W));
    std::memset(dv_, 0, static_cast<size_t>(rows * products_.dv_stride()) * sizeof(W));
  }

  void load_block(int64_t b, int64_t h, int64_t i) {
    b_ = b;
    h_ = h;
    i_ = i;
    q0_ = i * kQueryBlock;
    rows_ = rows_of(call_.sq, q0_, kQueryBlock);
    products_.load_queries(call_, b, h, q0_, rows_);
    fill_query_lanes(call_, b, q0_, &lanes_);
    const W* lse = static_cast<const W*>(call_.lse) + (b * call_.n + h) * call_.sq + q0_;
    for (int64_t r = 0; r < kQueryBlock; ++r) {
      // exp(s - inf) = 0 for rows past the end and queries without keys.
      lse_[r] = r < rows_ && lse[r] != -kInfinity ? lse[r] : kInfinity;
      delta_[r] = 0;
      if (r >= rows_) continue;
      const T* out = head_rows<const T>(call_.out, b, q0_ + r, h);
      const T* dout = head_rows<const T>(call_.dout, b, q0_ + r, h);
      Lanes<T> sum(0);
      for_each_lanes<T>(call_.dv,
                        [&](int64_t c, auto n) { sum = at::vec::fmadd(load(out + c, n), load(dout + c, n), sum); });
      delta_[r] = sum_of(sum);
    }
  }

  // P^T and dS^T of block and chunk, for keys_ keys from the returned one; -1: none.
  int64_t compute_chunk(int64_t chunk, bool keeps_wide) {
    const PanelRange range = seen_panels(call_, b_, i_, chunk * kPanelsPerChunk, (chunk + 1) * kPanelsPerChunk);
    if (range.begin >= range.end) return -1;
    const int64_t first = range.begin * kKeyPanel;
    keys_ = range.end * kKeyPanel - first;
    products_.compute_scores(first, keys_, scores_, gradients_);
    if (call_.softcap > 0) cap_scores<T>(call_, keys_ * kQueryBlock, scores_);
    for (int64_t p = range.begin; p < range.end; ++p) {
      const int64_t at = (p - range.begin) * kKeyPanel * kQueryBlock;
      if (call_.bias != nullptr || seen(call_, b_, i_, p) != Sees::kAll) {
        mask_key_rows<T>(call_, b_, h_, q0_, rows_, p, lanes_, scores_ + at);
      }
      if (factors_ != nullptr) fill_dropout_factors<W>(call_, b_, h_, q0_, rows_, p, factors_ + at);
    }
    const Lanes<T> scale(static_cast<W>(call_.softmax_scale()) * Products::kBase);
    const Lanes<T> lowest(static_cast<W>(-call_.softcap)), one(W(1));
    Lanes<T> lse[kPerRow], delta[kPerRow];
    for (int64_t x = 0; x < kPerRow; ++x) {
      lse[x] = Lanes<T>::loadu(lse_ + x * kLanes<T>) * Lanes<T>(Products::kBase);
      delta[x] = Lanes<T>::loadu(delta_ + x * kLanes<T>);
    }
    for (int64_t row = 0; row < keys_; ++row) {
      for (int64_t x = 0; x < kPerRow; ++x) {
        const int64_t lane = x * kLanes<T>, at = row * kQueryBlock + lane;
        const Lanes<T> score = Lanes<T>::loadu(scores_ + at);
        const Lanes<T> p = Products::power(at::vec::fmsub(score, scale, lse[x]));
        Lanes<T> dp = Lanes<T>::loadu(gradients_ + at), p_dropped = p;
        if (factors_ != nullptr) {
          const Lanes<T> factor = Lanes<T>::loadu(factors_ + at);
          p_dropped = p * factor;
          dp = dp * factor;
        }
        Lanes<T> ds = p * (dp - delta[x]);
        if (call_.softcap > 0) {
          // d tanh(x) = 1 - tanh(x)^2; masked scores (-inf) must not give NaN.
          const Lanes<T> bent = at::vec::maximum(score, lowest) / lowest;
          ds = ds * (one - bent * bent);
        }
        products_.set(row, lane, p_dropped, ds);
        if (keeps_wide) ds.store(gradients_ + at);
      }
    }
    return first;
  }

  void store_queries(bool saw_nothing) {
    const W* from = saw_nothing ? nullptr : products_.query_gradients();
    const Lanes<T> scale(static_cast<W>(call_.scale));
    for (int64_t r = 0; r < rows_; ++r) {
      T* to = head_rows<T>(call_.dq, b_, q0_ + r, h_);
      for_each_lanes<T>(call_.d, [&](int64_t c, auto n) {
        store(to + c, saw_nothing ? Lanes<T>(0) : load(from + r * products_.d_stride() + c, n) * scale, n);
      });
    }
  }

  void store_keys(int64_t b, int64_t g, int64_t first, int64_t count) {
    const Lanes<T> scale(static_cast<W>(call_.scale));
    for (int64_t r = 0; r < count; ++r) {
      T* dk = head_rows<T>(call_.dk, b, first + r, g);
      T* dv = head_rows<T>(call_.dv_out, b, first + r, g);
      const W *dk_sum = dk_ + r * products_.d_stride(), *dv_sum = dv_ + r * products_.dv_stride();
      for_each_lanes<T>(call_.d, [&](int64_t c, auto n) { store(dk + c, load(dk_sum + c, n) * scale, n); });
      for_each_lanes<T>(call_.dv, [&](int64_t c, auto n) { store(dv + c, load(dv_sum + c, n), n); });
    }
  }

  const AttentionCall& call_;
  Scratch scratch_;
  Products products_;
  W *scores_, *gradients_, *factors_ = nullptr, *dk_ = nullptr, *dv_ = nullptr;
  int64_t b_ = 0, h_ = 0, i_ = 0, q0_ = 0, rows_ = 0, keys_ = 0;
  QueryLanes lanes_;
  W lse_[kQueryBlock], delta_[kQueryBlock];
};

template <typename Body>
void with_backward(const AttentionCall& call, Body&& body) {
  if (call.uses_tiles) {
    Backward<TileBackward> backward(call);
    return body(backward);
  }
  with_type(call.dtype, [&](auto zero) {
    Backward<PlainBackward<decltype(zero)>> backward(call);
    body(backward);
  });
}

}  // namespace

void attention_pack_backward(const AttentionCall& call, std::atomic<int64_t>* next) {
  with_backward(call, [&](auto& backward) { backward.pack_all(next); });
}
void attention_backward(const AttentionCall& call, std::atomic<int64_t>* next) {
  with_backward(call, [&](auto& backward) { backward.run(next); });
}
void attention_backward_keys(const AttentionCall& call, std::atomic<int64_t>* next) {
  with_backward(call, [&](auto& backward) { backward.run_keys(next); });
}
void attention_backward_queries(const AttentionCall& call, std::atomic<int64_t>* next) {
  with_backward(call, [&](auto& backward) { backward.run_queries(next); });
}
void attention_backward_bias(const AttentionCall& call, std::atomic<int64_t>* next) {
  with_backward(call, [&](auto& backward) { backward.run_bias(next); });
}

}  // namespace megalith::ops::cpu::CPU_CAPABILITY
