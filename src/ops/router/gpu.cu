// A wave takes a token at a time, each lane every 32nd (64th) logit in registers, and finds the k best one by one. A
// block's sums over tokens stay in registers; blocks' sums are added in order.
#include <cmath>

#include "ops/gpu/block_sum.h"
#include "ops/gpu/element.h"
#include "ops/gpu/elementwise.h"
#include "ops/gpu/sync_wave.h"
#include "ops/router/kernel.h"

namespace megalith::ops::gpu {
namespace {

constexpr int kRouterThreads = 256;
constexpr int kNoExpert = 0x7FFFFFFF;

template <typename W>
__device__ W infinity() {
  return W(INFINITY);
}
__device__ int expert_of_slot(int slot) { return slot * wave_size() + lane(); }
__device__ int waves_of_block() { return kRouterThreads / wave_size(); }

// ---- One token's values, over a wave's lanes ----

template <typename W, int kSlots, typename Value>
__device__ void fill_slots(W (&values)[kSlots], int64_t num_experts, W beyond, Value&& value) {
  MEGALITH_UNROLL
  for (int i = 0; i < kSlots; ++i) {
    const int expert = expert_of_slot(i);
    values[i] = expert < num_experts ? value(i, expert) : beyond;
  }
}

template <typename W, int kSlots>
__device__ W sum_of_slots(const W (&values)[kSlots]) {
  W sum = 0;
  MEGALITH_UNROLL
  for (int i = 0; i < kSlots; ++i) sum += values[i];
  return combine_lanes(Sum{}, sum, wave_size());
}

// An expert's value, for all lanes; all name the same expert.
template <typename W, int kSlots>
__device__ W value_of(const W (&values)[kSlots], int expert) {
  const int slot = expert / wave_size();
  W mine = 0;
  MEGALITH_UNROLL
  for (int i = 0; i < kSlots; ++i) mine = i == slot ? values[i] : mine;
  return shuffle(mine, expert % wave_size());
}

template <typename W>
__device__ W sigmoid(W x) {
  return W(1) / (W(1) + ::exp(-x));
}

// A token's softmax: values exp(x - largest) / sum. One quotient per token: it takes as long as ten products.
template <typename W>
struct SoftmaxOfToken {
  W largest = 0, sum = 1, inverse = 1;

  __device__ W at(W x) const { return ::exp(x - largest) * inverse; }
  __device__ W log_sum_exp() const { return largest + ::log(sum); }
};

// x is minus infinity where there is no expert.
template <typename W, int kSlots>
__device__ SoftmaxOfToken<W> softmax_of(const W (&x)[kSlots]) {
  SoftmaxOfToken<W> softmax;
  softmax.largest = x[0];
  MEGALITH_UNROLL
  for (int i = 1; i < kSlots; ++i) softmax.largest = Max{}(softmax.largest, x[i]);
  softmax.largest = combine_lanes(Max{}, softmax.largest, wave_size());
  W exponentials[kSlots];
  MEGALITH_UNROLL
  for (int i = 0; i < kSlots; ++i) exponentials[i] = ::exp(x[i] - softmax.largest);
  softmax.sum = sum_of_slots(exponentials);
  softmax.inverse = W(1) / softmax.sum;
  return softmax;
}

// ---- The choice ----

template <typename W>
struct Candidate {
  W value;
  int expert;

