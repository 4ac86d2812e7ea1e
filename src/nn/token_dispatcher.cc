// Rows are sorted by maps (ops/token_permutation): by the all-to-all twice, for contiguous rows per rank and across
// source ranks; by the all-gather once, on arrival.
//
// The host must know the number of rows, but only the device knows how many are dropped. With padding it is the
// capacity. Without, dropped candidates stay as zero rows of the last expert; on a CPU the host reads the number and
// removes them.
#include "nn/token_dispatcher.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "comm/distribution.h"
#include "core/error.h"
#include "nn/function.h"
#include "nn/token_exchange.h"
#include "ops/token_permutation/token_permutation.h"

namespace megalith {

// Each other's gradients. References get nodes too: ATen's autograd leaves the graph without rows, but such a rank must
// still take part in backward's exchanges.
struct PermuteRowsFunction : torch::autograd::Function<PermuteRowsFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* node, const at::Tensor& x, const at::Tensor& source,
                            const at::Tensor& slots, Kernels kernels) {
    node->save_for_backward({slots});
    hold(node, kernels);
    return ops::permute_tokens(x, source, kernels);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* node,
                                                 const torch::autograd::variable_list& gradients) {
    const at::Tensor slots = node->get_saved_variables()[0];
    return {ops::combine_tokens(gradients[0].contiguous(), slots, {}, held<Kernels>(node)), {}, {}, {}};
  }
};

struct CombineRowsFunction : torch::autograd::Function<CombineRowsFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* node, const at::Tensor& y, const at::Tensor& source,
                            const at::Tensor& slots, Kernels kernels) {
    node->save_for_backward({source});
    hold(node, kernels);
    return ops::combine_tokens(y, slots, {}, kernels);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* node,
                                                 const torch::autograd::variable_list& gradients) {
    const at::Tensor source = node->get_saved_variables()[0];
    return {ops::permute_tokens(gradients[0].contiguous(), source, held<Kernels>(node)), {}, {}, {}};
  }
};

namespace {

// Tokens' rows, sorted by expert; each of their k pairs has `copies`.
struct RowOrder {
  at::Tensor source;   // (n): each row's token, -1 for padding
  at::Tensor pairs;    // (n): its pair
  at::Tensor slots;    // (t, k copies): each pair's rows, -1 if dropped
  at::Tensor offsets;  // (e + 1): rows before each expert
  int64_t copies = 1;

