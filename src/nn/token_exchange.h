// Token exchanges in two steps, to compute while tokens are in flight:
//
//   start_exchange()   issues the exchange             in backward: waits for the reverse one
//   wait()             its results may be used         in backward: issues the reverse exchange
//
// Autograd runs the newest ready node first: wait(), then what forward computed in between, then start_exchange().
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
    kAllToAll,  // in_splits[r] rows to rank r, out_splits[r] from it
    kGather,    // concatenates; reversed: kScatter
    kScatter,   // own rows of the sum; reversed: kGather
  };
  Kind kind = Kind::kAllToAll;
  Groups::Pointer group;
  std::string label;  // for the trace
  std::vector<int64_t> out_splits = {}, in_splits = {};
  // An all-to-all with ranks that have parts of one expert: these all get a token's rows, or give results to sum.
  std::vector<int> parts = {};
  bool goes_to_parts = false;

  TokenExchange reversed() const;
  TokenExchange labelled(std::string text) const;
};

class TokensUnderWay {
 public:
  // Call once.
  at::Tensor wait();

 private:
  friend struct StartExchangeFunction;
  friend struct AwaitExchangeFunction;
  friend TokensUnderWay start_exchange(TokenExchange exchange, const at::Tensor& x);
  struct State;

  std::shared_ptr<State> state_;
  at::Tensor started_;  // undefined: no graph
};

// x (rows, …). Collective; the group's ranks all record a graph or none.
TokensUnderWay start_exchange(TokenExchange exchange, const at::Tensor& x);
at::Tensor exchanged(TokenExchange exchange, const at::Tensor& x);

// x (t, …), the same on all ranks -> rows [rank t', (rank + 1) t'), t' = ceil(t / size), zero-padded. Gradients are
// gathered.
at::Tensor split_tokens(const at::Tensor& x, const Groups::Pointer& group, const std::string& label);
// All ranks' (t', …) -> (num_tokens, …) on all. Ranks compute the same from it: a part's gradient is a slice, not a
// sum.
at::Tensor join_tokens(const at::Tensor& part, int64_t num_tokens, const Groups::Pointer& group,
                       const std::string& label);

}  // namespace megalith
