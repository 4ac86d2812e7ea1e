// See vendor_attention.h. Row by row in fp32; results are rounded once.
//
// Taken by their schemas' order as boxed arguments, because LibTorch's versions differ in what follows the window.
#include "pretend/accelerator/vendor_attention.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include "pretend/accelerator/graphs.h"
#include "pretend/accelerator/on_host.h"
#include "pretend/accelerator/waits.h"

namespace megalith::pretend {
namespace {

using at::Tensor;
using c10::IValue;
using torch::jit::Stack;

std::atomic<int64_t> flash_calls{0}, flash_calls_with_lengths{0}, cudnn_calls{0};

// ---- Attention of one sequence and head ----

// (tokens, heads, channels) in fp32, contiguous.
struct Rows {
  Tensor tensor;
  float* at(int64_t token, int64_t head) const {
    return tensor.mutable_data_ptr<float>() + (token * tensor.size(1) + head) * tensor.size(2);
  }
  int64_t width() const { return tensor.size(2); }
};
Rows rows_of(const Tensor& x) { return {as_host(x).to(at::kFloat).flatten(0, -3).contiguous()}; }
Rows zero_rows(const Rows& like) { return {at::zeros_like(like.tensor)}; }

float dot(const float* x, const float* y, int64_t count) {
  float sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += x[i] * y[i];
  return sum;
}
void add(float* to, float factor, const float* x, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] += factor * x[i];
}

// Tokens of queries and keys that belong together.
struct Sequence {
  int64_t query, num_queries, key, num_keys;
};

// The keys that query i of a sequence sees.
struct Window {
  bool is_top_left;     // the first query sees the first key; otherwise the last sees the last
  int64_t left, right;  // -1: no bound
  std::pair<int64_t, int64_t> of(int64_t i, const Sequence& s) const {
    const int64_t own = i + (is_top_left ? 0 : s.num_keys - s.num_queries);
    return {left < 0 ? 0 : std::clamp<int64_t>(own - left, 0, s.num_keys),
            right < 0 ? s.num_keys : std::clamp<int64_t>(own + right + 1, 0, s.num_keys)};
  }
};

struct Problem {
  Rows q, k, v;
  std::vector<Sequence> sequences;
  Window window;
  float scale;
};

// lse (n, tokens)
void attend(const Problem& p, const Rows& out, const Tensor& lse) {
  const int64_t n = p.q.tensor.size(1), group = n / p.k.tensor.size(1);
  auto lse_of = lse.accessor<float, 2>();
  std::vector<float> scores;
  for (const Sequence& s : p.sequences) {
    for (int64_t head = 0; head < n; ++head) {
      for (int64_t i = 0; i < s.num_queries; ++i) {
        const auto [first, end] = p.window.of(i, s);
        const int64_t token = s.query + i;
        // As flash attention says of a query that sees nothing.
        lse_of[head][token] = std::numeric_limits<float>::infinity();
        if (first >= end) continue;
        scores.clear();
        for (int64_t j = first; j < end; ++j) {
          scores.push_back(p.scale * dot(p.q.at(token, head), p.k.at(s.key + j, head / group), p.q.width()));
        }
        const float most = *std::ranges::max_element(scores);
        float sum = 0;
        for (const float score : scores) sum += std::exp(score - most);
        lse_of[head][token] = most + std::log(sum);
        for (int64_t j = first; j < end; ++j) {
          const float share = std::exp(scores[static_cast<size_t>(j - first)] - most) / sum;
          add(out.at(token, head), share, p.v.at(s.key + j, head / group), p.v.width());
        }
      }
    }
  }
}

struct Gradients {
  Rows dq, dk, dv;
};

Gradients differentiate(const Problem& p, const Rows& dout, const Rows& out, const Tensor& lse) {
  Gradients d{zero_rows(p.q), zero_rows(p.k), zero_rows(p.v)};
  const int64_t n = p.q.tensor.size(1), group = n / p.k.tensor.size(1);
  const auto lse_of = lse.accessor<float, 2>();
  for (const Sequence& s : p.sequences) {
    for (int64_t head = 0; head < n; ++head) {
      for (int64_t i = 0; i < s.num_queries; ++i) {
        const auto [first, end] = p.window.of(i, s);
        const int64_t token = s.query + i;
        const float delta = dot(dout.at(token, head), out.at(token, head), p.v.width());
        for (int64_t j = first; j < end; ++j) {
          const int64_t key = s.key + j, kv = head / group;
          const float score = p.scale * dot(p.q.at(token, head), p.k.at(key, kv), p.q.width());
          const float share = std::exp(score - lse_of[head][token]);
          const float dscore = share * (dot(dout.at(token, head), p.v.at(key, kv), p.v.width()) - delta) * p.scale;
          add(d.dv.at(key, kv), share, dout.at(token, head), p.v.width());
          add(d.dq.at(token, head), dscore, p.k.at(key, kv), p.q.width());
          add(d.dk.at(key, kv), dscore, p.q.at(token, head), p.q.width());
        }
      }
    }
  }
  return d;
}

// ---- What both libraries refuse ----

void check_operands(const char* op, const std::vector<Tensor>& tensors, int64_t rank, int64_t widest) {
  for (const Tensor& x : tensors) {
    TORCH_CHECK(x.is_privateuseone() && x.device() == tensors[0].device(), op, ": a tensor lies on ", x.device());
    TORCH_CHECK(x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf, op, ": takes bf16 and fp16, not ",
                x.scalar_type());
    TORCH_CHECK(x.scalar_type() == tensors[0].scalar_type(), op, ": tensors of two dtypes");
    TORCH_CHECK(x.dim() == rank, op, ": a tensor of ", x.dim(), " dims in the place of ", rank);
    TORCH_CHECK(x.stride(-1) == 1, op, ": the last dim must be contiguous");
    TORCH_CHECK(x.size(-1) % 8 == 0 && x.size(-1) <= widest, op, ": heads of ", x.size(-1), " channels");
    TORCH_CHECK(x.numel() > 0, op, ": nothing to attend with");
  }
}

void check_lse(const char* op, const Tensor& lse, at::IntArrayRef shape) {
  TORCH_CHECK(lse.is_privateuseone() && lse.scalar_type() == at::kFloat && lse.is_contiguous(), op,
              ": the log-sum-exp must be fp32, contiguous, and on the device");
  TORCH_CHECK(lse.sizes() == shape, op, ": the log-sum-exp is ", lse.sizes(), ", and must be ", shape);
}

Tensor tensor_or_none(const IValue& value) { return value.isNone() ? Tensor() : value.toTensor(); }
int64_t number_of(const IValue& value) { return value.isSymInt() ? value.toSymInt().expect_int() : value.toInt(); }
int64_t bound_of(const IValue& value) { return value.isNone() ? -1 : number_of(value); }

// A tensor with these numbers, of the dtype of `like`.
Tensor result_of(const Rows& rows, const Tensor& like, at::IntArrayRef shape) {
  const Tensor result = at::empty(shape, like.options());
  as_host(result).copy_(rows.tensor.view(shape));
  return result;
}
Tensor fresh(const Tensor& like, at::IntArrayRef shape, at::ScalarType dtype) {
  return at::empty(shape, like.options().dtype(dtype));
}

std::vector<Sequence> dense_sequences(int64_t b, int64_t sq, int64_t sk) {
  std::vector<Sequence> sequences;
  for (int64_t i = 0; i < b; ++i) sequences.push_back({i * sq, sq, i * sk, sk});
  return sequences;
}

// ---- Flash attention ----

struct FlashArguments {
  Tensor q, k, v, query_begins, key_begins;
  int64_t max_queries, max_keys;
  double dropout_p;
  bool is_causal;
  IValue scale, left, right;