  at::Tensor permute(const at::Tensor& x, Kernels kernels) const {
    return is_recording({x}) ? PermuteRowsFunction::apply(x, source, slots, kernels)
                             : ops::permute_tokens(x, source, kernels);
  }
  at::Tensor combine(const at::Tensor& y, Kernels kernels) const {
    return is_recording({y}) ? CombineRowsFunction::apply(y, source, slots, kernels)
                             : ops::combine_tokens(y, slots, {}, kernels);
  }
  // weights (t, k) -> (n, 1)
  at::Tensor permute_weights(const at::Tensor& weights, Kernels kernels) const {
    const RowOrder of_pairs{.source = pairs,
                            .pairs = pairs,
                            .slots = slots.view({weights.numel(), copies}),
                            .offsets = offsets,
                            .copies = copies};
    return of_pairs.permute(weights.reshape({-1, 1}), kernels);
  }
};

void cut_rows(RowOrder& order, int64_t n) {
  order.source = order.source.narrow(0, 0, n);
  order.pairs = order.pairs.narrow(0, 0, n);
}

struct RowLimits {
  int64_t rows_per_expert = 0;  // with padding; 0: none
  int64_t most_rows = 0;        // in total, without padding; -1: read by the host
};

RowOrder sorted_rows(const at::Tensor& experts, int64_t num_experts, const at::Tensor& keep, const RowLimits& limits,
                     Kernels kernels) {
  const bool is_padded = limits.rows_per_expert > 0;
  const ops::ExpertOrder sorted =
      is_padded ? ops::sort_and_pad_by_expert(experts, num_experts, keep, limits.rows_per_expert, kernels)
                : ops::sort_all_by_expert(experts, num_experts, keep, kernels);
  RowOrder order{.source = sorted.source, .pairs = sorted.pairs, .slots = sorted.slots, .offsets = sorted.offsets};
  if (experts.is_meta()) return order;
  if (is_padded) {
    if (sorted.counts.is_cpu()) {  // a GPU would synchronise
      const int64_t most = sorted.counts.max().item<int64_t>();
      MEGALITH_CHECK(most <= limits.rows_per_expert, "an expert gets {} rows, but its capacity is {}", most,
                     limits.rows_per_expert);
    }
  } else if (keep.defined()) {
    const at::Tensor end = order.offsets.narrow(0, num_experts, 1);
    const bool is_read = experts.is_cpu() || limits.most_rows < 0;
    cut_rows(order, is_read ? end.item<int64_t>() : std::min(limits.most_rows, experts.numel()));
    if (!is_read) end.fill_(order.source.size(0));
  }
  return order;
}

// The ranks with the other parts of this one's experts, and those with the same part of other experts.
std::vector<int> ranks_of_expert(const Group& etp_ep, int etp) {
  const auto first = etp_ep.ranks().begin() + etp_ep.rank() / etp * etp;
  return {first, first + etp};
}
std::vector<int> ranks_of_part(const Group& etp_ep, int etp) {
  std::vector<int> ranks;
  for (int r = etp_ep.rank() % etp; r < etp_ep.size(); r += etp) {
    ranks.push_back(etp_ep.ranks()[static_cast<size_t>(r)]);
  }
  return ranks;
}

// On the meta device, experts are chosen equally often.

RowOrder order_of_rows(const RowOrder& like, int64_t rows, int64_t copies) {
  const auto numbers = [&](std::vector<int64_t> shape) { return at::empty(shape, like.source.options()); };
  return {.source = numbers({rows}),
          .pairs = numbers({rows}),
          .slots = numbers({like.slots.size(0), like.slots.size(1) * copies}),
          .offsets = like.offsets,
          .copies = copies};
}

// The first parts take the remainder.
std::vector<int64_t> even_parts(int64_t rows, int64_t parts) {
  std::vector<int64_t> sizes(static_cast<size_t>(parts), rows / parts);
  for (int64_t i = 0; i < rows % parts; ++i) ++sizes[static_cast<size_t>(i)];
  return sizes;
}

// After rows moved to `rows` (n, copies) -> (t, k copies).
at::Tensor moved_slots(const at::Tensor& slots, const at::Tensor& rows) {
  const int64_t n = rows.size(0), copies = rows.size(1);
  // The last row serves dropped pairs.
  const at::Tensor places = at::cat({rows, at::full({1, copies}, -1, rows.options())});
  const at::Tensor from = slots.masked_fill(slots < 0, n).view(-1);
  return places.index_select(0, from).view({slots.size(0), slots.size(1) * copies});
}

at::Tensor moved_map(const at::Tensor& map, const at::Tensor& rows, int64_t num_rows) {
  const at::Tensor repeated = map.unsqueeze(1).expand(rows.sizes()).reshape(-1);
  return at::full({num_rows}, -1, map.options()).index_copy_(0, rows.reshape(-1), repeated);
}

// Repeats rows for the etp ranks of their ep rank. row_counts (ep).
RowOrder repeated_rows(const RowOrder& order, const at::Tensor& row_counts, int64_t etp) {
  if (etp == 1) return order;
  if (row_counts.is_meta()) return order_of_rows(order, order.source.size(0) * etp, etp);
  const int64_t ep = row_counts.size(0), n = order.source.size(0);
  const at::Tensor rank = at::arange(ep, row_counts.options()).repeat_interleave(row_counts, 0, n);
  const at::Tensor first = (row_counts.cumsum(0) - row_counts).index_select(0, rank);
  const at::Tensor count = row_counts.index_select(0, rank);
  // Row r of ep rank p, copy q: etp first[p] + q count[p] + r - first[p].
  const at::Tensor base = at::arange(n, row_counts.options()) + (etp - 1) * first;
  const at::Tensor rows = base.unsqueeze(1) + count.unsqueeze(1) * at::arange(etp, row_counts.options());
  return {.source = moved_map(order.source, rows, n * etp),
          .pairs = moved_map(order.pairs, rows, n * etp),
          .slots = moved_slots(order.slots, rows),
          .offsets = {},
          .copies = etp};
}

int64_t total(const std::vector<int64_t>& sizes) { return std::accumulate(sizes.begin(), sizes.end(), int64_t{0}); }

std::vector<int64_t> numbers_of(const at::Tensor& on_cpu) {
  const auto* begin = on_cpu.const_data_ptr<int64_t>();
  return {begin, begin + on_cpu.numel()};
}

}  // namespace

