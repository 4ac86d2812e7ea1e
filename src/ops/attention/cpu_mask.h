// Masks in attention's kernels: panels that a block of queries sees; conditions, bias and dropout by element. Scores
// are rows of queries (forward), or of keys (backward, where 64 queries fill registers).
#pragma once

#include <cmath>
#include <limits>

#include "ops/attention/kernel.h"
#include "ops/cpu/lanes.h"
#include "ops/cpu/philox_lanes.h"

namespace megalith::ops::cpu::CPU_CAPABILITY {

enum class Sees { kNothing, kPartly, kAll };

// The part of panel `p` that block `i` sees.
inline Sees seen(const AttentionCall& call, int64_t b, int64_t i, int64_t p) {
  const MaskExtent& query = call.query_extents[b * call.num_query_blocks() + i];
  const MaskExtent& key = call.key_extents[b * call.num_key_panels() + p];
  const int64_t first = p * kKeyPanel, limit = call.key_limits[b];
  if (first >= limit) return Sees::kNothing;
  bool all = first + kKeyPanel <= limit;
  if (call.is_causal) {
    if (key.min_position > query.max_position) return Sees::kNothing;
    all = all && key.max_position <= query.min_position;
  }
  if (call.window > 0) {
    if (query.min_position - key.max_position >= call.window) return Sees::kNothing;
    all = all && query.max_position - key.min_position < call.window;
    if (!call.is_causal) {
      if (key.min_position - query.max_position >= call.window) return Sees::kNothing;
      all = all && key.max_position - query.min_position < call.window;
    }
  }
  if (key.max_document < query.min_document || query.max_document < key.min_document) return Sees::kNothing;
  all = all && query.min_document == query.max_document && key.min_document == key.max_document &&
        query.min_document == key.min_document;
  return all ? Sees::kAll : Sees::kPartly;
}

// From the first to the last seen of [begin, end); may be empty.
struct PanelRange {
  int64_t begin, end;
};
inline PanelRange seen_panels(const AttentionCall& call, int64_t b, int64_t i, int64_t begin, int64_t end) {
  end = end < call.num_key_panels() ? end : call.num_key_panels();
  while (begin < end && seen(call, b, i, begin) == Sees::kNothing) ++begin;
  while (begin < end && seen(call, b, i, end - 1) == Sees::kNothing) --end;
  return {begin, end};
}

struct PositionRange {
  int32_t low, high;
};
inline PositionRange seen_positions(const AttentionCall& call, int32_t position) {
  PositionRange range{std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()};
  if (call.window > 0) range = {position - call.window + 1, position + call.window - 1};
  if (call.is_causal && position < range.high) range.high = position;
  return range;
}

template <typename T>
inline const T* bias_row(const AttentionCall& call, int64_t b, int64_t h, int64_t query, int64_t key) {
  return static_cast<const T*>(call.bias) + b * call.bias_batch_stride + h * call.bias_head_stride +
         query * call.bias_row_stride + key;
}

// A row per query: adds the bias to scaled scores (otherwise they stay unscaled); masked ones become -inf.
template <typename T>
inline void mask_query_rows(const AttentionCall& call, int64_t b, int64_t h, int64_t q0, int64_t rows, int64_t panel,
                            Wide<T>* scores, int64_t stride) {
  const int64_t key0 = panel * kKeyPanel, keys = call.sk - key0 < kKeyPanel ? call.sk - key0 : kKeyPanel;
  const auto limit = static_cast<int32_t>(call.key_limits[b] - key0);
  const int32_t* positions = call.key_positions + key0;
  const int32_t* documents = call.key_documents + b * padded(call.sk, kKeyPanel) + key0;
  const auto scale = static_cast<Wide<T>>(call.scale);
  for (int64_t r = 0; r < rows; ++r) {
    Wide<T>* s = scores + r * stride;
    if (call.bias != nullptr) {
      if (call.is_bias_wide) {
        const Wide<T>* bias = bias_row<Wide<T>>(call, b, h, q0 + r, key0);
        for (int64_t j = 0; j < keys; ++j) s[j] = s[j] * scale + bias[j];
      } else {
        const T* bias = bias_row<T>(call, b, h, q0 + r, key0);
        for (int64_t j = 0; j < keys; ++j) s[j] = s[j] * scale + static_cast<Wide<T>>(bias[j]);
      }
    }
    const PositionRange range = seen_positions(call, call.query_positions[q0 + r]);
    const int32_t document = call.query_documents[b * padded(call.sq, kQueryBlock) + q0 + r];
#pragma omp simd
    for (int32_t j = 0; j < kKeyPanel; ++j) {
      const bool allowed =
          (positions[j] >= range.low) & (positions[j] <= range.high) & (documents[j] == document) & (j < limit);
      s[j] = allowed ? s[j] : -std::numeric_limits<Wide<T>>::infinity();
    }
  }
}

// softcap * tanh(scale * s / softcap), in place.
template <typename T>
inline void cap_scores(const AttentionCall& call, int64_t count, Wide<T>* scores) {
  const Lanes<T> factor(static_cast<Wide<T>>(call.scale / call.softcap)), cap(static_cast<Wide<T>>(call.softcap));
  for (int64_t i = 0; i < count; i += kLanes<T>) {
    ((Lanes<T>::loadu(scores + i) * factor).tanh() * cap).store(scores + i);
  }
}

// For backward, a lane per query.
struct QueryLanes {
  int32_t low[kQueryBlock], high[kQueryBlock], document[kQueryBlock];
};
inline void fill_query_lanes(const AttentionCall& call, int64_t b, int64_t q0, QueryLanes* lanes) {
  for (int64_t r = 0; r < kQueryBlock; ++r) {
    const PositionRange range = seen_positions(call, call.query_positions[q0 + r]);
    lanes->low[r] = range.low;
    lanes->high[r] = range.high;
    lanes->document[r] = call.query_documents[b * padded(call.sq, kQueryBlock) + q0 + r];
  }
}

// A row per key: scores (64 keys, 64 queries), contiguous.
template <typename T>
inline void mask_key_rows(const AttentionCall& call, int64_t b, int64_t h, int64_t q0, int64_t rows, int64_t panel,
                          const QueryLanes& lanes, Wide<T>* scores) {
  const int64_t key0 = panel * kKeyPanel, keys = call.sk - key0 < kKeyPanel ? call.sk - key0 : kKeyPanel;
  if (call.bias != nullptr) {
    const auto scale = static_cast<Wide<T>>(call.scale);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t j = 0; j < keys; ++j) {
        const Wide<T> bias = call.is_bias_wide ? bias_row<Wide<T>>(call, b, h, q0 + r, key0)[j]
                                               : static_cast<Wide<T>>(bias_row<T>(call, b, h, q0 + r, key0)[j]);
        scores[j * kQueryBlock + r] = scores[j * kQueryBlock + r] * scale + bias;
      }
    }
  }
  const int64_t limit = call.key_limits[b] - key0;
  const int32_t* documents = call.key_documents + b * padded(call.sk, kKeyPanel) + key0;
  for (int64_t j = 0; j < kKeyPanel; ++j) {
    Wide<T>* s = scores + j * kQueryBlock;
    const int32_t position = call.key_positions[key0 + j], document = documents[j];
    const bool is_key = j < limit;
#pragma omp simd
    for (int64_t r = 0; r < kQueryBlock; ++r) {
      const bool allowed =
          (position >= lanes.low[r]) & (position <= lanes.high[r]) & (document == lanes.document[r]) & is_key;
      s[r] = allowed ? s[r] : -std::numeric_limits<Wide<T>>::infinity();
    }
  }
}

