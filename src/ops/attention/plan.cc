#include "ops/attention/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "core/error.h"

namespace megalith::ops {
namespace {

constexpr int64_t kNoEnd = std::numeric_limits<int64_t>::max();

int64_t count_of(const std::vector<PositionRun>& runs) {
  int64_t count = 0;
  for (const PositionRun& run : runs) count += run.count;
  return count;
}

bool ascends(const std::vector<PositionRun>& runs) {
  for (size_t i = 1; i < runs.size(); ++i) {
    if (runs[i].first < runs[i - 1].end()) return false;
  }
  return true;
}

// Bounds, as key indices, of what a row's query at a position sees.
class RowMask {
 public:
  RowMask(const MaskForm& form, size_t row) : form_(form) {
    if (!form.runs.documents.empty()) documents_ = &form.runs.documents[row];
    if (!form.runs.lengths.empty()) length_ = form.runs.lengths[row];
  }

  int64_t low(int64_t position) const {
    int64_t first = std::numeric_limits<int64_t>::min();
    if (documents_ != nullptr) first = document(position).first;
    if (form_.window > 0) first = std::max(first, position - form_.window + 1);
    return keys_before(first);
  }
  int64_t high(int64_t position) const {
    int64_t end = length_;
    if (form_.is_causal) end = std::min(end, position + 1);
    if (form_.window > 0 && !form_.is_causal) end = std::min(end, position + form_.window);
    if (documents_ != nullptr) end = std::min(end, document(position).second);
    return keys_before(end);
  }

  // Its beginning; equal for all without documents.
  int64_t document_of(int64_t position) const { return documents_ == nullptr ? 0 : document(position).first; }

  // Query positions where low() and high() may start or stop moving.
  std::vector<int64_t> turns() const {
    std::vector<int64_t> edges;
    for (const PositionRun& run : form_.runs.keys) edges.insert(edges.end(), {run.first, run.end()});
    if (documents_ != nullptr) edges.insert(edges.end(), documents_->begin(), documents_->end());
    if (length_ != kNoEnd) edges.push_back(length_);
    std::vector<int64_t> turns;
    for (const int64_t edge : edges) {
      for (const int64_t shift : {int64_t{0}, form_.window, -form_.window}) {
        turns.insert(turns.end(), {edge + shift - 1, edge + shift, edge + shift + 1});
        if (form_.window == 0) break;
      }
    }
    std::ranges::sort(turns);
    turns.erase(std::unique(turns.begin(), turns.end()), turns.end());
    return turns;
  }

 private:
  std::pair<int64_t, int64_t> document(int64_t position) const {
    const auto next = std::upper_bound(documents_->begin(), documents_->end(), position);
    MEGALITH_CHECK(next != documents_->begin(), "position {} lies before the first document", position);
    return {*(next - 1), next == documents_->end() ? kNoEnd : *next};
  }
  int64_t keys_before(int64_t position) const {
    int64_t count = 0;
    for (const PositionRun& run : form_.runs.keys) {
      count += std::clamp<int64_t>(position, run.first, run.end()) - run.first;
    }
    return count;
  }

