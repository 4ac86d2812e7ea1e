// Exchanges of tokens between ranks, differentiable. They come in two steps, so that something can be computed while
// the tokens are on their way, in backward as in forward:
//
//   start_exchange()   issues the exchange             in backward: waits for the reverse one
//   wait()             its results may be used         in backward: issues the reverse exchange
//
// The two are nodes of the graph. Autograd runs first the ready node that was made last; so in backward wait() comes
// first, then whatever was computed between the two in forward, and start_exchange() last.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/groups.h"

namespace megalith {

struct TokenExchange {
  enum class Kind {
    kAllToAll,  // in_splits[r] rows go to rank r, out_splits[r] rows come from it
    kGather,    // the ranks' rows behind one another; reversed: kScatter
    kScatter,   // this rank's rows of the sum over the ranks; reversed: kGather
  };
  Kind kind = Kind::kAllToAll;
  Groups::Pointer group;
  std::string label;  // for the trace
  std::vector<int64_t> out_splits = {}, in_splits = {};

  // What the gradients take, or the results of what was sent.
  TokenExchange reversed() const;
  TokenExchange labelled(std::string text) const;
};

// An exchange that was started.
class TokensUnderWay {
 public:
  // To be called once.
  at::Tensor wait();

 private:
  friend struct StartExchangeFunction;
  friend struct AwaitExchangeFunction;
  friend TokensUnderWay start_exchange(TokenExchange exchange, const at::Tensor& x);
  struct State;

  std::shared_ptr<State> state_;
  at::Tensor started_;  // what the first node gave; undefined without a graph
};

// x (rows, …); every rank of the group calls it, and either all of them record a graph or none.
TokensUnderWay start_exchange(TokenExchange exchange, const at::Tensor& x);
// Both steps at once.
at::Tensor exchanged(TokenExchange exchange, const at::Tensor& x);

// All ranks have the same x (t, …); gives this rank's rows [rank t', (rank + 1) t') of it, with t' = ceil(t / size).
// Behind the last row there are zeros. Gradients are gathered, so all ranks get the whole one.
at::Tensor split_tokens(const at::Tensor& x, const Groups::Pointer& group, const std::string& label);
// The parts (t', …) of all ranks -> (num_tokens, …) on all of them. What all ranks compute from it is the same, so each
// part's gradient is a slice, not a sum over the ranks.
at::Tensor join_tokens(const at::Tensor& part, int64_t num_tokens, const Groups::Pointer& group,
                       const std::string& label);

}  // namespace megalith
