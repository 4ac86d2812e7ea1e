// Arguments of attention's CPU kernels, made by tasks.cc.
//
// Queries are in blocks and keys in panels of 64. Chunk borders depend only on the shape: the number of threads changes
// no result.
#pragma once

#include <atomic>
#include <cstdint>

#include "ops/cpu/capability.h"
#include "ops/dtype.h"

namespace megalith::ops::cpu {

inline constexpr int64_t kQueryBlock = 64;
inline constexpr int64_t kKeyPanel = 64;
inline constexpr int64_t kForwardChunk = 512;   // keys; a block's scores: 128 KB, in L2
inline constexpr int64_t kBackwardChunk = 256;  // scores and gradients: 128 KB

// (b, s, heads, d) with d contiguous; strides in elements.
struct HeadsView {
  void* data = nullptr;
  int64_t batch_stride = 0, row_stride = 0, head_stride = 0;
};

struct MaskExtent {
  int32_t min_position, max_position, min_document, max_document;
};

struct AttentionCall {
  Dtype dtype;
  bool uses_tiles;  // bf16 through tile_product
  int64_t b, sq, sk, n, g, d, dv;
  double scale;
  double softcap;  // 0: none
  HeadsView q, k, v, out;
  void* lse;  // (b, n, sq), wide

  // Padded to whole blocks.
  bool is_causal;
  int32_t window;  // 0: none
  const int32_t *query_positions, *key_positions;
  const int32_t *query_documents, *key_documents;  // (b, padded length); zeros if none
  const int32_t* key_limits;                       // (b): later keys are hidden
  const MaskExtent *query_extents, *key_extents;   // (b, blocks), (b, panels)

  const void* bias;  // null: none
  bool is_bias_wide;
  int64_t bias_batch_stride, bias_head_stride, bias_row_stride;  // 0 if broadcast

  double dropout_p;
  uint64_t dropout_key;
  const int64_t* row_ids;  // (b, sq)
  int64_t head_start;

  // For backward.
  HeadsView dout, dq, dk, dv_out;
  void* dbias;  // (bias_b, bias_n, sq, sk) wide
  int64_t bias_b, bias_n;

  // Keys and values for all threads; null if tasks make their own.
  void* packed;

  // Biased or capped scores are scaled before the softmax.
  double softmax_scale() const { return bias == nullptr && softcap == 0 ? scale : 1; }
  int64_t num_query_blocks() const { return (sq + kQueryBlock - 1) / kQueryBlock; }
  int64_t num_key_panels() const { return (sk + kKeyPanel - 1) / kKeyPanel; }
  int64_t num_backward_chunks() const { return (sk + kBackwardChunk - 1) / kBackwardChunk; }
};

// Each thread takes tasks from the counter:
//   pack      (b, g, panel) forward, (b, g, chunk) backward: writes `packed`
//   forward   (b, g) without `packed`, (b, n, query block) with it
//   backward  (b, g): dq, dk, dv
//   backward_keys (b, g, chunk): dk, dv; backward_queries (b, n, query block): dq; both with `packed`
//   backward_bias (bias_b, bias_n, query block), with `packed`
MEGALITH_DECLARE_CPU_KERNEL(attention_pack_forward, (const AttentionCall& call, std::atomic<int64_t>* next));
MEGALITH_DECLARE_CPU_KERNEL(attention_forward, (const AttentionCall& call, std::atomic<int64_t>* next));
MEGALITH_DECLARE_CPU_KERNEL(attention_pack_backward, (const AttentionCall& call, std::atomic<int64_t>* next));
MEGALITH_DECLARE_CPU_KERNEL(attention_backward, (const AttentionCall& call, std::atomic<int64_t>* next));
MEGALITH_DECLARE_CPU_KERNEL(attention_backward_keys, (const AttentionCall& call, std::atomic<int64_t>* next));
MEGALITH_DECLARE_CPU_KERNEL(attention_backward_queries, (const AttentionCall& call, std::atomic<int64_t>* next));
MEGALITH_DECLARE_CPU_KERNEL(attention_backward_bias, (const AttentionCall& call, std::atomic<int64_t>* next));

// Forward for one query a sequence, the last position's, and 16- or 32-bit elements; no bias, no dropout.
struct DecodeCall {
  Dtype dtype;
  int64_t b, sk, n, g, d, dv;
  double scale;
  double softcap;  // 0: none
  HeadsView q, k, v, out;
  float* lse;  // (b, n)
  int64_t window;  // 0: none
  const int32_t *query_documents, *key_documents;  // (b), (b, sk); null: none
  const int64_t* key_lengths;                      // (b), or null
  int64_t task_heads;                              // heads of a task; divides n / g, and changes no result
};
// Tasks (b, n / task_heads) from the counter.
MEGALITH_DECLARE_CPU_KERNEL(attention_decode, (const DecodeCall& call, std::atomic<int64_t>* next));

// Bytes of `packed` per (b, g).
constexpr int64_t padded(int64_t size, int64_t multiple) { return (size + multiple - 1) / multiple * multiple; }
inline int64_t element_bytes(const AttentionCall& call) {
  return call.uses_tiles ? 2 : call.dtype == Dtype::kFloat64 ? 8 : 4;
}
inline int64_t packed_forward_bytes(const AttentionCall& call) {
  return call.num_key_panels() * kKeyPanel * (padded(call.d, 32) + padded(call.dv, 32)) * element_bytes(call);
}
// K^T's row distance; a power of two would share a few sets of the cache.
inline constexpr int64_t kTransposedStride = kBackwardChunk + 32;
inline int64_t packed_backward_bytes(const AttentionCall& call) {
  const int64_t rows = call.num_backward_chunks() * kBackwardChunk;
  const int64_t transposed = call.num_backward_chunks() * kTransposedStride * padded(call.d, 32);
  return (rows * (padded(call.d, 32) + padded(call.dv, 32)) + transposed) * element_bytes(call);
}

}  // namespace megalith::ops::cpu
