// How attention's mask and dropout travel through the dispatcher: flattened behind an operator's other arguments.
#pragma once

#include <optional>
#include <tuple>
#include <type_traits>

#include "ops/attention/attention.h"

namespace megalith::ops {

#define MEGALITH_ATTENTION_MASK_SCHEMA                                                            \
  "bool is_causal=True, int window=0, Tensor? query_positions=None, Tensor? key_positions=None, " \
  "Tensor? query_documents=None, Tensor? key_documents=None, Tensor? key_lengths=None, "          \
  "Tensor? bias=None, float dropout_p=0., int dropout_key=0, Tensor? row_ids=None, int head_start=0"

// From the type of a function that takes (mask, dropout, others…) to that of one that takes (others…, the flattened
// mask and dropout).
template <typename Body>
struct FlatBody;

template <typename Result, typename... Others>
struct FlatBody<Result(const AttentionMask&, const AttentionDropout&, Others...)> {
  using OptionalTensor = std::optional<at::Tensor>;
  using Body = Result(const AttentionMask&, const AttentionDropout&, Others...);
  using Signature = Result(Others..., bool, int64_t, const OptionalTensor&, const OptionalTensor&,
                           const OptionalTensor&, const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
                           double, int64_t, const OptionalTensor&, int64_t);

  template <Body* body>
  static Result call(Others... others, bool is_causal, int64_t window, const OptionalTensor& query_positions,
                     const OptionalTensor& key_positions, const OptionalTensor& query_documents,
                     const OptionalTensor& key_documents, const OptionalTensor& key_lengths, const OptionalTensor& bias,
                     double dropout_p, int64_t dropout_key, const OptionalTensor& row_ids, int64_t head_start) {
    const auto tensor = [](const OptionalTensor& t) { return t.value_or(at::Tensor()); };
    return body({.is_causal = is_causal,
                 .window = window,
                 .query_positions = tensor(query_positions),
                 .key_positions = tensor(key_positions),
                 .query_documents = tensor(query_documents),
                 .key_documents = tensor(key_documents),
                 .key_lengths = tensor(key_lengths),
                 .bias = tensor(bias)},
                {.p = dropout_p,
                 .key = static_cast<uint64_t>(dropout_key),
                 .row_ids = tensor(row_ids),
                 .head_start = head_start},
                others...);
  }
};

template <typename Body>
using FlatSignature = typename FlatBody<Body>::Signature;

// The flattened form of a body, for registrations.
template <auto* body>
inline constexpr auto* kFlat = &FlatBody<std::remove_pointer_t<decltype(body)>>::template call<body>;

// Calls an operator of that form.
template <typename Op, typename... Others>
auto call_with_mask(const Op& op, const AttentionMask& mask, const AttentionDropout& dropout, const Others&... others) {
  const auto optional = [](const at::Tensor& t) { return t.defined() ? std::optional(t) : std::nullopt; };
  return op.call(others..., mask.is_causal, mask.window, optional(mask.query_positions), optional(mask.key_positions),
                 optional(mask.query_documents), optional(mask.key_documents), optional(mask.key_lengths),
                 optional(mask.bias), dropout.p, static_cast<int64_t>(dropout.key), optional(dropout.row_ids),
                 dropout.head_start);
}

// The operators' bodies, as every registration writes them.
using AttentionBody = at::Tensor(const AttentionMask&, const AttentionDropout&, const at::Tensor& q,
                                 const at::Tensor& k, const at::Tensor& v, double scale);
using AttentionForwardBody = std::tuple<at::Tensor, at::Tensor>(const AttentionMask&, const AttentionDropout&,
                                                                const at::Tensor& q, const at::Tensor& k,
                                                                const at::Tensor& v, double scale);
// dbias is undefined where there is none
using AttentionBackwardBody = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>(
    const AttentionMask&, const AttentionDropout&, const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
    const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse, double scale, bool with_dbias);

}  // namespace megalith::ops