  // NaN is the largest; ties go to the lower number.
  __device__ bool comes_before(const Candidate& other) const {
    const bool is_nan = value != value, is_other_nan = other.value != other.value;
    if (is_nan != is_other_nan) return is_nan;
    if (!is_nan && value != other.value) return value > other.value;
    return expert < other.expert;
  }
};

// All lanes call it. Calls found(j, expert) for the `count` largest values before `end`, in order. Returns, as bits,
// which slots hold them.
template <typename W, int kSlots, typename Found>
__device__ uint32_t find_largest(const W (&values)[kSlots], int64_t end, int64_t count, Found&& found) {
  uint32_t taken = 0;
  for (int j = 0; j < count; ++j) {
    Candidate<W> best{-infinity<W>(), kNoExpert};
    MEGALITH_UNROLL
    for (int i = 0; i < kSlots; ++i) {
      const Candidate<W> mine{values[i], expert_of_slot(i)};
      if (mine.expert < end && (taken >> i & 1) == 0 && mine.comes_before(best)) best = mine;
    }
    for (int mask = wave_size() / 2; mask > 0; mask /= 2) {
      const Candidate<W> other{shuffle_xor(best.value, mask), shuffle_xor(best.expert, mask)};
      if (other.comes_before(best)) best = other;
    }
    if (best.expert % wave_size() == lane()) taken |= 1u << (best.expert / wave_size());
    found(j, best.expert);
  }
  return taken;
}

// The sum of a group's `count` largest.
template <typename W>
__device__ W score_of_group(const W* values, int size, int64_t count) {
  W sum = 0;
  Candidate<W> last{0, -1};
  for (int j = 0; j < count; ++j) {
    Candidate<W> best{-infinity<W>(), kNoExpert};
    for (int i = 0; i < size; ++i) {
      const Candidate<W> one{values[i], i};
      if ((j == 0 || last.comes_before(one)) && one.comes_before(best)) best = one;
    }
    sum += best.value;
    last = best;
  }
  return sum;
}

// Minus infinity outside the best groups. room: shared memory, a wave's experts and groups. Whole waves call it.
template <typename W, int kSlots>
__device__ void close_groups(const RouterForm& form, int64_t num_experts, W* room, W (&scores)[kSlots]) {
  const int groups = static_cast<int>(form.num_groups), size = static_cast<int>(num_experts) / groups;
  W* const of_experts = room + wave() * (num_experts + groups);
  W* const of_groups = of_experts + num_experts;
  MEGALITH_UNROLL
  for (int i = 0; i < kSlots; ++i) {
    if (expert_of_slot(i) < num_experts) of_experts[expert_of_slot(i)] = scores[i];
  }
  sync_wave();  // a group's experts are other lanes'
  W group_scores[kSlots];
  fill_slots(group_scores, groups, W(0),
             [&](int, int group) { return score_of_group(of_experts + group * size, size, form.group_scores); });
  const uint32_t open = find_largest(group_scores, groups, form.open_groups, [](int, int) {});
  MEGALITH_UNROLL
  for (int i = 0; i < kSlots; ++i) {
    if (expert_of_slot(i) < groups) of_groups[expert_of_slot(i)] = (open >> i & 1) == 0 ? W(0) : W(1);
  }
  sync_wave();  // an expert's group is another lane's
  MEGALITH_UNROLL
  for (int i = 0; i < kSlots; ++i) {
    const int expert = expert_of_slot(i);
    if (expert < num_experts && of_groups[expert / size] == 0) scores[i] = -infinity<W>();
  }
  sync_wave();  // for the next token
}

template <typename W, int kSlots>
__device__ void score_experts(const RouteTokens& a, const W (&x)[kSlots], const SoftmaxOfToken<W>& softmax,
                              W (&scores)[kSlots]) {
  const W* const bias = static_cast<const W*>(a.bias);
  fill_slots(scores, a.num_experts, -infinity<W>(), [&](int i, int expert) {
    const W score = a.form.choice == RouterChoice::kLogits    ? x[i]
                    : a.form.choice == RouterChoice::kSoftmax ? softmax.at(x[i])
                                                              : sigmoid(x[i]);
    return bias == nullptr ? score : score + bias[expert];
  });
}

// ---- The chosen's weights: lane j has the j-th ----

// Without the factor. x: its logit; is_chosen: this lane has one.
template <typename W>
__device__ W weight_of(RouterWeights weights, bool is_chosen, W x, const SoftmaxOfToken<W>& softmax) {
  if (weights == RouterWeights::kSoftmax) return softmax.at(x);
  if (weights == RouterWeights::kChosenSoftmax) {
    const W largest = combine_lanes(Max{}, is_chosen ? x : -infinity<W>(), wave_size());
    const W exponential = is_chosen ? ::exp(x - largest) : W(0);
    return exponential / combine_lanes(Sum{}, exponential, wave_size());
  }
  const W score = is_chosen ? sigmoid(x) : W(0);
  if (weights == RouterWeights::kSigmoid) return score;
  return score / (combine_lanes(Sum{}, score, wave_size()) + W(kRouterEpsilon));
}

// ---- Sums over tokens ----

// A block's shared memory: per wave a number for each expert and group, exchanged between lanes; the block's counters.
template <typename W>
struct Room {
  W* of_waves;
  unsigned *loads, *counts;  // per expert

