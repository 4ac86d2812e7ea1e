// A token's rows are summed in fixed order; one thread writes each result.
#include <ATen/Parallel.h>

#include "ops/cpu/lanes.h"
#include "ops/token_permutation/kernel.h"

namespace megalith::ops::cpu::CPU_CAPABILITY {
namespace {

int64_t tokens_per_task(int64_t columns) { return 1 + 8192 / (columns + 1); }

template <typename T>
void sum_rows(const CombineTokens& a) {
  using W = Wide<T>;
  at::parallel_for(0, a.tokens, tokens_per_task(a.columns), [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      const int64_t* slots = a.slots + token * a.k;
      const W* weights = a.weights == nullptr ? nullptr : static_cast<const W*>(a.weights) + token * a.k;
      T* out = static_cast<T*>(a.out) + token * a.columns;
      for_each_lanes<T>(a.columns, [&](int64_t c, auto n) {
        Lanes<T> sum(W(0));
        for (int64_t j = 0; j < a.k; ++j) {
          if (slots[j] < 0) continue;
          const Lanes<T> row = load(static_cast<const T*>(a.y) + slots[j] * a.y_stride + c, n);
          sum = weights == nullptr ? sum + row : at::vec::fmadd(Lanes<T>(weights[j]), row, sum);
        }
        store(out + c, sum, n);
      });
    }
  });
}

template <typename T>
void weigh_rows(const CombineTokensBackward& a) {
  using W = Wide<T>;
  at::parallel_for(0, a.rows, tokens_per_task(a.columns), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t token = a.source[row];
      W weight(0);  // the weight of the token's pair that went to this row
      for (int64_t j = 0; token >= 0 && j < a.k; ++j) {
        if (a.slots[token * a.k + j] == row) weight = static_cast<const W*>(a.weights)[token * a.k + j];
      }
      const T* dout = static_cast<const T*>(a.dout) + (token < 0 ? 0 : token) * a.dout_stride;
      T* dy = static_cast<T*>(a.dy) + row * a.columns;
      for_each_lanes<T>(a.columns, [&](int64_t c, auto n) {
        store(dy + c, token < 0 ? Lanes<T>(W(0)) : Lanes<T>(weight) * load(dout + c, n), n);
      });
    }
  });
}

template <typename T>
void multiply_rows(const CombineTokensBackward& a) {
  using W = Wide<T>;
  at::parallel_for(0, a.tokens, tokens_per_task(a.columns), [&](int64_t begin, int64_t end) {
    for (int64_t pair = begin * a.k; pair < end * a.k; ++pair) {
      Lanes<T> sum(W(0));
      if (a.slots[pair] >= 0) {
        const T* dout = static_cast<const T*>(a.dout) + pair / a.k * a.dout_stride;
        const T* y = static_cast<const T*>(a.y) + a.slots[pair] * a.y_stride;
        for_each_lanes<T>(a.columns,
                          [&](int64_t c, auto n) { sum = at::vec::fmadd(load(dout + c, n), load(y + c, n), sum); });
      }
      static_cast<W*>(a.dweights)[pair] = sum_of(sum);
    }
  });
}

}  // namespace

void combine_tokens(const CombineTokens& a) {
  with_type(a.dtype, [&](auto zero) { sum_rows<decltype(zero)>(a); });
}

void combine_tokens_backward(const CombineTokensBackward& a) {
  with_type(a.dtype, [&](auto zero) {
    weigh_rows<decltype(zero)>(a);
    multiply_rows<decltype(zero)>(a);
  });
}

}  // namespace megalith::ops::cpu::CPU_CAPABILITY
