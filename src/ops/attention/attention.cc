#include "ops/attention/attention.h"

#include "core/error.h"
#include "ops/arguments.h"

namespace megalith::ops {
namespace {

void check_heads(const char* op, const Argument& argument, const at::Tensor& q) {
  check_rank(op, argument, 4);
  check_dtype(op, argument, q.scalar_type());
  check_devices(op, {{"q", q}, argument});
  const at::Tensor& x = argument.tensor;
  if (x.stride(3) == 1 || x.size(3) <= 1 || x.numel() == 0) return;
  throw UserError(
      fmt::format("{}: the last dim of {} has stride {}, but must be contiguous", op, argument.name, x.stride(3)),
      "call contiguous() first");
}

void check_mask_tensor(const char* op, const Argument& argument, const at::Tensor& q, at::ScalarType dtype,
                       at::IntArrayRef shape) {
  if (!argument.tensor.defined()) return;
  check_dtype(op, argument, dtype);
  check_shape(op, argument, shape);
  check_devices(op, {{"q", q}, argument});
}

void check_bias(const char* op, const at::Tensor& bias, const at::Tensor& q, int64_t sk) {
  check_rank(op, {"bias", bias}, 4);
  check_devices(op, {{"q", q}, {"bias", bias}});
  if (bias.scalar_type() != q.scalar_type()) check_dtype(op, {"bias", bias}, wide_dtype(q.scalar_type()));
  check_shape(op, {"bias", bias},
              {bias.size(0) == 1 ? 1 : q.size(0), bias.size(1) == 1 ? 1 : q.size(2), q.size(1), sk});
}

void check_arguments(const char* op, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const AttentionMask& mask, const AttentionDropout& dropout) {
  check_floating(op, {"q", q});
  check_heads(op, {"q", q}, q);
  check_heads(op, {"k", k}, q);
  check_heads(op, {"v", v}, q);
  const int64_t b = q.size(0), sq = q.size(1), sk = k.size(1), g = k.size(2);
  check_shape(op, {"k", k}, {b, sk, g, q.size(3)});
  check_shape(op, {"v", v}, {b, sk, g, v.size(3)});
  if (g == 0 || q.size(2) % g != 0) {
    throw UserError(fmt::format("{}: {} query heads cannot be shared among {} KV heads", op, q.size(2), g),
                    "the number of KV heads must divide that of query heads");
  }
  if (mask.window < 0) throw UserError(fmt::format("{}: window is {}, but must not be negative", op, mask.window));
  check_mask_tensor(op, {"query_positions", mask.query_positions}, q, at::kLong, {sq});
  check_mask_tensor(op, {"key_positions", mask.key_positions}, q, at::kLong, {sk});
  check_mask_tensor(op, {"query_documents", mask.query_documents}, q, at::kInt, {b, sq});
  check_mask_tensor(op, {"key_documents", mask.key_documents}, q, at::kInt, {b, sk});
  check_mask_tensor(op, {"key_lengths", mask.key_lengths}, q, at::kLong, {b});
  if (mask.query_documents.defined() != mask.key_documents.defined()) {
    throw UserError(fmt::format("{}: only one of query_documents and key_documents is set", op), "set both or none");
  }
  if (mask.bias.defined()) check_bias(op, mask.bias, q, sk);
  if (!(mask.softcap >= 0) || (mask.softcap > 0 && mask.bias.defined())) {
    throw UserError(fmt::format("{}: softcap is {}{}, but must not be negative, and 0 with a bias", op, mask.softcap,
                                mask.bias.defined() ? " beside a bias" : ""));
  }
  if (!(dropout.p >= 0 && dropout.p < 1)) {
    throw UserError(fmt::format("{}: dropout probability is {}, but must be in [0, 1)", op, dropout.p));
  }
  if (dropout.p > 0) {
    check_dtype(op, {"row_ids", dropout.row_ids}, at::kLong);
    check_mask_tensor(op, {"row_ids", dropout.row_ids}, q, at::kLong, {b, sq});
  }
}

}  // namespace

constexpr Operator<AttentionTable> kAttention{.name = "attention",
                                              .reference = &kAttentionReference,
                                              .cpu = &kAttentionCpu,
                                              .meta = &kAttentionMeta,
                                              .gpu_aten = &kAttentionGpuAten};

const char* name_of(AttentionLibrary library) {
  return library == AttentionLibrary::kCudnn ? "cuDNN" : "flash attention";
}

std::tuple<at::Tensor, at::Tensor> attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                     double scale, const AttentionMask& mask,
                                                     const AttentionDropout& dropout, const AttentionKernels& kernels) {
  check_arguments("attention_forward", q, k, v, mask, dropout);
  return kAttention.run("attention_forward", &AttentionTable::forward, kernels.kernels, q, k, v, scale, mask, dropout,
                        kernels.libraries);
}

AttentionGradients attention_backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                                      const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse, double scale,
                                      const AttentionMask& mask, const AttentionDropout& dropout, bool with_dbias,
                                      const AttentionKernels& kernels) {
  constexpr const char* kOp = "attention_backward";
  check_arguments(kOp, q, k, v, mask, dropout);
  check_heads(kOp, {"dout", dout}, q);
  check_heads(kOp, {"out", out}, q);
  check_shape(kOp, {"out", out}, {q.size(0), q.size(1), q.size(2), v.size(3)});
  check_shape(kOp, {"dout", dout}, out.sizes());
  check_dtype(kOp, {"lse", lse}, wide_dtype(q.scalar_type()));
  check_shape(kOp, {"lse", lse}, {q.size(0), q.size(2), q.size(1)});
  check_devices(kOp, {{"q", q}, {"lse", lse}});
  return kAttention.run(kOp, &AttentionTable::backward, kernels.kernels, dout, q, k, v, out, lse, scale, mask, dropout,
                        with_dbias, kernels.libraries);
}

}  // namespace megalith::ops