struct TokenDispatcher::Dispatched {
  std::optional<RowOrder> sent;  // all-to-all: own tokens' rows
  // From arrived to the experts' rows; source is undefined if equal.
  RowOrder order;
  std::optional<TokenExchange> way_back;  // the results'
};

TokenDispatcher::TokenDispatcher(const LayerContext& context, DispatcherKind kind, std::string name,
                                 int64_t num_experts)
    : group_(context.groups->etp_ep),
      etp_(context.groups->etp->size()),
      ep_(context.groups->ep->size()),
      kind_(kind),
      name_(std::move(name)),
      num_experts_(num_experts),
      kernels_(context.kernels) {}

ExpertRows TokenDispatcher::dispatch(const at::Tensor& x, const ExpertRouter::Routing& routing, int64_t rows_per_expert,
                                     const std::function<void()>& meanwhile, std::shared_ptr<Dispatched>& state) const {
  state = std::make_shared<Dispatched>();
  Arrived arrived{x, routing.weights};
  if (group_->size() == 1) {
    const int64_t pairs = routing.experts.numel();
    const int64_t most_rows = routing.capacity > 0 ? std::min(pairs, num_experts_ * routing.capacity) : pairs;
    state->order = sorted_rows(routing.experts, num_experts_, routing.keep, {rows_per_expert, most_rows}, kernels_);
    if (meanwhile) meanwhile();
  } else if (kind_ == DispatcherKind::kAllToAll) {
    arrived = exchange_rows(x, routing, rows_per_expert, meanwhile, *state);
  } else {
    arrived = gather_tokens(x, routing, rows_per_expert, meanwhile, *state);
  }
  const RowOrder& order = state->order;
  if (order.source.defined()) {
    arrived.weights = order.permute_weights(arrived.weights, kernels_);
    arrived.x = order.permute(arrived.x, kernels_);
  }
  return {arrived.x, arrived.weights.squeeze(1), order.offsets};
}

// Rows and weights (n, 1) of this rank's experts, by source rank.
TokenDispatcher::Arrived TokenDispatcher::exchange_rows(const at::Tensor& x, const ExpertRouter::Routing& routing,
                                                        int64_t rows_per_expert, const std::function<void()>& meanwhile,
                                                        Dispatched& state) const {
  const int64_t size = group_->size(), num_local = div_exact(num_experts_, ep_);
  const ops::ExpertOrder by_expert = ops::sort_all_by_expert(routing.experts, num_experts_, routing.keep, kernels_);
  const at::Tensor sent =
      by_expert.counts.view({ep_, 1, num_local}).expand({ep_, etp_, num_local}).reshape({size, -1}).contiguous();
  const at::Tensor coming = group_->exchanged(sent, {}, {}, name_ + " counts");
  TokenExchange exchange{.kind = TokenExchange::Kind::kAllToAll, .group = group_, .label = name_ + " tokens"};
  exchange.parts = ranks_of_expert(*group_, etp_);
  exchange.goes_to_parts = true;
  if (x.is_meta()) {
    exchange.out_splits = exchange.in_splits = even_parts(by_expert.source.size(0) * etp_, size);
  } else {
    // The host synchronises, to know the received size.
    const at::Tensor splits = at::stack({coming.sum(1), sent.sum(1)}).cpu();
    exchange.out_splits = numbers_of(splits[0]);
    exchange.in_splits = numbers_of(splits[1]);
  }
  RowOrder sent_once{.source = by_expert.source, .pairs = by_expert.pairs, .slots = by_expert.slots};
  // Dropped rows are not sent.
  if (!x.is_meta()) cut_rows(sent_once, total(exchange.in_splits) / etp_);
  state.sent = repeated_rows(sent_once, by_expert.counts.view({ep_, num_local}).sum(1), etp_);
  state.way_back = exchange.reversed().labelled(name_ + " results");

  TokensUnderWay rows = start_exchange(exchange, state.sent->permute(x, kernels_));
  TokensUnderWay weights =
      start_exchange(exchange.labelled(name_ + " weights"), state.sent->permute_weights(routing.weights, kernels_));
  if (meanwhile) meanwhile();
  const int64_t num_rows = total(exchange.out_splits);
  if (num_local > 1 || rows_per_expert > 0) {
    const at::Tensor expert = x.is_meta() ? at::empty({num_rows, 1}, coming.options())
                                          : at::arange(num_local, coming.options())
                                                .repeat({size})
                                                .repeat_interleave(coming.view(-1), 0, num_rows)
                                                .unsqueeze(1);
    state.order = sorted_rows(expert, num_local, {}, {.rows_per_expert = rows_per_expert}, kernels_);
  } else {
    state.order.offsets = at::arange(2, coming.options()) * num_rows;
  }
  // Last, so that backward sends rows first.
  const at::Tensor arrived_weights = weights.wait();
  return {rows.wait(), arrived_weights};
}

