// Attention forward: a block of 64 queries walks over chunks of up to 512 keys with a running maximum and sum; one
// chunk needs no rescaling. P is rounded to bf16 before P V; sums and lse use unrounded values.
#include <cmath>
#include <limits>

#include "ops/attention/cpu_mask.h"
#include "ops/attention/cpu_operands.h"

namespace megalith::ops::cpu::CPU_CAPABILITY {
namespace {

class TileForward {
 public:
  using T = c10::BFloat16;
  using Element = uint16_t;
  static constexpr int64_t kScoreStride = kForwardChunk + 16;  // no power of two, for the cache's sets
  static constexpr int64_t kProbabilityStride = kForwardChunk + 32;

  TileForward(const AttentionCall& call, Scratch& scratch)
      : d_(padded(call.d, 32)), dv_(padded(call.dv, 32)), rows_(call.num_key_panels() * kKeyPanel) {
    panel_ = scratch.take<uint16_t>(kKeyPanel * (d_ > dv_ ? d_ : dv_));
    queries_ = scratch.take<uint16_t>(kQueryBlock * d_);
    scores_ = scratch.take<float>(kQueryBlock * kScoreStride);
    probabilities_ = scratch.take<uint16_t>(kQueryBlock * kProbabilityStride);
  }

  // K^T of a panel: (d / 2, 64, 2). V: panels of 64 columns over all keys.
  void pack(const AttentionCall& call, int64_t b, int64_t g, int64_t panel, Element* packed) {
    const int64_t first = panel * kKeyPanel, count = call.sk - first < kKeyPanel ? call.sk - first : kKeyPanel;
    copy_rows<T>(call.k, b, first, count, g, call.d, kKeyPanel, panel_, d_);
    transpose_pairs(panel_, d_, kKeyPanel, d_ / 2, packed + first * d_, kKeyPanel);
    copy_rows<T>(call.v, b, first, count, g, call.dv, kKeyPanel, panel_, dv_);
    Element* values = packed + rows_ * d_;
    for (int64_t c = 0; c < dv_; c += 64) {
      const int64_t width = dv_ - c < 64 ? dv_ - c : 64;
      pack_rows(panel_ + c, dv_, kKeyPanel, width, values + c * rows_ + first * width, 0);
    }
  }
  void use(const Element* packed) {
    keys_ = packed;
    values_ = packed + rows_ * d_;
  }

  void load_queries(const AttentionCall& call, int64_t b, int64_t h, int64_t q0, int64_t rows) {
    m_ = padded(rows, 16);
    copy_rows<T>(call.q, b, q0, rows, h, call.d, m_, queries_, d_);
  }
  void compute_scores(int64_t first_panel, int64_t count) {
    for (int64_t p = 0; p < count; ++p) {
      tile_product(m_, kKeyPanel, d_, queries_, d_, keys_ + (first_panel + p) * kKeyPanel * d_, kKeyPanel,
                   scores_ + p * kKeyPanel, kScoreStride, false);
    }
  }
  float* scores() { return scores_; }
  void set_probabilities(int64_t row, int64_t column, const Lanes<T>& p) {
    store_bf16(probabilities_ + row * kProbabilityStride + column, p);
  }
  void clear_probability(int64_t row, int64_t column) { probabilities_[row * kProbabilityStride + column] = 0; }
  // Base 2 merges into the scale.
  static constexpr float kBase = kLog2E;
  static Lanes<T> power(const Lanes<T>& x) { return exp2_lanes(x); }
  void add_values(int64_t first_panel, int64_t count, float* out, bool accumulate) {
    tile_product_panels(m_, dv_, count * kKeyPanel, probabilities_, kProbabilityStride, values_,
                        first_panel * kKeyPanel, 64 * rows_, out, dv_, accumulate);
  }
  int64_t out_stride() const { return dv_; }
  static void release() { release_tiles(); }

