#include "nn/retrieval_head.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <utility>

#include "comm/distribution.h"
#include "comm/groups.h"
#include "core/error.h"
#include "nn/function.h"
#include "ops/arguments.h"

namespace megalith {

namespace {

constexpr const char* kLabel = "vectors of texts";

// Texts ranked above each row's own; ties rank lower indices first.
at::Tensor places_of(const at::Tensor& scores, const at::Tensor& own) {
  const at::Tensor right = scores.gather(1, own.unsqueeze(1));
  const at::Tensor comes_before = at::arange(scores.size(1), own.options()).unsqueeze(0).lt(own.unsqueeze(1));
  return scores.gt(right).bitwise_or(scores.eq(right).bitwise_and(comes_before)).sum(1);
}

}  // namespace

struct GatherRowsFunction : torch::autograd::Function<GatherRowsFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* node, const at::Tensor& rows, Group* ranks) {
    hold(node, ranks);
    return ranks->gathered(rows.contiguous(), kLabel);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* node,
                                                 const torch::autograd::variable_list& gradients) {
    Group* ranks = held<Group*>(node);
    return {ranks->reduce_scattered(gradients[0].contiguous(), ReduceOp::kSum, kLabel), {}};
  }
};

std::string top_k_name(int64_t k) { return fmt::format("top{}_acc", k); }

RetrievalHead::RetrievalHead(const LayerContext& context, Options options)
    : dp_(context.groups->dp.get()), options_(std::move(options)) {}

RetrievalHead::Loss RetrievalHead::loss(const at::Tensor& queries, const at::Tensor& contexts,
                                        const ObjectiveScales& scales) const {
  MEGALITH_CHECK(queries.sizes() == contexts.sizes() && queries.dim() == 2, "vectors of {} questions and {} texts",
                 queries.size(0), contexts.size(0));
  const auto wide = ops::wide_dtype(queries.scalar_type());
  const at::Tensor own_contexts = contexts.to(wide);
  const at::Tensor all_contexts =
      as_shared(is_recording({own_contexts}) ? GatherRowsFunction::apply(own_contexts, dp_)
                                             : dp_->gathered(own_contexts.contiguous(), kLabel),
                *dp_);
  at::Tensor scores = queries.to(wide).matmul(all_contexts.t());
  if (options_.score_divisor != 1) scores = scores / options_.score_divisor;
  const int64_t b = queries.size(0), first = b * dp_->rank();
  const at::Tensor own = at::arange(first, first + b, queries.options().dtype(at::kLong).requires_grad(false));
  const at::Tensor losses = at::log_softmax(scores, 1).gather(1, own.unsqueeze(1)).squeeze(1).neg();
  const at::Tensor sum = losses.sum();
  const at::Tensor weight = at::full({}, static_cast<double>(b), losses.options().requires_grad(false));
  Loss result{
      .term = {.name = {},
               .sum = sum.detach(),
               .weight = weight,
               .objective = scales.per_weight.defined() ? sum * scales.per_weight.to(sum.device(), wide) : sum},
      .row_losses = losses.detach(),
      .correct = {}};
  if (options_.top_ks.empty()) return result;
  const at::Tensor places = places_of(scores.detach(), own);
  for (const int64_t k : options_.top_ks) {
    result.correct.push_back({.name = top_k_name(k),
                              .sum = places.lt(k).sum().to(wide) * 100,
                              .weight = weight,
                              .objective = {}});
  }
  return result;
}

double RetrievalHead::own_forward_flops(const CostShape& shape) const {
  const auto b = static_cast<double>(shape.b);
  return 2 * b * b * static_cast<double>(dp_->size()) * static_cast<double>(options_.vector_size);
}

}  // namespace megalith
