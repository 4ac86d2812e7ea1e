#include "nn/token_exchange.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "comm/distribution.h"
#include "core/error.h"
#include "nn/function.h"

namespace megalith {

namespace {

// The input must stay unchanged until the work is done.
struct ExchangeUnderWay {
  at::Tensor in, out;
  Work work;

  at::Tensor arrived() {
    MEGALITH_CHECK(out.defined(), "tokens are waited for that nobody sent");
    work.wait();
    work = {};
    in.reset();
    return std::exchange(out, {});
  }
};

at::Tensor empty_rows(const at::Tensor& like, int64_t rows) {
  std::vector<int64_t> shape = like.sizes().vec();
  shape.at(0) = rows;
  return at::empty(shape, like.options().requires_grad(false));
}

ExchangeUnderWay issue(const TokenExchange& exchange, const at::Tensor& x) {
  Group& group = *exchange.group;
  ExchangeUnderWay sent{.in = x.contiguous(), .out = {}, .work = {}};
  switch (exchange.kind) {
    case TokenExchange::Kind::kAllToAll:
      sent.out = empty_rows(x, std::accumulate(exchange.out_splits.begin(), exchange.out_splits.end(), int64_t{0}));
      sent.work = group.all_to_all(sent.out, sent.in, exchange.out_splits, exchange.in_splits, exchange.label);
      if (exchange.goes_to_parts) sent.out = as_sent_to_all(sent.out, exchange.parts);
      break;
    case TokenExchange::Kind::kGather:
      sent.out = empty_rows(x, x.size(0) * group.size());
      sent.work = group.all_gather(sent.out, sent.in, exchange.label);
      sent.out = as_shared(sent.out, group);
      break;
    case TokenExchange::Kind::kScatter:
      sent.out = empty_rows(x, div_exact(x.size(0), group.size()));
      sent.work = group.reduce_scatter(sent.out, sent.in, ReduceOp::kSum, exchange.label);
      break;
  }
  return sent;
}

// May share memory with x.
at::Tensor part_of_tokens(const at::Tensor& x, const Group& group) {
  const int64_t rows_of_part = div_up(x.size(0), group.size());
  const int64_t first = std::min(group.rank() * rows_of_part, x.size(0));
  const int64_t count = std::min(rows_of_part, x.size(0) - first);
  // A Function's output must not be a view.
  const at::Tensor part = as_cut(x.narrow(0, first, count).variable_data(), group);
  if (count == rows_of_part) return part;
  at::Tensor padded = at::zeros_like(empty_rows(x, rows_of_part));
  padded.narrow(0, 0, count).copy_(part);
  return padded;
}

at::Tensor all_tokens(const at::Tensor& part, int64_t num_tokens, Group& group, const std::string& label) {
  return group.gathered(part.contiguous(), label).narrow(0, 0, num_tokens).variable_data();
}

}  // namespace

TokenExchange TokenExchange::reversed() const {
  TokenExchange reverse = *this;
  std::swap(reverse.in_splits, reverse.out_splits);
  reverse.goes_to_parts = !parts.empty() && !goes_to_parts;
  if (kind != Kind::kAllToAll) reverse.kind = kind == Kind::kGather ? Kind::kScatter : Kind::kGather;
  return reverse;
}

TokenExchange TokenExchange::labelled(std::string text) const {
  TokenExchange other = *this;
  other.label = std::move(text);
  return other;
}

struct TokensUnderWay::State {
  TokenExchange exchange;
  ExchangeUnderWay sent;  // forward's, then backward's
};

struct StartExchangeFunction : torch::autograd::Function<StartExchangeFunction> {
  using State = std::shared_ptr<TokensUnderWay::State>;

  // Returns the sent tensor; the reverse exchange fills its gradient.
  static at::Tensor forward(torch::autograd::AutogradContext* node, const at::Tensor& x, const State& state) {
    hold(node, state);
    state->sent = issue(state->exchange, x);
    return state->sent.in.variable_data();
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* node,
                                                 const torch::autograd::variable_list& /*gradients*/) {
    return {held<State>(node)->sent.arrived(), {}};
  }
};

struct AwaitExchangeFunction : torch::autograd::Function<AwaitExchangeFunction> {
  using State = std::shared_ptr<TokensUnderWay::State>;

  static at::Tensor forward(torch::autograd::AutogradContext* node, const at::Tensor& /*started*/, const State& state) {
    hold(node, state);
    return state->sent.arrived();
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* node,
                                                 const torch::autograd::variable_list& gradients) {
    TokensUnderWay::State& state = *held<State>(node);
    const TokenExchange reverse = state.exchange.reversed();
    state.sent = issue(reverse.labelled(reverse.label + " gradient"), gradients[0]);
    return {state.sent.out, {}};
  }
};

TokensUnderWay start_exchange(TokenExchange exchange, const at::Tensor& x) {
  TokensUnderWay under_way;
  under_way.state_ = std::make_shared<TokensUnderWay::State>();
  under_way.state_->exchange = std::move(exchange);
  if (is_recording({x}))
    under_way.started_ = StartExchangeFunction::apply(x, under_way.state_);
  else
    under_way.state_->sent = issue(under_way.state_->exchange, x);
  return under_way;
}

at::Tensor TokensUnderWay::wait() {
  const at::Tensor started = std::exchange(started_, {});
  return started.defined() ? AwaitExchangeFunction::apply(started, state_) : state_->sent.arrived();
}

at::Tensor exchanged(TokenExchange exchange, const at::Tensor& x) {
  return start_exchange(std::move(exchange), x).wait();
}

struct SharedTokens {
  Groups::Pointer group;
  std::string label;
  int64_t num_tokens;
};

struct SplitTokensFunction : torch::autograd::Function<SplitTokensFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* node, const at::Tensor& x, const SharedTokens& shared) {
    hold(node, shared);
    return part_of_tokens(x, *shared.group);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* node,
                                                 const torch::autograd::variable_list& gradients) {
    const SharedTokens& shared = held<SharedTokens>(node);
    return {all_tokens(gradients[0], shared.num_tokens, *shared.group, shared.label + " gradient"), {}};
  }
};

struct JoinTokensFunction : torch::autograd::Function<JoinTokensFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* node, const at::Tensor& part,
                            const SharedTokens& shared) {
    hold(node, shared);
    return all_tokens(part, shared.num_tokens, *shared.group, shared.label);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* node,
                                                 const torch::autograd::variable_list& gradients) {
    return {part_of_tokens(gradients[0], *held<SharedTokens>(node).group), {}};
  }
};

at::Tensor split_tokens(const at::Tensor& x, const Groups::Pointer& group, const std::string& label) {
  if (group->size() == 1) return x;
  if (!is_recording({x})) return part_of_tokens(x, *group);
  return SplitTokensFunction::apply(x, SharedTokens{group, label, x.size(0)});
}

at::Tensor join_tokens(const at::Tensor& part, int64_t num_tokens, const Groups::Pointer& group,
                       const std::string& label) {
  if (group->size() == 1) return part;
  if (!is_recording({part})) return all_tokens(part, num_tokens, *group, label);
  return JoinTokensFunction::apply(part, SharedTokens{group, label, num_tokens});
}

}  // namespace megalith