// All ranks' tokens and weights (tokens, k).
TokenDispatcher::Arrived TokenDispatcher::gather_tokens(const at::Tensor& x, const ExpertRouter::Routing& routing,
                                                        int64_t rows_per_expert, const std::function<void()>& meanwhile,
                                                        Dispatched& state) const {
  const int64_t num_local = div_exact(num_experts_, ep_), first = group_->rank() / etp_ * num_local;
  const TokenExchange gather{.kind = TokenExchange::Kind::kGather, .group = group_, .label = name_ + " tokens"};
  state.way_back = gather.reversed().labelled(name_ + " results");

  // Dropped pairs travel as expert -1.
  at::Tensor experts = routing.experts;
  if (routing.keep.defined() && !x.is_meta()) experts = experts.masked_fill(routing.keep.logical_not(), -1);
  TokensUnderWay all_experts = start_exchange(gather.labelled(name_ + " experts"), experts);
  TokensUnderWay all_tokens = start_exchange(gather, x);
  TokensUnderWay all_weights = start_exchange(gather.labelled(name_ + " weights"), routing.weights);
  if (meanwhile) meanwhile();
  const at::Tensor local = as_cut(all_experts.wait() - first, ranks_of_part(*group_, etp_));
  const bool are_all_here = x.is_meta() || (ep_ == 1 && !routing.keep.defined());
  const at::Tensor is_here = are_all_here ? at::Tensor() : local.ge(0).logical_and_(local.lt(num_local));
  // With several ep ranks, room for all gathered tokens would be ep times too much.
  const RowLimits limits{rows_per_expert, ep_ == 1 ? local.numel() : -1};
  state.order = sorted_rows(local.clamp(0, num_local - 1), num_local, is_here, limits, kernels_);
  if (x.is_meta() && rows_per_expert == 0) {
    state.order = order_of_rows(state.order, div_up(state.order.source.size(0), int64_t{ep_}), 1);
    for (at::Tensor* map : {&state.order.source, &state.order.pairs, &state.order.slots}) {
      *map = as_cut(*map, ranks_of_part(*group_, etp_));
    }
  }
  const at::Tensor weights = all_weights.wait();
  return {all_tokens.wait(), weights};
}

at::Tensor TokenDispatcher::combine(const at::Tensor& y, const std::shared_ptr<Dispatched>& state) const {
  at::Tensor rows = state->order.source.defined() ? state->order.combine(y, kernels_) : y;
  if (!state->way_back) return rows;
  if (state->way_back->kind == TokenExchange::Kind::kScatter) rows = as_summand(rows, *group_);
  rows = exchanged(*state->way_back, rows);
  return state->sent ? state->sent->combine(rows, kernels_) : rows;
}

}  // namespace megalith
