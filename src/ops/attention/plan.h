// Attention as a list of vendor library calls, decided by the host from its knowledge of the mask.
//
// To a library a query sees all keys, or a causal part or a window aligned at the last query and key. With ascending
// positions each query sees one run of keys, whose ends rest or move along the queries; a call takes the longest run of
// queries that can be so described. So causal attention is one call, whole or in a ring's parts, and so are packed
// documents, as sequences of one call with lengths.
#pragma once

#include <ATen/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ops/attention/attention.h"

namespace megalith::ops {

// A mask by positions, without its bias.
struct MaskForm {
  bool is_causal = true;
  int64_t window = 0;
  MaskRuns runs;  // queries and keys are filled in

  // The host's knowledge of a mask between sq queries and sk keys; nothing if a tensor is undescribed.
  static std::optional<MaskForm> of(const AttentionMask& mask, int64_t sq, int64_t sk);
};

struct AttentionShape {
  int64_t b, sq, sk, n, g, d, dv;  // as in attention.h
  at::ScalarType dtype;
  bool has_bias = false, has_dropout = false, has_softcap = false;
};

struct IndexRange {
  int64_t first = 0, count = 0;
  int64_t end() const { return first + count; }
  bool operator==(const IndexRange&) const = default;
};

struct VendorCall {
  AttentionLibrary library = AttentionLibrary::kFlash;
  // Without cumulative lengths: these queries and keys of each of these rows. With them: of all rows' tokens,
  // concatenated; sequence i has queries [query_begins[i], query_begins[i + 1]) of the range, and keys likewise.
  IndexRange rows, queries, keys;
  std::vector<int32_t> query_begins, key_begins;
  int64_t max_queries = 0, max_keys = 0;

  // Aligned at the last query and key: the query i before the last sees keys from i + left to i - right before the last
  // key; -1: no such bound.
  int64_t left = -1, right = -1;
  // An earlier call had these queries: merge the results by log-sum-exp.
  bool merges = false;

  bool has_lengths() const { return !query_begins.empty(); }
  bool is_causal() const { return left < 0 && right == 0; }
  bool has_window() const { return left >= 0 || right > 0; }
};

struct AttentionPlan {
  std::vector<VendorCall> calls;  // none: no query sees a key
  std::string reason;             // why no library supports it, for use after "because"; empty if `calls` serve
};

// form: nothing if the host does not know the mask.
AttentionPlan plan_attention(const std::optional<MaskForm>& form, const AttentionShape& shape,
                             const AttentionLibraries& libraries);

}  // namespace megalith::ops
