// Attention as library calls, planned by the host.
//
// To a library a query sees all keys, or a causal part or window aligned at the last query and key. With ascending
// positions each query sees one run of keys, whose ends rest or move along the queries; a call takes the longest run of
// queries that fits. So causal attention is one call, also in a ring's parts; packed documents are sequences of one
// call with lengths.
#pragma once

#include <ATen/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ops/attention/attention.h"

namespace megalith::ops {

// By positions, without bias.
struct MaskForm {
  bool is_causal = true;
  int64_t window = 0;
  MaskRuns runs;  // queries and keys filled in

  // Nothing if the host does not know a tensor.
  static std::optional<MaskForm> of(const AttentionMask& mask, int64_t sq, int64_t sk);
};

struct AttentionShape {
  int64_t b, sq, sk, n, g, d, dv;  // see attention.h
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
  // Without cumulative lengths: each row's queries and keys. With them: all rows' tokens, concatenated; sequence i has
  // queries [query_begins[i], query_begins[i + 1]) of the range, and keys likewise.
  IndexRange rows, queries, keys;
  std::vector<int32_t> query_begins, key_begins;
  int64_t max_queries = 0, max_keys = 0;

  // The query i before the last sees keys from i + left to i - right before the last; -1: unbounded.
  int64_t left = -1, right = -1;
  // Merge with an earlier call's results by log-sum-exp.
  bool merges = false;

  bool has_lengths() const { return !query_begins.empty(); }
  bool is_causal() const { return left < 0 && right == 0; }
  bool has_window() const { return left >= 0 || right > 0; }
};

struct AttentionPlan {
  std::vector<VendorCall> calls;  // none: no query sees a key
  std::string reason;             // why no library serves, after "because"; or empty
};

// form: nothing if unknown.
AttentionPlan plan_attention(const std::optional<MaskForm>& form, const AttentionShape& shape,
                             const AttentionLibraries& libraries);

}  // namespace megalith::ops
