// Attention as a list of calls of the vendors' libraries, decided by the host from what it knows of the mask.
//
// A library sees tokens by their indices: a query sees all keys, or those up to the one that ends as far before the
// last key as the query before the last query, or a window around it. Keys whose positions ascend are seen by each
// query in one run of indices [low, high); along the queries both ends stand still or move with them. A call takes the
// longest run of queries over which that can be said, so causal attention is one call, whole or in the parts of a ring,
// and so are packed documents, each a sequence of its own in a call with their lengths.
#pragma once

#include <ATen/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ops/attention/attention.h"

namespace megalith::ops {

// A mask as positions say it, without its bias.
struct MaskForm {
  bool is_causal = true;
  int64_t window = 0;
  MaskRuns runs;  // queries and keys are filled in

  // What the host knows of a mask between sq queries and sk keys; nothing where a tensor is there of which nothing was
  // told.
  static std::optional<MaskForm> of(const AttentionMask& mask, int64_t sq, int64_t sk);
};

struct AttentionShape {
  int64_t b, sq, sk, n, g, d, dv;  // as in attention.h
  at::ScalarType dtype;
  bool has_bias = false, has_dropout = false, has_softcap = false;
};

// Neighbours along a dim.
struct IndexRange {
  int64_t first = 0, count = 0;
  int64_t end() const { return first + count; }
  bool operator==(const IndexRange&) const = default;
};

struct VendorCall {
  AttentionLibrary library = AttentionLibrary::kFlash;
  // Without cumulative lengths: these queries and keys of each of these rows. With them: of all rows' tokens, one row
  // behind the other, and sequence i has queries [query_begins[i], query_begins[i + 1]) of the range, and keys
  // likewise.
  IndexRange rows, queries, keys;
  std::vector<int32_t> query_begins, key_begins;
  int64_t max_queries = 0, max_keys = 0;  // of a sequence

  // The last query sees the last key. A query that is i before it sees no key that is less than i - right before that
  // one, nor one that is more than i + left before it; -1: no such bound.
  int64_t left = -1, right = -1;
  // An earlier call had these queries: the results are merged by their log-sum-exps.
  bool merges = false;

  bool has_lengths() const { return !query_begins.empty(); }
  bool is_causal() const { return left < 0 && right == 0; }
  bool has_window() const { return left >= 0 || right > 0; }
};

struct AttentionPlan {
  std::vector<VendorCall> calls;  // none: no query sees a key
  std::string reason;             // why no library takes it, to stand behind "because"; empty when `calls` serve
};

// form: nothing where the host does not know the mask.
AttentionPlan plan_attention(const std::optional<MaskForm>& form, const AttentionShape& shape,
                             const AttentionLibraries& libraries);

}  // namespace megalith::ops