  __device__ Room(W* memory, const RouteTokens& a)
      : of_waves(memory),
        loads(reinterpret_cast<unsigned*>(memory + waves_of_block() * (a.num_experts + a.form.num_groups))),
        counts(loads + a.num_experts) {}
};

template <typename W>
size_t bytes_of_room(int64_t experts, int64_t groups) {
  const int64_t waves = kRouterThreads / 32;  // at most
  return static_cast<size_t>(waves * (experts + groups)) * sizeof(W) + static_cast<size_t>(experts) * 2 * sizeof(int);
}

// part[expert] = the sum over the block's waves. All of its threads call it.
template <typename W, int kSlots>
__device__ void add_waves(const W (&sums)[kSlots], int64_t num_experts, W* room, W* part) {
  __syncthreads();  // the last ones may still be read
  MEGALITH_UNROLL
  for (int i = 0; i < kSlots; ++i) {
    if (expert_of_slot(i) < num_experts) room[wave() * num_experts + expert_of_slot(i)] = sums[i];
  }
  __syncthreads();
  for (int64_t expert = threadIdx.x; expert < num_experts; expert += kRouterThreads) {
    W sum = 0;
    for (int w = 0; w < waves_of_block(); ++w) sum += room[w * num_experts + expert];
    part[expert] = sum;
  }
}

// A sequence's local tokens: [begin, end).
struct TokenRange {
  int64_t begin, end;
};
__device__ inline TokenRange tokens_of_sequence(const RouterSums& sums, int64_t sequence, int64_t tokens) {
  if (sums.num_sequences == 0) return {0, tokens};
  const int64_t begin = sequence * sums.sequence_length - sums.first, end = begin + sums.sequence_length;
  return {begin < 0 ? 0 : begin, end > tokens ? tokens : end};
}

// Adds the token's shares; calls counted(j, expert) for the largest, unless choices count.
template <typename W, int kSlots, typename Counted>
__device__ void add_to_balance(const RouteTokens& a, const W (&x)[kSlots], const SoftmaxOfToken<W>& softmax,
                               bool has_token, W (&sums)[kSlots], Counted&& counted) {
  W shares[kSlots];
  if (a.sums.shares == RouterShares::kSoftmax) {
    fill_slots(shares, a.num_experts, W(0), [&](int i, int) { return softmax.at(x[i]); });
  } else {
    fill_slots(shares, a.num_experts, W(0), [&](int i, int) { return sigmoid(x[i]); });
    const W inverse = W(1) / (sum_of_slots(shares) + W(kRouterEpsilon));
    MEGALITH_UNROLL
    for (int i = 0; i < kSlots; ++i) shares[i] *= inverse;
  }
  if (!a.sums.counts_choices) find_largest(shares, a.num_experts, a.form.num_chosen, counted);
  MEGALITH_UNROLL
  for (int i = 0; i < kSlots; ++i) sums[i] += has_token ? shares[i] : W(0);
}

// A block's results: experts' shares, counts and loads, and the squares for z.
__device__ int64_t columns_of_part(int64_t num_experts) { return 3 * num_experts + 1; }

template <typename W, int kSlots>
__global__ void __launch_bounds__(kRouterThreads, 1) decide(RouteTokens a, int64_t blocks_of_sequence) {
  MEGALITH_DYNAMIC_SHARED(W, memory);
  const Room<W> room(memory, a);
  const int64_t sequence = blockIdx.x / blocks_of_sequence, place = blockIdx.x % blocks_of_sequence;
  const TokenRange range = tokens_of_sequence(a.sums, sequence, a.tokens);
  const bool needs_softmax = a.form.choice == RouterChoice::kSoftmax || a.form.weights == RouterWeights::kSoftmax ||
                             (a.sums.has_balance && a.sums.shares == RouterShares::kSoftmax) || a.sums.has_z;
  W shares[kSlots] = {}, z = 0;
  for (int64_t i = threadIdx.x; i < 2 * a.num_experts; i += kRouterThreads) room.loads[i] = 0;
  __syncthreads();  // the counters are zero
  // All waves loop as often as the first, to meet at barriers.
  for (int64_t first = range.begin + place * waves_of_block(); first < range.end;
       first += blocks_of_sequence * waves_of_block()) {
    const int64_t token = first + wave();
    const bool has_token = token < range.end;
    const W* const logits = static_cast<const W*>(a.logits) + (has_token ? token : first) * a.num_experts;
    W x[kSlots];
    fill_slots(x, a.num_experts, -infinity<W>(), [&](int, int expert) { return logits[expert]; });
    SoftmaxOfToken<W> softmax;
    if (needs_softmax) softmax = softmax_of(x);

    const auto count = [&](unsigned* counters, int expert) {
      if (has_token && lane() == 0) atomicAdd(counters + expert, 1u);
    };
    int mine = 0;  // the expert this lane chose
    if (a.given == nullptr) {
      W scores[kSlots];
      score_experts(a, x, softmax, scores);
      if (a.form.num_groups > 0) close_groups(a.form, a.num_experts, room.of_waves, scores);
      find_largest(scores, a.num_experts, a.form.num_chosen,
                   [&](int j, int expert) { mine = lane() == j ? expert : mine; });
    } else {
      const bool has_choice = lane() < a.form.num_chosen;
      mine = has_choice ? static_cast<int>(a.given[(has_token ? token : first) * a.form.num_chosen + lane()]) : 0;
    }
    W logit = 0;
    for (int j = 0; j < a.form.num_chosen; ++j) {
      const int expert = shuffle(mine, j);
      const W value = value_of(x, expert);
      logit = lane() == j ? value : logit;
      count(room.loads, expert);
    }
    const bool is_chosen = lane() < a.form.num_chosen;
    const W weight = weight_of(a.form.weights, is_chosen, logit, softmax) * W(a.form.factor);
    if (has_token && is_chosen) {
      const int64_t pair = token * a.form.num_chosen + lane();
      static_cast<W*>(a.weights)[pair] = weight;
      if (a.given == nullptr) a.experts[pair] = mine;
    }

    if (a.sums.has_balance) {
      add_to_balance(a, x, softmax, has_token, shares, [&](int, int expert) { count(room.counts, expert); });
    }
    if (has_token && a.sums.has_z && lane() == 0) z += softmax.log_sum_exp() * softmax.log_sum_exp();
  }
  if (a.parts == nullptr) return;
  W* const part = static_cast<W*>(a.parts) + blockIdx.x * columns_of_part(a.num_experts);
  add_waves(shares, a.num_experts, room.of_waves, part);
  for (int64_t i = threadIdx.x; i < a.num_experts; i += kRouterThreads) {
    part[a.num_experts + i] = static_cast<W>(a.sums.counts_choices ? room.loads[i] : room.counts[i]);
    part[2 * a.num_experts + i] = static_cast<W>(room.loads[i]);
  }
  z = sum_over_block(z);
  if (threadIdx.x == 0) part[3 * a.num_experts] = z;
}

// Adds blocks' results in order, a thread per result.
template <typename W>
__global__ void __launch_bounds__(kRouterThreads) add_blocks(RouteTokens a, int64_t blocks_of_sequence) {
  const int64_t e = a.num_experts, sequences = a.sums.num_sequences > 0 ? a.sums.num_sequences : 1;
  const int64_t of_balance = sequences * e;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kRouterThreads + threadIdx.x;
  const W* const parts = static_cast<const W*>(a.parts);
  const auto sum_of = [&](int64_t first_block, int64_t blocks, int64_t column) {
    W sum = 0;
    MEGALITH_UNROLL_BY(8)
    for (int64_t b = first_block; b < first_block + blocks; ++b) sum += parts[b * columns_of_part(e) + column];
    return sum;
  };
  const int64_t all = sequences * blocks_of_sequence;
  if (i < of_balance) {
    if (!a.sums.has_balance) return;
    static_cast<W*>(a.score_sums)[i] = sum_of(i / e * blocks_of_sequence, blocks_of_sequence, i % e);
    static_cast<W*>(a.counts)[i] = sum_of(i / e * blocks_of_sequence, blocks_of_sequence, e + i % e);
  } else if (i < of_balance + e) {
    if (a.sums.has_loads) a.loads[i - of_balance] = static_cast<int64_t>(sum_of(0, all, 2 * e + i - of_balance));
  } else if (i == of_balance + e) {
    if (a.sums.has_z) static_cast<W*>(a.z_sum)[0] = sum_of(0, all, 3 * e);
  }
}

// ---- Backward ----

// Adds the shares' gradient to dx.
template <typename W, int kSlots>
__device__ void add_shares_gradient(const RouteTokensBackward& a, int64_t token, const W (&x)[kSlots],
                                    const SoftmaxOfToken<W>& softmax, W (&dx)[kSlots]) {
  const int64_t sequence = a.sums.num_sequences == 0 ? 0 : (a.sums.first + token) / a.sums.sequence_length;
  const W* const gradients = static_cast<const W*>(a.dscore_sums) + sequence * a.num_experts;
  const bool is_softmax = a.sums.shares == RouterShares::kSoftmax;
  W scores[kSlots], gradient[kSlots], products[kSlots];
  fill_slots(scores, a.num_experts, W(0), [&](int i, int) { return is_softmax ? softmax.at(x[i]) : sigmoid(x[i]); });
  fill_slots(gradient, a.num_experts, W(0), [&](int, int expert) { return gradients[expert]; });
  MEGALITH_UNROLL
  for (int i = 0; i < kSlots; ++i) products[i] = gradient[i] * scores[i];
  const W dot = sum_of_slots(products);
  const W inverse = is_softmax ? W(1) : W(1) / (sum_of_slots(scores) + W(kRouterEpsilon));
  MEGALITH_UNROLL
  for (int i = 0; i < kSlots; ++i) {
    dx[i] += is_softmax ? scores[i] * (gradient[i] - dot)
                        : (gradient[i] - dot * inverse) * inverse * scores[i] * (W(1) - scores[i]);
  }
}

// The weights' gradient: with softmax over all experts to every logit, else to the chosen.
template <typename W, int kSlots>
__device__ void add_weights_gradient(const RouteTokensBackward& a, int64_t token, const W (&x)[kSlots],
                                     const SoftmaxOfToken<W>& softmax, W (&dx)[kSlots]) {
  const RouterWeights weights = a.form.weights;
  const bool is_chosen = lane() < a.form.num_chosen;
  const int64_t pair = token * a.form.num_chosen + (is_chosen ? lane() : 0);
  const int mine = static_cast<int>(a.experts[pair]);
  const W dweight = is_chosen ? static_cast<const W*>(a.dweights)[pair] * W(a.form.factor) : W(0);
  W logit = 0;
  for (int j = 0; j < a.form.num_chosen; ++j) {
    const W value = value_of(x, shuffle(mine, j));
    logit = lane() == j ? value : logit;
  }
  const W weight = weight_of(weights, is_chosen, logit, softmax);
  const W dot = combine_lanes(Sum{}, is_chosen ? weight * dweight : W(0), wave_size());
  W of_logit = 0;
  if (weights == RouterWeights::kSigmoid) {
    of_logit = dweight * weight * (W(1) - weight);
  } else if (weights == RouterWeights::kSigmoidShare) {
    const W score = is_chosen ? sigmoid(logit) : W(0);
    const W sum = combine_lanes(Sum{}, score, wave_size()) + W(kRouterEpsilon);
    of_logit = (dweight - dot) / sum * score * (W(1) - score);
  } else if (weights == RouterWeights::kChosenSoftmax) {
    of_logit = weight * (dweight - dot);
  } else {
    of_logit = weight * dweight;
    MEGALITH_UNROLL
    for (int i = 0; i < kSlots; ++i) {
      if (expert_of_slot(i) < a.num_experts) dx[i] -= softmax.at(x[i]) * dot;
    }
  }
  for (int j = 0; j < a.form.num_chosen; ++j) {
    const int expert = shuffle(mine, j);
    const W value = shuffle(of_logit, j);
    MEGALITH_UNROLL
    for (int i = 0; i < kSlots; ++i) dx[i] += expert == expert_of_slot(i) ? value : W(0);
  }
}

template <typename W, int kSlots>
__global__ void __launch_bounds__(kRouterThreads, 1) differentiate(RouteTokensBackward a) {
  const bool needs_softmax = a.form.weights == RouterWeights::kSoftmax || a.dz_sum != nullptr ||
                             (a.dscore_sums != nullptr && a.sums.shares == RouterShares::kSoftmax);
  for (int64_t token = blockIdx.x * int64_t{waves_of_block()} + wave(); token < a.tokens;
       token += int64_t{gridDim.x} * waves_of_block()) {
    const W* const logits = static_cast<const W*>(a.logits) + token * a.num_experts;
    W x[kSlots], dx[kSlots] = {};
    fill_slots(x, a.num_experts, -infinity<W>(), [&](int, int expert) { return logits[expert]; });
    SoftmaxOfToken<W> softmax;
    if (needs_softmax) softmax = softmax_of(x);
    if (a.dz_sum != nullptr) {
      const W gradient = static_cast<const W*>(a.dz_sum)[0] * 2 * softmax.log_sum_exp();
      fill_slots(dx, a.num_experts, W(0), [&](int i, int) { return gradient * softmax.at(x[i]); });
    }
    if (a.dscore_sums != nullptr) add_shares_gradient(a, token, x, softmax, dx);
    if (a.dweights != nullptr) add_weights_gradient(a, token, x, softmax, dx);
    MEGALITH_UNROLL
    for (int i = 0; i < kSlots; ++i) {
      if (expert_of_slot(i) < a.num_experts) {
        static_cast<W*>(a.dlogits)[token * a.num_experts + expert_of_slot(i)] = dx[i];
      }
    }
  }
}

// Calls body(W, slots) as types; waves have at least 32 lanes.
template <typename Body>
void with_slots(Dtype dtype, int64_t num_experts, Body&& body) {
  static_assert(kMostRouterExperts <= 16 * 32 && kMostRouterChoices <= 32);
  const auto of_type = [&](auto zero) {
    if (num_experts <= 2 * 32) return body(zero, std::integral_constant<int, 2>{});
    if (num_experts <= 8 * 32) return body(zero, std::integral_constant<int, 8>{});
    body(zero, std::integral_constant<int, 16>{});
  };
  if (dtype == Dtype::kFloat64) return of_type(double{});
  of_type(float{});
}

}  // namespace

void route_tokens(const RouteTokens& a, void* stream) {
  const auto queue = static_cast<Stream>(stream);
  const int64_t sequences = a.sums.balance_rows(), blocks_of_sequence = router_blocks_of_sequence(a.sums, a.tokens);
  with_slots(a.dtype, a.num_experts, [&](auto zero, auto slots) {
    using W = decltype(zero);
    launch("route_tokens", decide<W, slots()>, static_cast<unsigned>(sequences * blocks_of_sequence), kRouterThreads,
           bytes_of_room<W>(a.num_experts, a.form.num_groups), queue, a, blocks_of_sequence);
    if (a.parts == nullptr) return;
    const int64_t results = sequences * a.num_experts + a.num_experts + 1;
    launch("route_tokens, sums", add_blocks<W>, static_cast<unsigned>((results + kRouterThreads - 1) / kRouterThreads),
           kRouterThreads, 0, queue, a, blocks_of_sequence);
  });
}

void route_tokens_backward(const RouteTokensBackward& a, void* stream) {
  if (a.tokens == 0) return;
  with_slots(a.dtype, a.num_experts, [&](auto zero, auto slots) {
    using W = decltype(zero);
    const int64_t blocks = (a.tokens * 32 + kRouterThreads - 1) / kRouterThreads;
    launch("route_tokens_backward", differentiate<W, slots()>,
           static_cast<unsigned>(std::min<int64_t>(blocks, kMostBlocks)), kRouterThreads, 0,
           static_cast<Stream>(stream), a);
  });
}

}  // namespace megalith::ops::gpu