  bool has_lengths() const { return query_begins.defined(); }
};

// (sequences + 1) int32 on the device: from 0 to the number of tokens, none longer than `most`.
std::vector<int64_t> begins_of(const char* name, const Tensor& begins, int64_t tokens, int64_t most) {
  TORCH_CHECK(begins.is_privateuseone() && begins.scalar_type() == at::kInt && begins.is_contiguous() &&
                  begins.dim() == 1 && begins.numel() > 1,
              "flash attention: ", name, " must be contiguous int32 on the device");
  const Tensor host = as_host(begins);
  std::vector<int64_t> values(host.const_data_ptr<int32_t>(), host.const_data_ptr<int32_t>() + host.numel());
  TORCH_CHECK(values.front() == 0 && values.back() == tokens, "flash attention: ", name, " do not span the tokens");
  for (size_t i = 1; i < values.size(); ++i) {
    const int64_t length = values[i] - values[i - 1];
    TORCH_CHECK(length >= 0 && length <= most, "flash attention: a sequence of ", length, " of at most ", most);
  }
  return values;
}

Problem flash_problem(const FlashArguments& a, const std::vector<Tensor>& more) {
  constexpr const char* kOp = "flash attention";
  std::vector<Tensor> operands = {a.q, a.k, a.v};
  operands.insert(operands.end(), more.begin(), more.end());
  check_operands(kOp, operands, a.has_lengths() ? 3 : 4, 256);
  TORCH_CHECK(a.query_begins.defined() == a.key_begins.defined(), kOp, ": lengths of one side only");
  TORCH_CHECK(a.dropout_p == 0, kOp, ": the stand-in draws nothing");
  TORCH_CHECK(a.k.sizes() == a.v.sizes() && a.q.size(-1) == a.k.size(-1), kOp, ": keys ", a.k.sizes(), " and values ",
              a.v.sizes(), " must have the width of the queries ", a.q.sizes());
  TORCH_CHECK(a.q.size(-2) % a.k.size(-2) == 0, kOp, ": ", a.q.size(-2), " heads over ", a.k.size(-2));
  Problem p{rows_of(a.q), rows_of(a.k), rows_of(a.v), {}, {}, static_cast<float>(a.scale.toDouble())};
  if (a.has_lengths()) {
    const auto queries = begins_of("the queries' lengths", a.query_begins, a.q.size(0), a.max_queries);
    const auto keys = begins_of("the keys' lengths", a.key_begins, a.k.size(0), a.max_keys);
    TORCH_CHECK(queries.size() == keys.size(), kOp, ": lengths of ", queries.size(), " and ", keys.size());
    for (size_t i = 1; i < queries.size(); ++i) {
      p.sequences.push_back({queries[i - 1], queries[i] - queries[i - 1], keys[i - 1], keys[i] - keys[i - 1]});
    }
  } else {
    TORCH_CHECK(a.q.size(0) == a.k.size(0), kOp, ": ", a.q.size(0), " rows and ", a.k.size(0));
    p.sequences = dense_sequences(a.q.size(0), a.q.size(1), a.k.size(1));
  }
  p.window = {false, bound_of(a.left), a.is_causal ? 0 : bound_of(a.right)};
  ++(a.has_lengths() ? flash_calls_with_lengths : flash_calls);
  return p;
}

void flash_forward(const c10::OperatorHandle& op, Stack* stack) {
  const AtWork at_work;
  const auto in = torch::jit::pop(*stack, op.schema().arguments().size());
  const FlashArguments a{in[0].toTensor(),      in[1].toTensor(), in[2].toTensor(), tensor_or_none(in[3]),
                         tensor_or_none(in[4]), number_of(in[5]), number_of(in[6]), in[7].toDouble(),
                         in[8].toBool(),        in[10],           in[11],           in[12]};
  before_operator_on(a.q.device());
  const Problem p = flash_problem(a, {});
  const int64_t n = a.q.size(-2), tokens = p.q.tensor.size(0);
  const Rows out{at::zeros({tokens, n, p.v.width()})};
  const Tensor by_head = at::empty({n, tokens});
  attend(p, out, by_head);
  const Tensor lse =
      a.has_lengths() ? fresh(a.q, {n, tokens}, at::kFloat) : fresh(a.q, {a.q.size(0), n, a.q.size(1)}, at::kFloat);
  as_host(lse).copy_(a.has_lengths() ? by_head : by_head.view({n, a.q.size(0), a.q.size(1)}).transpose(0, 1));
  torch::jit::push(*stack, result_of(out, a.q, a.q.sizes()), lse, fresh(a.q, {2}, at::kUInt64),
                   fresh(a.q, {}, at::kUInt64), fresh(a.q, {0}, a.q.scalar_type()));
}

void flash_backward(const c10::OperatorHandle& op, Stack* stack) {
  const AtWork at_work;
  const auto in = torch::jit::pop(*stack, op.schema().arguments().size());
  const Tensor dout = in[0].toTensor(), out = in[4].toTensor(), lse = in[5].toTensor();
  const FlashArguments a{in[1].toTensor(),      in[2].toTensor(), in[3].toTensor(), tensor_or_none(in[6]),
                         tensor_or_none(in[7]), number_of(in[8]), number_of(in[9]), in[10].toDouble(),
                         in[11].toBool(),       in[14],           in[15],           in[16]};
  before_operator_on(a.q.device());
  const Problem p = flash_problem(a, {dout, out});
  const int64_t n = a.q.size(-2), tokens = p.q.tensor.size(0);
  TORCH_CHECK(dout.sizes() == a.q.sizes() && out.sizes() == a.q.sizes(),
              "flash attention: dout or out has another shape");
  Tensor by_head = as_host(lse);
  if (a.has_lengths()) {
    check_lse("flash attention", lse, {n, tokens});
  } else {
    check_lse("flash attention", lse, {a.q.size(0), n, a.q.size(1)});
    by_head = by_head.transpose(0, 1).reshape({n, tokens});
  }
  const Gradients d = differentiate(p, rows_of(dout), rows_of(out), by_head);
  torch::jit::push(*stack, result_of(d.dq, a.q, a.q.sizes()), result_of(d.dk, a.k, a.k.sizes()),
                   result_of(d.dv, a.v, a.v.sizes()));
}

// ---- cuDNN ----

// (b, heads, s, d), any strides with d contiguous; the causal mask begins at the first query and the first key.
Problem cudnn_problem(const Tensor& q, const Tensor& k, const Tensor& v, const std::vector<Tensor>& more,
                      bool is_causal, double dropout_p, const IValue& scale) {
  constexpr const char* kOp = "cuDNN's attention";
  std::vector<Tensor> operands = {q, k, v};
  operands.insert(operands.end(), more.begin(), more.end());
  check_operands(kOp, operands, 4, 128);
  TORCH_CHECK(dropout_p == 0, kOp, ": the stand-in draws nothing");
  TORCH_CHECK(q.size(2) > 1 && k.size(2) > 1, kOp, ": a sequence of one token");
  TORCH_CHECK(q.size(0) == k.size(0) && k.size(0) == v.size(0) && k.size(2) == v.size(2) && k.size(1) == v.size(1), kOp,
              ": shapes ", q.sizes(), ", ", k.sizes(), ", ", v.sizes());
  TORCH_CHECK(q.size(1) % k.size(1) == 0 && q.size(3) == k.size(3), kOp, ": heads ", q.sizes(), " and ", k.sizes());
  ++cudnn_calls;
  const auto tokens_first = [](const Tensor& x) { return rows_of(x.transpose(1, 2)); };
  return {tokens_first(q),
          tokens_first(k),
          tokens_first(v),
          dense_sequences(q.size(0), q.size(2), k.size(2)),
          {true, -1, is_causal ? 0 : -1},
          static_cast<float>(scale.toDouble())};
}

// Rows of tokens as (b, heads, s, d), with heads inside of tokens in memory.
Tensor heads_of(const Rows& rows, const Tensor& like, int64_t width) {
  return result_of(rows, like, {like.size(0), like.size(2), like.size(1), width}).transpose(1, 2);
}

void cudnn_forward(const c10::OperatorHandle& op, Stack* stack) {
  const AtWork at_work;
  const auto in = torch::jit::pop(*stack, op.schema().arguments().size());
  const Tensor q = in[0].toTensor(), k = in[1].toTensor(), v = in[2].toTensor();
  for (const size_t absent : {3, 4, 5}) TORCH_CHECK(in[absent].isNone(), "cuDNN's attention: a bias or lengths");
  TORCH_CHECK(in[8].toBool(), "cuDNN's attention: the log-sum-exp was not asked for");
  before_operator_on(q.device());
  const Problem p = cudnn_problem(q, k, v, {}, in[10].toBool(), in[9].toDouble(), in[12]);
  const int64_t b = q.size(0), n = q.size(1), s = q.size(2);
  const Rows out{at::zeros({b * s, n, v.size(3)})};
  const Tensor by_head = at::empty({n, b * s});
  attend(p, out, by_head);
  const Tensor lse = fresh(q, {b, n, s, 1}, at::kFloat);
  as_host(lse).copy_(by_head.view({n, b, s, 1}).transpose(0, 1));
  torch::jit::push(*stack, heads_of(out, q, v.size(3)), lse, Tensor(), Tensor(), number_of(in[6]), number_of(in[7]),
                   fresh(q, {}, at::kLong), fresh(q, {}, at::kLong), Tensor());
}

void cudnn_backward(const c10::OperatorHandle& op, Stack* stack) {
  const AtWork at_work;
  const auto in = torch::jit::pop(*stack, op.schema().arguments().size());
  const Tensor dout = in[0].toTensor(), q = in[1].toTensor(), k = in[2].toTensor(), v = in[3].toTensor(),
               out = in[4].toTensor(), lse = in[5].toTensor();
  for (const size_t absent : {8, 9, 10})
    TORCH_CHECK(!tensor_or_none(in[absent]).defined(), "cuDNN's attention: lengths");
  before_operator_on(q.device());
  const Problem p = cudnn_problem(q, k, v, {dout, out}, in[14].toBool(), in[13].toDouble(), in[15]);
  const int64_t b = q.size(0), n = q.size(1), s = q.size(2);
  check_lse("cuDNN's attention", lse, {b, n, s, 1});
  const Gradients d = differentiate(p, rows_of(dout.transpose(1, 2)), rows_of(out.transpose(1, 2)),
                                    as_host(lse).transpose(0, 1).reshape({n, b * s}));
  torch::jit::push(*stack, heads_of(d.dq, q, q.size(3)), heads_of(d.dk, k, k.size(3)), heads_of(d.dv, v, v.size(3)));
}

template <BoxedKernel kCall>
void call(const c10::OperatorHandle& op, Stack* stack) {
  const std::vector<IValue> arguments = torch::jit::last(*stack, op.schema().arguments().size()).vec();
  kCall(op, stack);
  keep_call_in_graph(op, kCall, arguments.at(0).toTensor().device(), arguments, *stack);
}

}  // namespace

VendorCalls vendor_calls() { return {flash_calls, flash_calls_with_lengths, cudnn_calls}; }

}  // namespace megalith::pretend

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  using torch::CppFunction;
  m.impl("_flash_attention_forward",
         CppFunction::makeFromBoxedFunction<&megalith::pretend::call<&megalith::pretend::flash_forward>>());
  m.impl("_flash_attention_backward",
         CppFunction::makeFromBoxedFunction<&megalith::pretend::call<&megalith::pretend::flash_backward>>());
  m.impl("_cudnn_attention_forward",
         CppFunction::makeFromBoxedFunction<&megalith::pretend::call<&megalith::pretend::cudnn_forward>>());
  m.impl("_cudnn_attention_backward",
         CppFunction::makeFromBoxedFunction<&megalith::pretend::call<&megalith::pretend::cudnn_backward>>());
}
