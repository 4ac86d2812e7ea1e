#include "foreign/megatron_rank_parts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/error.h"
#include "foreign/foreign_source.h"

namespace megalith {
namespace {

constexpr int64_t kParameterAlignment = 64, kMostOfBuffer = int64_t{1} << 50, kMostOfGroup = 100'000;
const char* const kTogether = "the files do not belong together: copy the whole checkpoint";

std::string file_of(const RankPart& part) {
  return part.shards.empty() ? "a rank's file" : part.shards[0].stored.file->path().string();
}

int64_t aligned(int64_t at) { return div_up(at, kParameterAlignment) * kParameterAlignment; }

int64_t elements_of(const RankParameter& parameter) { return Box::whole(parameter.shape).num_elements(); }

// Elements [begin, begin + those of the shape) of a vector, as a tensor of this shape.
void take_run(const ForeignTensor& vector, int64_t begin, RankPart& part) {
  const int64_t end = begin + Box::whole(part.shape).num_elements();
  for (const ForeignTensor::Shard& shard : vector.shards) {
    const int64_t at = shard.box.offset[0];
    const int64_t first = std::max(begin, at), last = std::min(end, at + shard.box.extent[0]);
    if (first >= last) continue;
    const FileTensor run = sub_tensor(shard.stored, {{first - at}, {last - first}});
    for (ForeignTensor::Shard& one : shards_of_run(part.shape, first - begin, run)) {
      part.shards.push_back(std::move(one));
    }
  }
}

// Elements of each bucket, without padding.
std::vector<int64_t> bucket_sizes(std::span<const RankParameter> parameters, std::optional<int64_t> limit) {
  std::vector<int64_t> sizes;
  int64_t at = 0;
  for (size_t i = parameters.size(); i-- > 0;) {
    at = aligned(at);
    if (parameters[i].is_shared_table && at > 0) sizes.push_back(std::exchange(at, 0));
    const int64_t elements = elements_of(parameters[i]);
    // A damaged file's tensors can repeat one element endlessly.
    if (elements > kMostOfBuffer - at) {
      throw UserError("parameters have more elements than a buffer can: " + parameters[i].name, kTogether);
    }
    at += elements;
    if ((limit && at >= *limit) || parameters[i].is_shared_table) sizes.push_back(std::exchange(at, 0));
  }
  if (at > 0) sizes.push_back(at);
  return sizes;
}

}  // namespace

RankPart RankPart::whole(const FileTensor& stored) {
  return {.shape = stored.shape, .shards = {{Box::whole(stored.shape), stored}}};
}

ForeignTensor joined(const std::string& name, std::span<const RankPart* const> parts, const MegatronCut& cut) {
  ForeignTensor whole{.name = name, .shape = parts[0]->shape, .shards = {}};
  if (cut.dim < 0) {
    whole.shards = parts[0]->shards;
    return whole;
  }
  const auto dim = static_cast<size_t>(cut.dim);
  const int64_t num_ranks = std::ssize(parts), num_parts = cut.num_parts;
  if (dim >= whole.shape.size() || __builtin_mul_overflow(parts[0]->shape[dim], num_ranks, &whole.shape[dim])) {
    throw UserError(fmt::format("{}: {} is [{}], which {} ranks cannot have cut along dim {}", file_of(*parts[0]), name,
                                fmt::join(parts[0]->shape, ", "), num_ranks, dim),
                    "the file is damaged, or of another model: copy the whole checkpoint");
  }
  const int64_t per_part = parts[0]->shape[dim] / num_parts;
  for (int64_t rank = 0; rank < num_ranks; ++rank) {
    const RankPart& part = *parts[static_cast<size_t>(rank)];
    if (part.shape != parts[0]->shape) {
      throw UserError(fmt::format("{}: {} is [{}], and [{}] in the first rank's file", file_of(part), name,
                                  fmt::join(part.shape, ", "), fmt::join(parts[0]->shape, ", ")),
                      kTogether);
    }
    for (int64_t part_idx = 0; part_idx < num_parts; ++part_idx) {
      Box of_part = Box::whole(part.shape);
      of_part.offset[dim] = part_idx * per_part;
      of_part.extent[dim] = per_part;
      for (const ForeignTensor::Shard& shard : part.shards) {
        Box box = intersect(shard.box, of_part);
        if (box.is_empty()) continue;
        Box own = box;
        for (size_t d = 0; d < own.offset.size(); ++d) own.offset[d] -= shard.box.offset[d];
        box.offset[dim] += part_idx * per_part * (num_ranks - 1) + rank * per_part;
        whole.shards.push_back({std::move(box), sub_tensor(shard.stored, own)});
      }
    }
  }
  return whole;
}

HeadOrder head_order(const TorchArchive& archive) {
  const PickleValue* stored = archive.root().find("checkpoint_version");
  const double version = stored == nullptr ? 0 : archive.number(*stored).value_or(-1);
  if (version >= 2) return HeadOrder::kHeadFirst;
  if (version == 1) return HeadOrder::kInterleaved;
  if (version == 0) return HeadOrder::kMatrixFirst;
  throw UserError(fmt::format("{}: checkpoint_version is neither 0, 1, 2 nor 3", archive.what()),
                  "the file is damaged, or another trainer's: copy it again");
}

int64_t matrices_of_heads(std::string_view name) {
  const std::string_view stem = name.substr(0, name.rfind('.'));
  return stem.ends_with(".query_key_value") ? 3 : stem.ends_with(".key_value") ? 2 : 0;
}

ForeignTensor by_head(const ForeignTensor& tensor, int64_t num_heads, int64_t num_matrices, HeadOrder order) {
  const int64_t rows = tensor.shape.empty() ? 0 : tensor.shape[0], d = rows / (num_heads * num_matrices);
  if (rows != num_heads * num_matrices * d) {
    throw UserError(fmt::format("{} has {} rows, which are not {} matrices of {} heads", tensor.name, rows,
                                num_matrices, num_heads),
                    "give the architecture that it was trained with");
  }
  const int64_t step = order == HeadOrder::kInterleaved ? num_matrices : 1;
  ForeignTensor ordered{.name = tensor.name, .shape = tensor.shape, .shards = {}};
  for (const ForeignTensor::Shard& shard : tensor.shards) {
    const int64_t first = shard.box.offset[0], last = first + shard.box.extent[0];
    for (int64_t head = 0; head < num_heads; ++head) {
      for (int64_t matrix = 0; matrix < num_matrices; ++matrix) {
        const int64_t begin = order == HeadOrder::kInterleaved   ? head * num_matrices * d + matrix
                              : order == HeadOrder::kMatrixFirst ? (matrix * num_heads + head) * d
                                                                 : (head * num_matrices + matrix) * d;
        // Rows begin + i step, of which the shard has i in [from, to).
        const int64_t from = begin < first ? div_up(first - begin, step) : 0;
        const int64_t to = begin < last ? std::min(d, div_up(last - begin, step)) : 0;
        if (from >= to) continue;
        Box own = Box::whole(shard.box.extent), box = shard.box;
        own.offset[0] = begin + from * step - first;
        own.extent[0] = (to - from - 1) * step + 1;
        box.offset[0] = (head * num_matrices + matrix) * d + from;
        box.extent[0] = to - from;
        FileTensor stored = sub_tensor(shard.stored, own);
        stored.shape[0] = to - from;
        stored.strides[0] *= step;
        ordered.shards.push_back({std::move(box), std::move(stored)});
      }
    }
  }
  return ordered;
}

BucketRule bucket_rule(const PickleValue& args) {
  const auto count = [&](std::string_view name, int64_t otherwise) {
    const PickleValue* value = args.find(name);
    const auto number = value == nullptr ? std::nullopt : value->whole();
    return number ? std::clamp<int64_t>(*number, 0, kMostOfBuffer) : otherwise;
  };
  const PickleValue* overlaps = args.find("overlap_grad_reduce");
  if (overlaps == nullptr || overlaps->integer == 0) return {};
  const int64_t ranks = std::min(count("data_parallel_size", 1), kMostOfGroup) *
                        std::min(count("context_parallel_size", 1), kMostOfGroup);
  return {.size = count("ddp_bucket_size", std::max<int64_t>(40'000'000, 1'000'000 * ranks))};
}

void take_buckets(std::span<const RankParameter> parameters, std::span<const ForeignTensor> buckets,
                  const std::string& where, std::map<std::string, RankPart>& states) {
  const auto refuse = [&] {
    std::vector<int64_t> sizes;
    for (const ForeignTensor& one : buckets) sizes.push_back(one.shape.at(0));
    throw UserError(fmt::format("{}: buckets of [{}] elements do not fit the {} parameters that this rank should have",
                                where, fmt::join(sizes, ", "), parameters.size()));
  };
  int64_t at = 0;
  size_t bucket = 0;
  const auto is_full = [&] { return bucket < buckets.size() && at == buckets[bucket].shape.at(0); };
  const auto next = [&] {
    at = 0;
    ++bucket;
  };
  for (size_t i = parameters.size(); i-- > 0;) {
    at = aligned(at);
    if (at > 0 && is_full()) next();
    const int64_t elements = elements_of(parameters[i]);
    if (bucket >= buckets.size() || elements > kMostOfBuffer - at) refuse();
    if (at + elements > buckets[bucket].shape.at(0)) refuse();
    RankPart part{.shape = parameters[i].shape, .shards = {}};
    take_run(buckets[bucket], at, part);
    states[parameters[i].name] = std::move(part);
    at += elements;
    if (is_full()) next();
  }
  if (bucket != buckets.size() || at != 0) refuse();
}

RankStates gathered_states(const TorchArchive& archive, const PickleValue& buffers, const RankChunks& chunks,
                           const BucketRule& rule, std::set<std::string>& unknown) {
  const auto refuse = [&](const std::string& reason) {
    throw UserError(fmt::format("{}: {}; saved as torch_dist it can be read", archive.what(), reason));
  };
  RankStates states;
  int64_t number = 0;
  for (size_t chunk = 0; chunk < chunks.size(); ++chunk) {
    const std::vector<RankParameter>& parameters = chunks[chunk];
    if (parameters.empty()) continue;
    const PickleValue* buffer = buffers.find(number);
    if (buffer == nullptr) refuse(fmt::format("it has no buffer {} (before megatron-core 0.7)", number));
    const PickleValue* values = nullptr;
    buffer->for_each_entry([&](const PickleValue& /*dtypes*/, const PickleValue& value) { values = &value; });
    if (values == nullptr) refuse("its buffer is empty");
    values->for_each_entry([&](const PickleValue& key, const PickleValue& value) {
      const auto name = key.option_text();
      const auto stored = archive.tensor(value);
      if (!name || !stored) return;
      const std::string ours = state_key(*name);
      if (ours.empty()) {
        unknown.insert(*name);
        return;
      }
      std::vector<int64_t> sizes = bucket_sizes(parameters, chunk == 0 ? rule.size : std::nullopt);
      const auto total = [&] { return std::accumulate(sizes.begin(), sizes.end(), int64_t{0}); };
      if (stored->shape != std::vector<int64_t>{total()}) sizes = bucket_sizes(parameters, std::nullopt);
      // Runs of it are taken as contiguous, so its bytes are counted.
      if (stored->shape != std::vector<int64_t>{total()} || stored->num_bytes != total() * bits_of(stored->dtype) / 8) {
        refuse(fmt::format("{} has [{}] elements, expected {} for these parameters", *name,
                           fmt::join(stored->shape, ", "), total()));
      }
      std::vector<ForeignTensor> buckets;
      int64_t at = 0;
      for (const int64_t size : sizes) {
        buckets.push_back({.name = *name, .shape = {size}, .shards = {}});
        buckets.back().shards.push_back({Box::whole({size}), sub_tensor(*stored, {{at}, {size}})});
        at += size;
      }
      take_buckets(parameters, buckets, archive.what(), states[ours]);
    });
    ++number;
  }
  if (buffers.find(number) != nullptr) refuse("it has more buffers than the rank has model chunks");
  return states;
}

int64_t MegatronSizes::num_ranks() const { return std::lcm(tp, etp * ep); }

MegatronSizes megatron_sizes(const PickleValue& args) {
  MegatronSizes sizes;
  const auto take = [&](std::string_view name, int64_t& size) {
    const PickleValue* value = args.find(name);
    if (value != nullptr && value->whole()) size = std::clamp<int64_t>(*value->whole(), 1, kMostOfGroup);
  };
  take("model_parallel_size", sizes.tp);
  take("tensor_model_parallel_size", sizes.tp);
  take("pipeline_model_parallel_size", sizes.pp);
  take("virtual_pipeline_model_parallel_size", sizes.vp);
  take("expert_model_parallel_size", sizes.ep);
  sizes.etp = sizes.tp;
  take("expert_tensor_parallel_size", sizes.etp);
  return sizes;
}

bool is_of_expert(std::string_view name) { return name.find(".mlp.experts.") != std::string_view::npos; }

}  // namespace megalith