// 0 or 1 / (1 - p): (64 keys, 64 queries). Keys whose positions share a block of four share a Philox call.
template <typename W>
inline void fill_dropout_factors(const AttentionCall& call, int64_t b, int64_t h, int64_t q0, int64_t rows,
                                 int64_t panel, W* factors) {
  const auto threshold = static_cast<uint64_t>(std::ceil(call.dropout_p * 0x1p32));  // dropped: word * 2^-32 < p
  const auto kept = static_cast<W>(1 / (1 - call.dropout_p));
  uint64_t low[64], high[64];
  uint32_t words[4][64];
  for (int64_t r = 0; r < kQueryBlock; ++r) {
    high[r] = r < rows ? static_cast<uint64_t>(call.row_ids[b * call.sq + q0 + r]) : 0;
  }
  const uint64_t head = static_cast<uint64_t>(call.head_start + h) << 40;
  int64_t last_block = -1;
  for (int64_t j = 0; j < kKeyPanel; ++j) {
    const int64_t position = call.key_positions[panel * kKeyPanel + j], block = position >> 2;
    if (j == 0 || block != last_block) {
      for (int64_t r = 0; r < kQueryBlock; ++r) low[r] = head + static_cast<uint64_t>(block);
      philox_lanes(call.dropout_key, low, high, words);
      last_block = block;
    }
    const uint32_t* word = words[position & 3];
    for (int64_t r = 0; r < kQueryBlock; ++r) factors[j * kQueryBlock + r] = word[r] < threshold ? W(0) : kept;
  }
}

}  // namespace megalith::ops::cpu::CPU_CAPABILITY