 private:
  int64_t d_, dv_, rows_, m_ = 0;
  uint16_t *panel_, *queries_, *probabilities_;
  float* scores_;
  const Element *keys_ = nullptr, *values_ = nullptr;
};

template <typename Type>
class PlainForward {
 public:
  using T = Type;
  using Element = Wide<T>;
  static constexpr int64_t kScoreStride = kForwardChunk + 16;

  PlainForward(const AttentionCall& call, Scratch& scratch)
      : d_(padded(call.d, 16)), dv_(padded(call.dv, 16)), rows_(call.num_key_panels() * kKeyPanel) {
    panel_ = scratch.take<Element>(kKeyPanel * d_);
    queries_ = scratch.take<Element>(kQueryBlock * d_);
    scores_ = scratch.take<Element>(kQueryBlock * kScoreStride);
  }
  // K^T of a panel: (d, 64). V as it is.
  void pack(const AttentionCall& call, int64_t b, int64_t g, int64_t panel, Element* packed) {
    const int64_t first = panel * kKeyPanel, count = call.sk - first < kKeyPanel ? call.sk - first : kKeyPanel;
    copy_rows<T>(call.k, b, first, count, g, call.d, kKeyPanel, panel_, d_);
    transpose(panel_, kKeyPanel, d_, packed + first * d_, kKeyPanel);
    copy_rows<T>(call.v, b, first, count, g, call.dv, kKeyPanel, packed + rows_ * d_ + first * dv_, dv_);
  }
  void use(const Element* packed) {
    keys_ = packed;
    values_ = packed + rows_ * d_;
  }
  void load_queries(const AttentionCall& call, int64_t b, int64_t h, int64_t q0, int64_t rows) {
    m_ = rows;
    copy_rows<T>(call.q, b, q0, rows, h, call.d, rows, queries_, d_);
  }
  void compute_scores(int64_t first_panel, int64_t count) {
    for (int64_t p = 0; p < count; ++p) {
      plain_product(m_, kKeyPanel, d_, queries_, d_, keys_ + (first_panel + p) * kKeyPanel * d_, kKeyPanel,
                    scores_ + p * kKeyPanel, kScoreStride, false);
    }
  }
  Element* scores() { return scores_; }
  void set_probabilities(int64_t row, int64_t column, const Lanes<T>& p) {
    p.store(scores_ + row * kScoreStride + column);
  }
  void clear_probability(int64_t row, int64_t column) { scores_[row * kScoreStride + column] = 0; }
  static constexpr Element kBase = 1;
  static Lanes<T> power(const Lanes<T>& x) { return x.exp(); }
  void add_values(int64_t first_panel, int64_t count, Element* out, bool accumulate) {
    plain_product(m_, dv_, count * kKeyPanel, scores_, kScoreStride, values_ + first_panel * kKeyPanel * dv_, dv_, out,
                  dv_, accumulate);
  }
  int64_t out_stride() const { return dv_; }
  static void release() {}

 private:
  int64_t d_, dv_, rows_, m_ = 0;
  Element *panel_, *queries_, *scores_;
  const Element *keys_ = nullptr, *values_ = nullptr;
};

template <typename Products>
class Forward {
 public:
  using T = typename Products::T;
  using W = Wide<T>;
  using Element = typename Products::Element;

  explicit Forward(const AttentionCall& call) : call_(call), products_(call, scratch_) {
    out_ = scratch_.take<W>(kQueryBlock * products_.out_stride());
    if (call.dropout_p > 0) factors_ = scratch_.take<W>(kKeyPanel * kQueryBlock);
  }

  void pack_all(std::atomic<int64_t>* next) {
    const int64_t panels = call_.num_key_panels();
    for (int64_t task; (task = next->fetch_add(1)) < call_.b * call_.g * panels;) {
      const int64_t unit = task / panels;
      products_.pack(call_, unit / call_.g, unit % call_.g, task % panels, shared(unit));
    }
  }

