#include "nn/context_attention.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <tuple>

#include "comm/sequence_shard.h"
#include "comm/single_group.h"
#include "core/error.h"
#include "nn/attention_sinks.h"
#include "ops/merge_attention/merge_attention.h"

namespace megalith {

namespace {

using KeysAndValues = std::pair<at::Tensor, at::Tensor>;

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

at::ScalarType merge_dtype(const at::Tensor& x) { return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

Groups::Pointer no_group(const Groups& groups) { return std::make_shared<SingleGroup>("cp", groups.rank); }

// Zeros (b, s, n, d) and a log-sum-exp of -inf.
ContextAttention::Result nothing_seen(const ContextAttention::Heads& heads) {
  const at::TensorOptions options = heads.q.options().dtype(merge_dtype(heads.q));
  const int64_t b = heads.q.size(0), s = heads.q.size(1), n = heads.q.size(2);
  return {at::zeros({b, s, n, heads.v.size(3)}, options), at::full({b, n, s}, kMinusInfinity, options)};
}

struct TokenRange {
  int64_t first = 0, count = 0;
  at::Tensor of(const at::Tensor& x, int64_t dim) const { return x.defined() ? x.narrow(dim, first, count) : x; }
};

struct ExchangedTensors {
  std::vector<int64_t> heads, channels;  // heads sent to one rank, and that times d
  int64_t num_channels = 0;

  ExchangedTensors(const std::vector<at::Tensor>& tensors, int64_t size) {
    for (const at::Tensor& x : tensors) {
      heads.push_back(div_exact(x.size(2), size));
      channels.push_back(heads.back() * x.size(3));
      num_channels += channels.back();
    }
  }

  // Views (…, heads, d) of each in `packed` (…, num_channels).
  std::vector<at::Tensor> in(const at::Tensor& packed) const {
    std::vector<at::Tensor> views;
    int64_t begin = 0;
    for (size_t i = 0; i < channels.size(); ++i) {
      views.push_back(packed.narrow(-1, begin, channels[i]).unflatten(-1, {heads[i], channels[i] / heads[i]}));
      begin += channels[i];
    }
    return views;
  }
};

// By position only.
bool can_see(const ops::AttentionMask& mask, int64_t first_query, int64_t first_key, int64_t chunk) {
  const int64_t last_query = first_query + chunk - 1, last_key = first_key + chunk - 1;
  if (mask.is_causal && first_key > last_query) return false;
  if (mask.window > 0 && first_query - last_key >= mask.window) return false;
  if (mask.window > 0 && !mask.is_causal && first_key - last_query >= mask.window) return false;
  return !mask.key_lengths.defined() || !mask.key_lengths.is_cpu() ||
         first_key < mask.key_lengths.max().item<int64_t>();
}

std::vector<ops::PositionRun> zigzag_runs(int64_t length, int size, int rank, const TokenRange& tokens) {
  const int64_t chunk = div_exact(length, 2 * size), tokens_end = tokens.first + tokens.count;
  std::vector<ops::PositionRun> runs;
  int64_t begin = 0;
  for (const int64_t number : zigzag_chunks(size, rank)) {
    const int64_t first = std::max(begin, tokens.first), end = std::min(begin + chunk, tokens_end);
    if (first < end) runs.push_back({number * chunk + first - begin, end - first});
    begin += chunk;
  }
  return runs;
}

// zigzag_indices() without a synchronising copy from the host.
at::Tensor positions_on(at::Device device, int64_t length, int size, int rank) {
  const int64_t chunk = div_exact(length, 2 * int64_t{size});
  const auto options = at::TensorOptions(device).dtype(at::kLong);
  const auto [first, second] = zigzag_chunks(size, rank);
  return at::cat({at::arange(first * chunk, (first + 1) * chunk, options),
                  at::arange(second * chunk, (second + 1) * chunk, options)});
}

std::shared_ptr<const ops::MaskRuns> runs_of_part(const ops::AttentionMask& mask, std::vector<ops::PositionRun> queries,
                                                  std::vector<ops::PositionRun> keys) {
  auto part = mask.runs ? std::make_shared<ops::MaskRuns>(*mask.runs) : std::make_shared<ops::MaskRuns>();
  part->queries = std::move(queries);
  part->keys = std::move(keys);
  return part;
}

// On an accelerator, to avoid synchronising.
bool share_documents(const at::Tensor& queries, const at::Tensor& keys) {
  if (!queries.defined() || !queries.is_cpu()) return true;
  const auto [first_query, last_query] = at::aminmax(queries, 1);
  const auto [first_key, last_key] = at::aminmax(keys, 1);
  return first_query.le(last_key).logical_and_(first_key.le(last_query)).any().item<bool>();
}

}  // namespace

// Runs of a source's keys and this rank's queries that cover all visible pairs.
struct ContextAttention::Part {
  TokenRange queries, keys;
  Masks masks;
  bool is_seen() const { return keys.count > 0; }
};

ContextAttention::ContextAttention(const Groups& groups, ContextParallelKind kind, std::string name, double scale,
                                   int64_t num_heads, int64_t num_kv_heads, ops::AttentionKernels kernels)
    : kind_(kind),
      name_(std::move(name)),
      ulysses_(kind == ContextParallelKind::kAllToAll      ? groups.cp
               : kind == ContextParallelKind::kAllToAllP2p ? groups.cp_ulysses
                                                           : no_group(groups)),
      ring_(kind == ContextParallelKind::kAllToAll      ? no_group(groups)
            : kind == ContextParallelKind::kAllToAllP2p ? groups.cp_ring
                                                        : groups.cp),
      scale_(scale),
      num_heads_(num_heads),
      num_kv_heads_(num_kv_heads),
      kernels_(std::move(kernels)) {}

ContextAttention::Heads ContextAttention::exchange_heads(const at::Tensor& q, const at::Tensor& k,
                                                         const at::Tensor& v) const {
  const int size = ulysses_->size();
  if (size == 1) return {q, k.contiguous(), v.contiguous()};
  for (const int64_t heads : {num_heads_, num_kv_heads_}) {
    if (heads % size == 0) continue;
    throw UserError(
        fmt::format("{}: cp_comm_type {} spreads {} heads over {} ranks", name_, name_of(kind_), heads, size),
        "use p2p or all_gather there, or fewer ranks");
  }
  const std::vector<at::Tensor> heads = to_heads({q, k, v}, "q k v");
  return {heads[0], heads[1], heads[2]};
}

ContextAttention::Result ContextAttention::forward(const Heads& heads, const Masks& masks) const {
  Result result = attend(heads, masks_of_heads(heads, masks));
  if (masks.sinks.defined()) {
    std::tie(result.out, result.lse) = with_sinks(result.out, result.lse, own_sinks(heads, masks.sinks));
  }
  // A view, with one head per rank; later code reads rows.
  if (ulysses_->size() > 1) result.out = to_tokens({result.out}, "out")[0].contiguous();
  return result;
}

at::Tensor ContextAttention::own_sinks(const Heads& heads, const at::Tensor& sinks) const {
  const int64_t count = heads.q.size(2);
  return sinks.narrow(0, ulysses_->rank() * count, count);
}

ops::AttentionGradients ContextAttention::backward(const at::Tensor& dout, const Heads& heads, const Result& result,
                                                   const Masks& masks, at::Tensor* dsinks) const {
  const Masks of_heads = masks_of_heads(heads, masks);
  const auto differentiate_sinks = [&](const at::Tensor& own_dout, const at::Tensor& own_out) {
    if (!masks.sinks.defined() || dsinks == nullptr) return;
    *dsinks = at::zeros_like(masks.sinks);
    own_sinks(heads, *dsinks).copy_(sink_gradient(own_dout, own_out, result.lse, own_sinks(heads, masks.sinks)));
  };
  if (ulysses_->size() == 1) {
    differentiate_sinks(dout, result.out);
    return differentiate(dout, heads, result, of_heads);
  }
  const std::vector<at::Tensor> outer = to_heads({dout, result.out}, "dout out");
  differentiate_sinks(outer[0], outer[1]);
  ops::AttentionGradients d = differentiate(outer[0], heads, {outer[1], result.lse}, of_heads);
  const std::vector<at::Tensor> gradients = to_tokens({d.dq, d.dk, d.dv}, "dq dk dv");
  return {gradients[0], gradients[1], gradients[2], {}};
}

// (b, s, heads, d) -> (b, U s, heads / U, d), in one exchange. Heads and d may differ.
std::vector<at::Tensor> ContextAttention::to_heads(const std::vector<at::Tensor>& of_tokens, const char* what) const {
  const int64_t size = ulysses_->size(), b = of_tokens[0].size(0), s = of_tokens[0].size(1);
  const ExchangedTensors layout(of_tokens, size);
  at::Tensor packed = at::empty({size, b, s, layout.num_channels}, of_tokens[0].options());
  {  // views must not outlive what is sent
    const std::vector<at::Tensor> outgoing = layout.in(packed);
    for (size_t i = 0; i < outgoing.size(); ++i) {
      outgoing[i].copy_(of_tokens[i].unflatten(2, {size, layout.heads[i]}).permute({2, 0, 1, 3, 4}));
    }
  }
  packed = ulysses_->exchanged(packed, {}, {}, fmt::format("{} {}", name_, what));
  std::vector<at::Tensor> of_heads;
  for (const at::Tensor& x : layout.in(packed)) of_heads.push_back(zigzag_join(x));
  return of_heads;
}

// With one head per rank: views of the received buffer.
std::vector<at::Tensor> ContextAttention::to_tokens(const std::vector<at::Tensor>& of_heads, const char* what) const {
  const int64_t size = ulysses_->size(), b = of_heads[0].size(0), s = div_exact(of_heads[0].size(1), size);
  const ExchangedTensors layout(of_heads, 1);
  at::Tensor packed = at::empty({size, b, s, layout.num_channels}, of_heads[0].options());
  {
    const std::vector<at::Tensor> outgoing = layout.in(packed);
    for (size_t i = 0; i < outgoing.size(); ++i) zigzag_split(of_heads[i], outgoing[i]);
  }
  packed = ulysses_->exchanged(packed, {}, {}, fmt::format("{} {}", name_, what));
  std::vector<at::Tensor> of_tokens;
  for (const at::Tensor& heads_outside : layout.in(packed)) {  // (U, b, s, heads / U, d)
    const int64_t num_heads = size * heads_outside.size(3);
    of_tokens.push_back(heads_outside.permute({1, 2, 0, 3, 4}).reshape({b, s, num_heads, heads_outside.size(4)}));
  }
  return of_tokens;
}

ContextAttention::Masks ContextAttention::masks_of_heads(const Heads& heads, const Masks& masks) const {
  MEGALITH_CHECK(!masks.mask.bias.defined(), "{}: no bias is cut over context-parallel ranks", name_);
  Masks own = masks;
  const int64_t tokens = heads.q.size(1), length = tokens * ring_->size();
  own.mask.runs = runs_of_part(masks.mask, zigzag_runs(length, ring_->size(), ring_->rank(), {0, tokens}), {});
  if (ulysses_->size() == 1) return own;
  const at::Tensor& given = masks.mask.query_positions;
  own.mask.query_positions = positions_on(given.device(), length, ring_->size(), ring_->rank());
  if (masks.mask.key_documents.defined()) {
    own.mask.query_documents = zigzag_shard(masks.mask.key_documents, 1, ring_->size(), ring_->rank());
  }
  if (masks.dropout.p > 0) {
    const at::Tensor first = masks.dropout.row_ids.narrow(1, 0, 1) - given.narrow(0, 0, 1);
    own.dropout.row_ids = first + own.mask.query_positions.unsqueeze(0);
    own.dropout.head_start += heads.q.size(2) * ulysses_->rank();
  }
  return own;
}

ContextAttention::Part ContextAttention::part_of(int source, const Heads& heads, const Masks& masks) const {
  const int size = ring_->size();
  const int64_t tokens = heads.q.size(1), chunk = div_exact(tokens, 2);
  const auto query_chunks = zigzag_chunks(size, ring_->rank()), key_chunks = zigzag_chunks(size, source);
  at::Tensor key_documents = masks.mask.key_documents;
  if (key_documents.defined()) key_documents = zigzag_shard(key_documents, 1, size, source);

  std::array<int64_t, 2> first_query{2, 0}, first_key{2, 0};  // runs of halves: first, one past the last
  for (int64_t i = 0; i < 2; ++i) {
    for (int64_t j = 0; j < 2; ++j) {
      const TokenRange query{i * chunk, chunk}, key{j * chunk, chunk};
      const int64_t query_place = query_chunks[static_cast<size_t>(i)] * chunk;
      const int64_t key_place = key_chunks[static_cast<size_t>(j)] * chunk;
      if (!can_see(masks.mask, query_place, key_place, chunk)) continue;
      if (!share_documents(query.of(masks.mask.query_documents, 1), key.of(key_documents, 1))) continue;
      first_query = {std::min(first_query[0], i), std::max(first_query[1], i + 1)};
      first_key = {std::min(first_key[0], j), std::max(first_key[1], j + 1)};
    }
  }
  Part part;
  if (first_key[1] == 0) return part;
  part.queries = {first_query[0] * chunk, (first_query[1] - first_query[0]) * chunk};
  part.keys = {first_key[0] * chunk, (first_key[1] - first_key[0]) * chunk};

  part.masks = masks;
  ops::AttentionMask& mask = part.masks.mask;
  const at::Tensor positions = positions_on(mask.query_positions.device(), tokens * size, size, source);
  mask.query_positions = part.queries.of(mask.query_positions, 0);
  mask.key_positions = part.keys.of(positions, 0);
  mask.query_documents = part.queries.of(mask.query_documents, 1);
  mask.key_documents = part.keys.of(key_documents, 1);
  if (mask.key_lengths.defined()) {
    // Positions ascend: those within the length come first.
    mask.key_lengths = mask.key_positions.unsqueeze(0).lt(mask.key_lengths.unsqueeze(1)).sum(1);
  }
  mask.runs = runs_of_part(masks.mask, zigzag_runs(tokens * size, size, ring_->rank(), part.queries),
                           zigzag_runs(tokens * size, size, source, part.keys));
  part.masks.dropout.row_ids = part.queries.of(part.masks.dropout.row_ids, 1);
  return part;
}

ContextAttention::Result ContextAttention::attend(const Heads& heads, const Masks& masks) const {
  if (kind_ == ContextParallelKind::kAllGather) return attend_gathered(heads, masks);
  if (ring_->size() > 1) return attend_ring(heads, masks);
  auto [out, lse] = ops::attention_forward(heads.q, heads.k, heads.v, scale_, masks.mask, masks.dropout, kernels_);
  return {out, lse};
}

KeysAndValues ContextAttention::gather_keys(const Heads& heads) const {
  const int64_t size = ring_->size();
  const auto start = [&](const at::Tensor& x, const char* what, at::Tensor& parts) {
    std::vector<int64_t> shape = x.sizes().vec();
    shape.insert(shape.begin(), size);
    parts = at::empty(shape, x.options());
    return ring_->all_gather(parts.flatten(0, 1), x, fmt::format("{} {}", name_, what));
  };
  at::Tensor k, v;
  Work k_gathering = start(heads.k, "k", k), v_gathering = start(heads.v, "v", v);
  k_gathering.wait();
  k = zigzag_join(k);
  v_gathering.wait();
  return {k, zigzag_join(v)};
}

ContextAttention::Result ContextAttention::attend_gathered(const Heads& heads, const Masks& masks) const {
  const auto [k, v] = gather_keys(heads);
  auto [out, lse] = ops::attention_forward(heads.q, k, v, scale_, masks.mask, masks.dropout, kernels_);
  return {out, lse};
}

std::vector<Transfer> ContextAttention::round_transfers(const KeysAndValues& out, const KeysAndValues& in) const {
  const int size = ring_->size(), next = (ring_->rank() + 1) % size, previous = (ring_->rank() + size - 1) % size;
  return {Transfer::send(out.first, next, 0), Transfer::send(out.second, next, 1),
          Transfer::receive(in.first, previous, 0), Transfer::receive(in.second, previous, 1)};
}

ContextAttention::Result ContextAttention::attend_ring(const Heads& heads, const Masks& masks) const {
  const int size = ring_->size();
  const at::ScalarType wide = merge_dtype(heads.q);
  std::optional<Result> sum;
  KeysAndValues now{heads.k, heads.v};
  for (int step = 0; step < size; ++step) {
    KeysAndValues next;
    Work transfer;
    if (step + 1 < size) {
      next = {at::empty_like(now.first), at::empty_like(now.second)};
      transfer = ring_->send_receive(round_transfers(now, next), name_ + " k v");
    }
    const Part part = part_of((ring_->rank() + size - step) % size, heads, masks);
    if (part.is_seen()) {
      auto [part_out, part_lse] =
          ops::attention_forward(part.queries.of(heads.q, 1), part.keys.of(now.first, 1), part.keys.of(now.second, 1),
                                 scale_, part.masks.mask, part.masks.dropout, kernels_);
      if (!sum && part.queries.count == heads.q.size(1)) {
        sum = Result{part_out.to(wide), part_lse};
      } else {
        if (!sum) sum = nothing_seen(heads);
        ops::merge_attention_(part.queries.of(sum->out, 1), part.queries.of(sum->lse, 2), part_out, part_lse,
                              kernels_.kernels);
      }
    }
    transfer.wait();
    now = next;
  }
  if (!sum) sum = nothing_seen(heads);
  return {sum->out.to(heads.q.scalar_type()), sum->lse};
}

ops::AttentionGradients ContextAttention::differentiate(const at::Tensor& dout, const Heads& heads,
                                                        const Result& result, const Masks& masks) const {
  if (kind_ == ContextParallelKind::kAllGather) return differentiate_gathered(dout, heads, result, masks);
  if (ring_->size() > 1) return differentiate_ring(dout, heads, result, masks);
  return ops::attention_backward(dout, heads.q, heads.k, heads.v, result.out, result.lse, scale_, masks.mask,
                                 masks.dropout, false, kernels_);
}

ops::AttentionGradients ContextAttention::differentiate_gathered(const at::Tensor& dout, const Heads& heads,
                                                                 const Result& result, const Masks& masks) const {
  ops::AttentionGradients d;
  {
    const auto [k, v] = gather_keys(heads);
    d = ops::attention_backward(dout, heads.q, k, v, result.out, result.lse, scale_, masks.mask, masks.dropout, false,
                                kernels_);
  }
  // All ranks have gradients of all keys.
  const at::ScalarType wide = merge_dtype(heads.q);
  const auto start = [&](at::Tensor& whole, const at::Tensor& like, const char* what, at::Tensor& parts) {
    std::vector<int64_t> shape = like.sizes().vec();
    shape[0] *= ring_->size();
    parts = at::empty(shape, like.options().dtype(wide));
    zigzag_split(whole, parts.unflatten(0, {ring_->size(), like.size(0)}));
    whole = at::empty(like.sizes(), parts.options());
    return ring_->reduce_scatter(whole, parts, ReduceOp::kSum, fmt::format("{} {}", name_, what));
  };
  at::Tensor dk_parts, dv_parts;
  Work dk_scattering = start(d.dk, heads.k, "dk", dk_parts), dv_scattering = start(d.dv, heads.v, "dv", dv_parts);
  dk_scattering.wait();
  dv_scattering.wait();
  d.dk = d.dk.to(heads.k.scalar_type());
  d.dv = d.dv.to(heads.v.scalar_type());
  return d;
}

// Keys and values go round again, their gradients' sums a step later: these overlap computation too, and reach their
// owners after the last step.
ops::AttentionGradients ContextAttention::differentiate_ring(const at::Tensor& dout, const Heads& heads,
                                                             const Result& result, const Masks& masks) const {
  const int size = ring_->size();
  const auto zeros_like = [&](const at::Tensor& x) { return at::zeros(x.sizes(), x.options().dtype(merge_dtype(x))); };
  const at::Tensor dq = zeros_like(heads.q);
  KeysAndValues now{heads.k, heads.v}, sums{zeros_like(heads.k), zeros_like(heads.v)}, arriving;
  Work sums_transfer;
  for (int step = 0; step < size; ++step) {
    KeysAndValues next;
    Work transfer;
    if (step + 1 < size) {
      next = {at::empty_like(now.first), at::empty_like(now.second)};
      transfer = ring_->send_receive(round_transfers(now, next), name_ + " k v");
    }
    const Part part = part_of((ring_->rank() + size - step) % size, heads, masks);
    ops::AttentionGradients d;
    if (part.is_seen()) {
      d = ops::attention_backward(part.queries.of(dout, 1), part.queries.of(heads.q, 1), part.keys.of(now.first, 1),
                                  part.keys.of(now.second, 1), part.queries.of(result.out, 1),
                                  part.queries.of(result.lse, 2), scale_, part.masks.mask, part.masks.dropout, false,
                                  kernels_);
      part.queries.of(dq, 1).add_(d.dq);
    }
    if (step > 0) {
      sums_transfer.wait();
      sums = std::move(arriving);
    }
    if (part.is_seen()) {
      part.keys.of(sums.first, 1).add_(d.dk);
      part.keys.of(sums.second, 1).add_(d.dv);
    }
    arriving = {at::empty_like(sums.first), at::empty_like(sums.second)};
    sums_transfer = ring_->send_receive(round_transfers(sums, arriving), name_ + " dk dv");
    transfer.wait();
    now = next;
  }
  sums_transfer.wait();
  return {dq.to(heads.q.scalar_type()),
          arriving.first.to(heads.k.scalar_type()),
          arriving.second.to(heads.v.scalar_type()),
          {}};
}

}  // namespace megalith
