// Attention on the CPU and on meta.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "core/error.h"
#include "ops/arguments.h"
#include "ops/attention/attention.h"
#include "ops/attention/kernel.h"
#include "ops/cpu/block_products.h"

namespace megalith::ops {
namespace cpu {
namespace {

HeadsView view_of(const at::Tensor& x) { return {x.data_ptr(), x.stride(0), x.stride(1), x.stride(2)}; }

// Padded to whole blocks; default: first, first + 1, …
std::vector<int32_t> positions_of(const char* name, const at::Tensor& positions, int64_t first, int64_t count,
                                  int64_t padded_count) {
  std::vector<int32_t> result(static_cast<size_t>(padded_count), 0);
  const at::Tensor given = positions.defined() ? positions.contiguous() : at::Tensor();
  constexpr int64_t kLimit = int64_t{1} << 30;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t position = given.defined() ? given.const_data_ptr<int64_t>()[i] : first + i;
    if (position <= -kLimit || position >= kLimit) {
      throw UserError(fmt::format("attention: {}[{}] is {}, but must lie between -2^30 and 2^30", name, i, position));
    }
    result[static_cast<size_t>(i)] = static_cast<int32_t>(position);
  }
  return result;
}

// (b, count) -> (b, padded_count); zeros without documents.
std::vector<int32_t> documents_of(const at::Tensor& documents, int64_t b, int64_t count, int64_t padded_count) {
  std::vector<int32_t> result(static_cast<size_t>(b * padded_count), 0);
  if (!documents.defined()) return result;
  const at::Tensor given = documents.contiguous();
  for (int64_t i = 0; i < b; ++i) {
    std::copy_n(given.const_data_ptr<int32_t>() + i * count, count, result.begin() + i * padded_count);
  }
  return result;
}

std::vector<MaskExtent> extents_of(const std::vector<int32_t>& positions, const std::vector<int32_t>& documents,
                                   int64_t b, int64_t count, int64_t block) {
  std::vector<MaskExtent> extents;
  for (int64_t i = 0; i < b; ++i) {
    for (int64_t first = 0; first < count; first += block) {
      const int64_t size = std::min(block, count - first);
      const auto position = std::minmax_element(positions.begin() + first, positions.begin() + first + size);
      const auto document = documents.begin() + i * padded(count, block) + first;
      const auto range = std::minmax_element(document, document + size);
      extents.push_back({*position.first, *position.second, *range.first, *range.second});
    }
  }
  return extents;
}

// Owns what an AttentionCall points to.
class Call {
 public:
  Call(const AttentionMask& mask, const AttentionDropout& dropout, const at::Tensor& q, const at::Tensor& k,
       const at::Tensor& v, double scale, const at::Tensor& out, const at::Tensor& lse)
      : b_(q.size(0)),
        sq_(q.size(1)),
        sk_(k.size(1)),
        query_positions_(
            positions_of("query_positions", mask.query_positions, sk_ - sq_, sq_, padded(sq_, kQueryBlock))),
        key_positions_(positions_of("key_positions", mask.key_positions, 0, sk_, padded(sk_, kKeyPanel))),
        query_documents_(documents_of(mask.query_documents, b_, sq_, padded(sq_, kQueryBlock))),
        key_documents_(documents_of(mask.key_documents, b_, sk_, padded(sk_, kKeyPanel))),
        query_extents_(extents_of(query_positions_, query_documents_, b_, sq_, kQueryBlock)),
        key_extents_(extents_of(key_positions_, key_documents_, b_, sk_, kKeyPanel)),
        key_limits_(static_cast<size_t>(b_), static_cast<int32_t>(sk_)) {
    if (mask.key_lengths.defined()) {
      const at::Tensor lengths = mask.key_lengths.contiguous();
      for (int64_t i = 0; i < b_; ++i) {
        const int64_t length = std::clamp<int64_t>(lengths.const_data_ptr<int64_t>()[i], 0, sk_);
        key_limits_[static_cast<size_t>(i)] = static_cast<int32_t>(length);
      }
    }
    call = {.dtype = to_dtype(q.scalar_type()),
            .uses_tiles = q.scalar_type() == at::kBFloat16 && has_bf16_blocks(),
            .b = b_,
            .sq = sq_,
            .sk = sk_,
            .n = q.size(2),
            .g = k.size(2),
            .d = q.size(3),
            .dv = v.size(3),
            .scale = scale,
            .softcap = mask.softcap,
            .q = view_of(q),
            .k = view_of(k),
            .v = view_of(v),
            .out = view_of(out),
            .lse = lse.data_ptr(),
            .is_causal = mask.is_causal,
            .window = static_cast<int32_t>(std::min<int64_t>(mask.window, int64_t{1} << 30)),
            .query_positions = query_positions_.data(),
            .key_positions = key_positions_.data(),
            .query_documents = query_documents_.data(),
            .key_documents = key_documents_.data(),
            .key_limits = key_limits_.data(),
            .query_extents = query_extents_.data(),
            .key_extents = key_extents_.data()};
    if (mask.bias.defined()) {
      bias_ = mask.bias.stride(3) == 1 ? mask.bias : mask.bias.contiguous();
      call.bias = bias_.const_data_ptr();
      call.is_bias_wide = bias_.scalar_type() == wide_dtype(q.scalar_type());
      call.bias_batch_stride = bias_.size(0) == 1 ? 0 : bias_.stride(0);
      call.bias_head_stride = bias_.size(1) == 1 ? 0 : bias_.stride(1);
      call.bias_row_stride = bias_.stride(2);
    }
    if (dropout.p > 0) {
      row_ids_ = dropout.row_ids.contiguous();
      call.dropout_p = dropout.p;
      call.dropout_key = dropout.key;
      call.row_ids = row_ids_.const_data_ptr<int64_t>();
      call.head_start = dropout.head_start;
    }
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  void share_packed(int64_t bytes_a_unit) {
    packed_ = at::empty({call.b * call.g * bytes_a_unit}, at::kByte);
    call.packed = packed_.data_ptr();
  }

  AttentionCall call;

 private:
  int64_t b_, sq_, sk_;
  std::vector<int32_t> query_positions_, key_positions_, query_documents_, key_documents_;
  std::vector<MaskExtent> query_extents_, key_extents_;
  std::vector<int32_t> key_limits_;
  at::Tensor bias_, row_ids_, packed_;
};

using Kernel = void(const AttentionCall&, std::atomic<int64_t>*);

// Dynamic: tasks of a causal mask differ in length.
void run_tasks(Kernel* kernel, const AttentionCall& call, int64_t num_tasks) {
  std::atomic<int64_t> next{0};
  const int64_t threads = std::min<int64_t>(num_tasks, at::get_num_threads());
  at::parallel_for(0, threads, 1, [&](int64_t, int64_t) { kernel(call, &next); });
}

std::tuple<at::Tensor, at::Tensor> empty_attention(const at::Tensor& q, const at::Tensor& /*k*/, const at::Tensor& v,
                                                   double /*scale*/, const AttentionMask& /*mask*/,
                                                   const AttentionDropout& /*dropout*/,
                                                   const AttentionLibraries& /*libraries*/) {
  const int64_t b = q.size(0), sq = q.size(1), n = q.size(2);
  return {at::empty({b, sq, n, v.size(3)}, q.options()), at::empty({b, n, sq}, wide_options(q))};
}

AttentionGradients empty_attention_gradients(const at::Tensor& /*dout*/, const at::Tensor& q, const at::Tensor& k,
                                             const at::Tensor& v, const at::Tensor& /*out*/, const at::Tensor& /*lse*/,
                                             double /*scale*/, const AttentionMask& mask,
                                             const AttentionDropout& /*dropout*/, bool with_dbias,
                                             const AttentionLibraries& /*libraries*/) {
  const auto dense = [](const at::Tensor& x) { return at::empty(x.sizes(), x.options()); };
  const bool has_dbias = with_dbias && mask.bias.defined();
  return {.dq = dense(q),
          .dk = dense(k),
          .dv = dense(v),
          .dbias = has_dbias ? at::zeros(mask.bias.sizes(), wide_options(q)) : at::Tensor()};
}

bool is_decoding(const at::Tensor& q, const AttentionMask& mask, const AttentionDropout& dropout) {
  return q.size(1) == 1 && q.scalar_type() != at::kDouble && !mask.bias.defined() && dropout.p == 0 &&
         !mask.query_positions.defined() && !mask.key_positions.defined();
}

void decode(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale, const AttentionMask& mask,
            const at::Tensor& out, const at::Tensor& lse) {
  const auto dense = [](const at::Tensor& x) { return x.defined() ? x.contiguous() : x; };
  const at::Tensor query_documents = dense(mask.query_documents), key_documents = dense(mask.key_documents),
                   key_lengths = dense(mask.key_lengths);
  const int64_t threads = at::get_num_threads(), b = q.size(0), n = q.size(2), g = k.size(2);
  const DecodeCall call{
      .dtype = to_dtype(q.scalar_type()),
      .b = b,
      .sk = k.size(1),
      .n = n,
      .g = g,
      .d = q.size(3),
      .dv = v.size(3),
      .scale = scale,
      .softcap = mask.softcap,
      .q = view_of(q),
      .k = view_of(k),
      .v = view_of(v),
      .out = view_of(out),
      .lse = lse.mutable_data_ptr<float>(),
      .window = mask.window,
      .query_documents = query_documents.defined() ? query_documents.const_data_ptr<int32_t>() : nullptr,
      .key_documents = key_documents.defined() ? key_documents.const_data_ptr<int32_t>() : nullptr,
      .key_lengths = key_lengths.defined() ? key_lengths.const_data_ptr<int64_t>() : nullptr,
      .task_heads = b * g < threads ? 1 : n / g};
  std::atomic<int64_t> next{0};
  at::parallel_for(0, std::min(b * n / call.task_heads, threads), 1,
                   [&](int64_t, int64_t) { MEGALITH_CPU_KERNEL(attention_decode)(call, &next); });
}

std::tuple<at::Tensor, at::Tensor> attention_on_cpu(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                    double scale, const AttentionMask& mask,
                                                    const AttentionDropout& dropout,
                                                    const AttentionLibraries& libraries) {
  check_runs(mask, q.size(1), k.size(1));
  auto [out, lse] = empty_attention(q, k, v, scale, mask, dropout, libraries);
  if (is_decoding(q, mask, dropout)) {
    decode(q, k, v, scale, mask, out, lse);
    return {out, lse};
  }
  Call owner(mask, dropout, q, k, v, scale, out, lse);
  AttentionCall& call = owner.call;
  const int64_t units = call.b * call.g, threads = at::get_num_threads();
  // Whole (sequence, KV head) tasks keep keys and values in a core's cache.
  if (units % threads == 0 || units >= 4 * threads) {
    run_tasks(MEGALITH_CPU_KERNEL(attention_forward), call, units);
  } else {
    owner.share_packed(packed_forward_bytes(call));
    run_tasks(MEGALITH_CPU_KERNEL(attention_pack_forward), call, units * call.num_key_panels());
    run_tasks(MEGALITH_CPU_KERNEL(attention_forward), call, call.b * call.n * call.num_query_blocks());
  }
  return {out, lse};
}

AttentionGradients attention_backward_on_cpu(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                                             const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse,
                                             double scale, const AttentionMask& mask, const AttentionDropout& dropout,
                                             bool with_dbias, const AttentionLibraries& libraries) {
  AttentionGradients d =
      empty_attention_gradients(dout, q, k, v, out, lse, scale, mask, dropout, with_dbias, libraries);
  const at::Tensor& dbias = d.dbias;
  const at::Tensor dense_lse = lse.contiguous();
  Call owner(mask, dropout, q, k, v, scale, out, dense_lse);
  AttentionCall& call = owner.call;
  call.dout = view_of(dout);
  call.dq = view_of(d.dq);
  call.dk = view_of(d.dk);
  call.dv_out = view_of(d.dv);

  const int64_t units = call.b * call.g, threads = at::get_num_threads();
  // Five products in the longest thread, or seven divided evenly.
  const bool takes_units = 5 * div_up(units, threads) * threads <= 7 * units;
  if (!takes_units || dbias.defined()) {
    owner.share_packed(packed_backward_bytes(call));
    run_tasks(MEGALITH_CPU_KERNEL(attention_pack_backward), call, units * call.num_backward_chunks());
  }
  const int64_t query_tasks = call.b * call.n * call.num_query_blocks();
  if (takes_units) {
    run_tasks(MEGALITH_CPU_KERNEL(attention_backward), call, units);
  } else {
    run_tasks(MEGALITH_CPU_KERNEL(attention_backward_keys), call, units * call.num_backward_chunks());
    run_tasks(MEGALITH_CPU_KERNEL(attention_backward_queries), call, query_tasks);
  }
  if (dbias.defined()) {
    call.dbias = dbias.data_ptr();
    call.bias_b = dbias.size(0);
    call.bias_n = dbias.size(1);
    run_tasks(MEGALITH_CPU_KERNEL(attention_backward_bias), call, call.bias_b * call.bias_n * call.num_query_blocks());
  }
  return d;
}

}  // namespace
}  // namespace cpu

constexpr AttentionTable kAttentionCpu{.forward = cpu::attention_on_cpu, .backward = cpu::attention_backward_on_cpu};
constexpr AttentionTable kAttentionMeta{.forward = cpu::empty_attention, .backward = cpu::empty_attention_gradients};

}  // namespace megalith::ops