  void run(std::atomic<int64_t>* next) {
    const int64_t blocks = call_.num_query_blocks(), heads_per_group = call_.n / call_.g;
    if (call_.packed != nullptr) {
      for (int64_t task; (task = next->fetch_add(1)) < call_.b * call_.n * blocks;) {
        // A causal mask's long rows first, so that the last tasks are short.
        const int64_t i = blocks - 1 - task % blocks, h = task / blocks % call_.n, b = task / blocks / call_.n;
        products_.use(shared(b * call_.g + h / heads_per_group));
        block(b, h, i);
      }
    } else {
      auto* own = reinterpret_cast<Element*>(scratch_.take<char>(packed_forward_bytes(call_)));
      for (int64_t unit; (unit = next->fetch_add(1)) < call_.b * call_.g;) {
        const int64_t b = unit / call_.g, g = unit % call_.g;
        for (int64_t p = 0; p < call_.num_key_panels(); ++p) products_.pack(call_, b, g, p, own);
        products_.use(own);
        for (int64_t h = g * heads_per_group; h < (g + 1) * heads_per_group; ++h) {
          for (int64_t i = 0; i < blocks; ++i) block(b, h, i);
        }
      }
    }
    Products::release();
  }

 private:
  static constexpr W kInfinity = std::numeric_limits<W>::infinity();
  static constexpr int64_t kPerPanel = kKeyPanel / kLanes<T>;

  Element* shared(int64_t unit) const {
    return reinterpret_cast<Element*>(static_cast<char*>(call_.packed) + unit * packed_forward_bytes(call_));
  }

  void block(int64_t b, int64_t h, int64_t i) {
    const int64_t q0 = i * kQueryBlock, rows = call_.sq - q0 < kQueryBlock ? call_.sq - q0 : kQueryBlock;
    products_.load_queries(call_, b, h, q0, rows);
    for (int64_t r = 0; r < rows; ++r) {
      max_[r] = -kInfinity;
      sum_[r] = 0;
    }
    bool is_first = true;
    constexpr int64_t kPanels = kForwardChunk / kKeyPanel;
    for (int64_t chunk = 0; chunk < call_.num_key_panels(); chunk += kPanels) {
      const PanelRange range = seen_panels(call_, b, i, chunk, chunk + kPanels);
      const int64_t count = range.end - range.begin;
      if (count <= 0) continue;
      products_.compute_scores(range.begin, count);
      if (call_.softcap > 0) {
        for (int64_t r = 0; r < rows; ++r) {
          cap_scores<T>(call_, count * kKeyPanel, products_.scores() + r * Products::kScoreStride);
        }
      }
      for (int64_t p = 0; p < count; ++p) {
        if (call_.bias != nullptr || seen(call_, b, i, range.begin + p) != Sees::kAll) {
          mask_query_rows<T>(call_, b, h, q0, rows, range.begin + p, products_.scores() + p * kKeyPanel,
                             Products::kScoreStride);
        }
      }
      for (int64_t r = 0; r < rows; ++r) softmax_row(r, count, is_first);
      if (call_.dropout_p > 0) drop(b, h, q0, rows, range.begin, count);
      products_.add_values(range.begin, count, out_, !is_first);
      is_first = false;
    }
    store_block(b, h, q0, rows, is_first);
  }