  const MaskForm& form_;
  const std::vector<int64_t>* documents_ = nullptr;
  int64_t length_ = kNoEnd;
};

// From each query to the next, for one end of the seen keys.
struct Steps {
  bool has_rest = false, has_move = false;
};

// Neighbouring queries for one call.
struct Segment {
  int64_t document, first_query, num_queries;
  int64_t first_low, last_low, first_high, last_high;
  Steps low, high;
};

// With a window an end may rest before or after it moves: a library's window stops at the keys' edges. Without, a call
// is whole or causal, which is faster.
bool add_step(Steps& steps, int64_t step, bool may_turn, bool rests_first) {
  if (step != 0 && step != 1) return false;
  const bool is_move = step == 1, other = is_move ? steps.has_rest : steps.has_move;
  if (other && !(may_turn && is_move == rests_first)) return false;
  (is_move ? steps.has_move : steps.has_rest) = true;
  return true;
}

// If one call can take both.
bool append(Segment& to, const Segment& more, bool may_turn) {
  if (to.document != more.document || to.first_query + to.num_queries != more.first_query) return false;
  Segment both = to;
  const auto add = [&](Steps& steps, int64_t last, int64_t first, const Steps& inner, bool rests_first) {
    return add_step(steps, first - last, may_turn, rests_first) &&
           (!inner.has_rest || add_step(steps, 0, may_turn, rests_first)) &&
           (!inner.has_move || add_step(steps, 1, may_turn, rests_first));
  };
  if (!add(both.low, to.last_low, more.first_low, more.low, true)) return false;
  if (!add(both.high, to.last_high, more.first_high, more.high, false)) return false;
  both.num_queries += more.num_queries;
  both.last_low = more.last_low;
  both.last_high = more.last_high;
  to = both;
  return true;
}

// Queries [first, end) of a run, over which each end rests or moves.
Segment segment_of(const RowMask& mask, int64_t first_query, int64_t first, int64_t end) {
  Segment segment{
      mask.document_of(first), first_query, end - first, mask.low(first), mask.low(end - 1), mask.high(first),
      mask.high(end - 1),      {},          {}};
  const auto steps_of = [&](int64_t from, int64_t to) {
    const int64_t num_steps = end - first - 1;
    MEGALITH_CHECK(to == from || to - from == num_steps, "an end of the seen keys goes from {} to {} in {} steps", from,
                   to, num_steps);
    return Steps{.has_rest = num_steps > 0 && to == from, .has_move = num_steps > 0 && to != from};
  };
  segment.low = steps_of(segment.first_low, segment.last_low);
  segment.high = steps_of(segment.first_high, segment.last_high);
  return segment;
}

std::vector<Segment> segments_of_row(const MaskForm& form, size_t row) {
  const RowMask mask(form, row);
  const std::vector<int64_t> turns = mask.turns();
  std::vector<Segment> segments;
  int64_t begin_of_run = 0;
  for (const PositionRun& run : form.runs.queries) {
    int64_t first = run.first;
    auto turn = std::upper_bound(turns.begin(), turns.end(), first);
    while (first < run.end()) {
      const int64_t end = turn == turns.end() ? run.end() : std::min(run.end(), *turn++);
      const Segment next = segment_of(mask, begin_of_run + first - run.first, first, end);
      first = end;
      if (next.first_low >= next.first_high) continue;
      if (segments.empty() || !append(segments.back(), next, form.window > 0)) segments.push_back(next);
    }
    begin_of_run += run.count;
  }
  return segments;
}

VendorCall call_of(const Segment& segment, const IndexRange& rows) {
  VendorCall call{.rows = rows,
                  .queries = {segment.first_query, segment.num_queries},
                  .keys = {segment.first_low, segment.last_high - segment.first_low}};
  call.max_queries = call.queries.count;
  call.max_keys = call.keys.count;
  if (segment.low.has_move) call.left = call.keys.count - 1 - (segment.last_low - segment.first_low);
  if (segment.high.has_move) {
    call.right = segment.first_high - 1 - segment.first_low - (call.keys.count - call.queries.count);
  }
  return call;
}

// Sets even ineffective bounds (a wide window, one query): sequences that differ only in them share a call.
VendorCall with_bounds(VendorCall call, const MaskForm& form) {
  if (form.is_causal && call.queries.count == 1) call.right = 0;
  if (form.window == 0) return call;
  if (call.left < 0 && call.keys.count <= form.window) call.left = form.window - 1;
  if (!form.is_causal && call.right < 0 && call.queries.count <= form.window) call.right = form.window - 1;
  return call;
}

// Single rows: those contiguous in queries and keys merge into one call with lengths.
void add_to_lengths(std::vector<VendorCall>& calls, VendorCall call, int64_t sq, int64_t sk) {
  call.queries.first += call.rows.first * sq;
  call.keys.first += call.rows.first * sk;
  call.rows = {0, 1};
  call.query_begins = {0, static_cast<int32_t>(call.queries.count)};
  call.key_begins = {0, static_cast<int32_t>(call.keys.count)};
  if (!calls.empty()) {
    VendorCall& last = calls.back();
    if (last.queries.end() == call.queries.first && last.keys.end() == call.keys.first && last.left == call.left &&
        last.right == call.right) {
      last.queries.count += call.queries.count;
      last.keys.count += call.keys.count;
      last.query_begins.push_back(static_cast<int32_t>(last.queries.count));
      last.key_begins.push_back(static_cast<int32_t>(last.keys.count));
      last.max_queries = std::max(last.max_queries, call.max_queries);
      last.max_keys = std::max(last.max_keys, call.max_keys);
      return;
    }
  }
  calls.push_back(std::move(call));
}

// cuDNN's causal mask begins at the first query and key: keys before a square are a separate call.
std::vector<VendorCall> squared(const VendorCall& call) {
  const int64_t before = call.keys.count - call.queries.count;
  if (!call.is_causal() || before == 0) return {call};
  VendorCall square = call, rest = call;
  rest.right = -1;
  rest.keys.count = rest.max_keys = before;
  square.keys = {call.keys.first + before, call.queries.count};
  square.max_keys = call.queries.count;
  square.merges = true;
  return {rest, square};
}

// For 16-byte reads.
bool takes_width(int64_t width, int64_t most) { return width > 0 && width % 8 == 0 && width <= most; }

std::string reason_of_shape(const AttentionShape& shape) {
  if (shape.dtype != at::kBFloat16 && shape.dtype != at::kHalf) {
    return fmt::format("the libraries take bf16 and fp16, and these are {}", c10::toString(shape.dtype));
  }
  if (shape.has_dropout) return "dropped attention weights are the same on every device, and the libraries draw others";
  if (shape.has_bias) return "a bias is added to the scores";
  if (shape.has_softcap) return "scores are capped by a tanh";
  constexpr int64_t kWidest = 256;
  if (!takes_width(shape.d, kWidest) || !takes_width(shape.dv, kWidest)) {
    return fmt::format("the libraries take heads of up to {} channels, in eights, and these have {} and {}", kWidest,
                       shape.d, shape.dv);
  }
  return "";
}

// Replaces `call`; empty if unsupported.
std::vector<VendorCall> calls_by(AttentionLibrary library, VendorCall call, const AttentionShape& shape,
                                 bool has_fixed_shape) {
  call.library = library;
  if (library == AttentionLibrary::kFlash) return {call};
  // Widths whose backward works on every chip. A new shape's graph takes up to a second: no shapes that depend on data.
  // Single queries or keys are unsupported.
  constexpr int64_t kWidest = 128;
  if (!has_fixed_shape || call.has_lengths() || call.has_window()) return {};
  if (!takes_width(shape.d, kWidest) || !takes_width(shape.dv, kWidest)) return {};
  const std::vector<VendorCall> calls = squared(call);
  const auto is_small = [](const VendorCall& one) { return one.queries.count == 1 || one.keys.count == 1; };
  return std::ranges::any_of(calls, is_small) ? std::vector<VendorCall>{} : calls;
}

}  // namespace

std::optional<MaskForm> MaskForm::of(const AttentionMask& mask, int64_t sq, int64_t sk) {
  MaskForm form{mask.is_causal, mask.window, {}};
  if (mask.runs) form.runs = *mask.runs;
  MaskRuns& runs = form.runs;
  if (!mask.query_positions.defined()) {
    runs.queries = {{sk - sq, sq}};
  } else if (runs.queries.empty()) {
    return std::nullopt;
  }
  if (!mask.key_positions.defined()) {
    runs.keys = {{0, sk}};
  } else if (runs.keys.empty()) {
    return std::nullopt;
  }
  if (!mask.query_documents.defined()) {
    runs.documents.clear();
  } else if (runs.documents.empty()) {
    return std::nullopt;
  }
  if (!mask.key_lengths.defined()) {
    runs.lengths.clear();
  } else if (runs.lengths.empty()) {
    return std::nullopt;
  }
  return form;
}

AttentionPlan plan_attention(const std::optional<MaskForm>& form, const AttentionShape& shape,
                             const AttentionLibraries& libraries) {
  AttentionPlan plan;
  if (libraries.empty()) return {.calls = {}, .reason = "no library was chosen"};
  plan.reason = reason_of_shape(shape);
  if (!plan.reason.empty()) return plan;
  if (!form) return {.calls = {}, .reason = "the host was not told what the mask's tensors hold"};
  const MaskRuns& runs = form->runs;
  MEGALITH_CHECK(count_of(runs.queries) == shape.sq && count_of(runs.keys) == shape.sk,
                 "the mask's runs have {} queries and {} keys, and the tensors {} and {}", count_of(runs.queries),
                 count_of(runs.keys), shape.sq, shape.sk);
  if (!ascends(runs.keys)) return {.calls = {}, .reason = "the keys are not in the order of their positions"};

  for (const size_t rows : {runs.documents.size(), runs.lengths.size()}) {
    MEGALITH_CHECK(rows == 0 || static_cast<int64_t>(rows) == shape.b, "the mask's runs are of {} rows, not {}", rows,
                   shape.b);
  }

  const bool is_by_row = !runs.documents.empty() || !runs.lengths.empty();
  std::vector<VendorCall> calls;
  for (int64_t row = 0; row < (is_by_row ? shape.b : 1); ++row) {
    for (const Segment& segment : segments_of_row(*form, static_cast<size_t>(row))) {
      const VendorCall call = call_of(segment, is_by_row ? IndexRange{row, 1} : IndexRange{0, shape.b});
      if (is_by_row) {
        add_to_lengths(calls, with_bounds(call, *form), shape.sq, shape.sk);
      } else {
        calls.push_back(call);
      }
    }
  }
  for (const VendorCall& call : calls) {
    std::vector<VendorCall> found;
    for (const AttentionLibrary library : libraries) {
      if (found.empty()) found = calls_by(library, call, shape, !is_by_row);
    }
    if (found.empty())
      return {.calls = {}, .reason = fmt::format("{} does not take such a mask", name_of(libraries[0]))};
    plan.calls.insert(plan.calls.end(), found.begin(), found.end());
  }
  return plan;
}

}  // namespace megalith::ops