  // Rescales earlier sums if the maximum grows.
  void softmax_row(int64_t row, int64_t panels, bool is_first) {
    const W* s = products_.scores() + row * Products::kScoreStride;
    const auto scale = static_cast<W>(call_.softmax_scale());
    Lanes<T> maxima[kPerPanel];
    for (auto& m : maxima) m = Lanes<T>(-kInfinity);
    for (int64_t c = 0; c < panels * kKeyPanel; c += kKeyPanel) {
      for (int64_t x = 0; x < kPerPanel; ++x) {
        maxima[x] = at::vec::maximum(maxima[x], Lanes<T>::loadu(s + c + x * kLanes<T>) * Lanes<T>(scale));
      }
    }
    for (int64_t x = 1; x < kPerPanel; ++x) maxima[0] = at::vec::maximum(maxima[0], maxima[x]);
    const W here = max_of(maxima[0]);
    const W highest = here > max_[row] || here != here ? here : max_[row];  // passes NaN on

    const bool sees_none = highest == -kInfinity;
    // exp(-inf - 0) = 0, but exp(-inf + inf) is NaN.
    const Lanes<T> shift(sees_none ? W(0) : highest * Products::kBase), factor(scale * Products::kBase);
    Lanes<T> sums[kPerPanel];
    for (auto& x : sums) x = Lanes<T>(0);
    for (int64_t c = 0; c < panels * kKeyPanel; c += kKeyPanel) {
      for (int64_t x = 0; x < kPerPanel; ++x) {
        const int64_t column = c + x * kLanes<T>;
        const Lanes<T> p = Products::power(at::vec::fmsub(Lanes<T>::loadu(s + column), factor, shift));
        sums[x] = sums[x] + p;
        products_.set_probabilities(row, column, p);
      }
    }
    for (int64_t x = 1; x < kPerPanel; ++x) sums[0] = sums[0] + sums[x];
    const W sum = sum_of(sums[0]);
    if (is_first || sees_none) {
      sum_[row] = sum;
    } else {
      const W shrink = std::exp(max_[row] - highest);
      sum_[row] = sum_[row] * shrink + sum;
      if (shrink != W(1)) {
        W* out = out_ + row * products_.out_stride();
        for_each_lanes<W>(call_.dv, [&](int64_t c, auto n) { store(out + c, load(out + c, n) * Lanes<W>(shrink), n); });
      }
    }
    max_[row] = highest;
  }

  // Kept elements are scaled by 1 / (1 - p) when stored.
  void drop(int64_t b, int64_t h, int64_t q0, int64_t rows, int64_t first_panel, int64_t count) {
    for (int64_t p = 0; p < count; ++p) {
      fill_dropout_factors<W>(call_, b, h, q0, rows, first_panel + p, factors_);
      for (int64_t j = 0; j < kKeyPanel; ++j) {
        for (int64_t r = 0; r < rows; ++r) {
          if (factors_[j * kQueryBlock + r] == 0) products_.clear_probability(r, p * kKeyPanel + j);
        }
      }
    }
  }

  void store_block(int64_t b, int64_t h, int64_t q0, int64_t rows, bool saw_nothing) {
    W* lse = static_cast<W*>(call_.lse) + (b * call_.n + h) * call_.sq + q0;
    for (int64_t r = 0; r < rows; ++r) {
      T* to = head_rows<T>(call_.out, b, q0 + r, h);
      const W* from = out_ + r * products_.out_stride();
      const bool is_empty = saw_nothing || sum_[r] == 0;
      const Lanes<T> scale(is_empty ? W(0) : static_cast<W>(1 / ((1 - call_.dropout_p) * sum_[r])));
      for_each_lanes<T>(
          call_.dv, [&](int64_t c, auto n) { store(to + c, is_empty ? Lanes<T>(0) : load(from + c, n) * scale, n); });
      lse[r] = is_empty ? -kInfinity : max_[r] + std::log(sum_[r]);
    }
  }

  const AttentionCall& call_;
  Scratch scratch_;
  Products products_;
  W* out_;
  W* factors_ = nullptr;
  W max_[kQueryBlock], sum_[kQueryBlock];
};

template <typename Body>
void with_forward(const AttentionCall& call, Body&& body) {
  if (call.uses_tiles) {
    Forward<TileForward> forward(call);
    return body(forward);
  }
  with_type(call.dtype, [&](auto zero) {
    Forward<PlainForward<decltype(zero)>> forward(call);
    body(forward);
  });
}

}  // namespace

void attention_pack_forward(const AttentionCall& call, std::atomic<int64_t>* next) {
  with_forward(call, [&](auto& forward) { forward.pack_all(next); });
}

void attention_forward(const AttentionCall& call, std::atomic<int64_t>* next) {
  with_forward(call, [&](auto& forward) { forward.run(next); });
}

}  // namespace megalith::ops::cpu::CPU_CAPABILITY
