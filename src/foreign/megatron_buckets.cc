#include "foreign/megatron_buckets.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "core/error.h"
#include "foreign/megatron_rank_parts.h"

namespace megalith {
namespace {

constexpr std::string_view kInBuckets = "optimizer.distributed.dp_group_idx_";

// Parameters of a layer in the order of its modules. Files name norms as Transformer Engine does, where a linear layer
// has them; megatron-core's own modules have them before.
constexpr std::string_view kAttention[] = {
    "self_attention.linear_proj.weight",
    "self_attention.linear_proj.bias",
    "self_attention.linear_qkv.layer_norm_weight",
    "self_attention.linear_qkv.layer_norm_bias",
    "self_attention.linear_qkv.weight",
    "self_attention.linear_qkv.bias",
    "self_attention.linear_q_proj.weight",
    "self_attention.linear_q_down_proj.weight",
    "self_attention.linear_q_up_proj.layer_norm_weight",
    "self_attention.linear_q_up_proj.weight",
    "self_attention.linear_kv_down_proj.weight",
    "self_attention.linear_kv_up_proj.layer_norm_weight",
    "self_attention.linear_kv_up_proj.weight",
    "self_attention.q_layernorm.weight",
    "self_attention.k_layernorm.weight",
    "self_attention.kv_layernorm.weight",
};
constexpr std::string_view kMlp[] = {
    "mlp.linear_fc1.layer_norm_weight",
    "mlp.linear_fc1.layer_norm_bias",
    "mlp.linear_fc1.weight",
    "mlp.linear_fc1.bias",
    "mlp.linear_fc2.weight",
    "mlp.linear_fc2.bias",
    "mlp.router.weight",
    "mlp.experts.linear_fc1.weight",
    "mlp.experts.linear_fc2.weight",
    "mlp.shared_experts.linear_fc1.weight",
    "mlp.shared_experts.linear_fc2.weight",
};
constexpr std::string_view kExperts = "mlp.experts.";
constexpr std::string_view kTable = "embedding.word_embeddings.weight", kHead = "output_layer.weight";
constexpr std::string_view kFirst[] = {kTable, "embedding.position_embeddings.weight"};
constexpr std::string_view kLast[] = {"decoder.final_layernorm.weight", "decoder.final_layernorm.bias", kHead};

[[noreturn]] void refuse(const std::string& reason) {
  throw UserError(fmt::format("optimizer state by buckets (dp_reshardable, dp_zero_gather_scatter): {}", reason));
}

std::vector<std::string_view> order_of_layer(bool is_own) {
  std::vector<std::string_view> order;
  const auto add = [&](std::string_view name) {
    if (std::ranges::find(order, name) == order.end()) order.push_back(name);
  };
  for (const char* name : {"input_layernorm.weight", "input_layernorm.bias"}) add(name);
  for (const size_t norm : {size_t{2}, size_t{3}}) {
    if (is_own) add(kAttention[norm]);
  }
  for (const std::string_view name : kAttention) add(name);
  for (const char* name : {"pre_mlp_layernorm.weight", "pre_mlp_layernorm.bias"}) add(name);
  for (const size_t norm : {size_t{0}, size_t{1}}) {
    if (is_own) add(kMlp[norm]);
  }
  for (const std::string_view name : kMlp) add(name);
  return order;
}

// The parameters that model-parallel ranks have, as their args say.
class Order {
 public:
  Order(const DcpFolder& dcp, const PickleValue& args, const CanonicalModel& model)
      : args_(args), model_(model), sizes_(megatron_sizes(args)) {
    const std::string implementation = text("transformer_impl");
    if (implementation != "local" && implementation != "transformer_engine") {
      refuse(fmt::format("the order of parameters is not known for transformer_impl '{}'", implementation));
    }
    order_ = order_of_layer(implementation == "local");
    for (const char* name : {"moe_use_legacy_grouped_gemm", "overlap_param_gather_with_optimizer_step",
                             "pipeline_model_parallel_layout"}) {
      if (is_set(name)) refuse(fmt::format("the order of parameters is not known with {}", name));
    }
    for (const auto& [name, shape] : dcp.tensors()) {
      if (name.find("optimizer.") == std::string::npos) add_shape(name, shape);
    }
    divide_layers();
  }

  const MegatronSizes& sizes() const { return sizes_; }

  // A rank of a stage: its dense parameters, or those of experts with an optimizer of their own.
  RankChunks rank(int64_t pp, std::optional<int64_t> expert_rank) const {
    RankChunks chunks(static_cast<size_t>(sizes_.vp));
    const bool is_tied = sizes_.pp > 1 && find(-1, kHead) == nullptr;
    for (int64_t chunk = 0; chunk < sizes_.vp; ++chunk) {
      std::vector<RankParameter>& all = chunks[static_cast<size_t>(chunk)];
      if (pp == 0 && chunk == 0 && !expert_rank) {
        for (const std::string_view name : kFirst) add(-1, name, std::string(name), all);
        if (is_tied && !all.empty()) all[0].is_shared_table = true;
      }
      const auto& [first, count] = layers_.at(static_cast<size_t>(chunk * sizes_.pp + pp));
      for (int64_t layer = first; layer < first + count; ++layer) add_layer(layer, expert_rank, all);
      if (pp + 1 < sizes_.pp || chunk + 1 < sizes_.vp || expert_rank) continue;
      for (const std::string_view name : kLast) add(-1, name, std::string(name), all);
      if (!is_tied) continue;
      add(-1, kTable, std::string(kTable), all);
      all.back().name = kHead;
      all.back().is_shared_table = true;
    }
    return chunks;
  }

 private:
  std::string text(std::string_view name) const {
    const PickleValue* value = args_.find(name);
    return value == nullptr ? "" : value->option_text().value_or("");
  }
  bool is_set(std::string_view name) const {
    const PickleValue* value = args_.find(name);
    return value != nullptr && !value->is(PickleValue::Kind::kNone) && value->option_text() != "false";
  }

  void add_shape(const std::string& name, const std::vector<int64_t>& shape) {
    if (!unused_in_megatron(name).empty() || name.ends_with("router.expert_bias")) return;
    const auto of_layer = megatron_layer_name(name);
    const std::string_view rest = of_layer ? std::string_view(of_layer->rest) : name;
    const bool is_known = of_layer ? std::ranges::find(order_, rest) != order_.end()
                                   : std::ranges::find(kFirst, rest) != std::end(kFirst) ||
                                         std::ranges::find(kLast, rest) != std::end(kLast);
    if (!is_known) refuse(fmt::format("{} has no place in the known order of parameters", name));
    const bool is_vector = rest.ends_with("bias") || rest.find("norm") != std::string_view::npos;
    const size_t dims = is_vector ? 1 : 2;
    if (shape.size() < dims) refuse(fmt::format("{} has {} dims", name, shape.size()));
    shapes_[{of_layer ? of_layer->layer.value_or(-1) : -1, std::string(rest)}] = {
        shape.end() - static_cast<ptrdiff_t>(dims), shape.end()};
  }

  // The shape of one layer's parameter; -1: it is not a layer's. Null if the model has none.
  const std::vector<int64_t>* find(int64_t layer, std::string_view rest) const {
    for (const int64_t at : {layer, int64_t{-1}}) {
      const auto found = shapes_.find({at, std::string(rest)});
      if (found != shapes_.end()) return &found->second;
    }
    return nullptr;
  }

  void add(int64_t layer, std::string_view rest, std::string name, std::vector<RankParameter>& all) const {
    const std::vector<int64_t>* whole = find(layer, rest);
    if (whole == nullptr) return;
    RankParameter parameter{.name = std::move(name), .shape = *whole};
    const auto cut = megatron_cut(model_, parameter.name);
    if (!cut) refuse(fmt::format("{} is no parameter of this model", parameter.name));
    if (cut->dim >= 0) {
      int64_t& size = parameter.shape.at(static_cast<size_t>(cut->dim));
      const int64_t ranks = is_of_expert(parameter.name) ? sizes_.etp : sizes_.tp;
      if (size % ranks != 0) refuse(fmt::format("{} ranks cannot have cut {}", ranks, parameter.name));
      size /= ranks;
    }
    all.push_back(std::move(parameter));
  }

  void add_layer(int64_t layer, std::optional<int64_t> expert_rank, std::vector<RankParameter>& all) const {
    const int64_t num_experts = model_.config().has_experts() ? model_.config().expert_count() / sizes_.ep : 0;
    const auto add_expert = [&](std::string_view rest, int64_t expert) {
      const std::string number = fmt::format("local_experts.{}.", expert_rank.value_or(0) * num_experts + expert);
      add(layer, rest, fmt::format("decoder.layers.{}.{}{}{}", layer, kExperts, number, rest.substr(kExperts.size())),
          all);
    };
    std::vector<std::string_view> of_expert;
    for (const std::string_view rest : order_) {
      if (rest.starts_with(kExperts)) of_expert.push_back(rest);
    }
    for (const std::string_view rest : order_) {
      if (!rest.starts_with(kExperts)) {
        if (!expert_rank) add(layer, rest, fmt::format("decoder.layers.{}.{}", layer, rest), all);
        continue;
      }
      if (expert_rank.has_value() != sizes_.has_expert_optimizer()) continue;
      // Grouped experts have their matrices one after another; others are modules, in order.
      const bool is_grouped = is_set("moe_grouped_gemm");
      for (int64_t expert = 0; expert < num_experts; ++expert) {
        if (is_grouped) {
          add_expert(rest, expert);
        } else if (rest == of_expert.front()) {
          for (const std::string_view each : of_expert) add_expert(each, expert);
        }
      }
    }
  }

  void divide_layers() {
    const auto count = [&](const char* name) -> std::optional<int64_t> {
      const PickleValue* value = args_.find(name);
      return value == nullptr ? std::nullopt : value->whole();
    };
    const auto first = count("decoder_first_pipeline_num_layers"), last = count("decoder_last_pipeline_num_layers");
    const int64_t with_table = is_set("account_for_embedding_in_pipeline_split") ? 1 : 0,
                  with_loss = is_set("account_for_loss_in_pipeline_split") ? 1 : 0;
    const int64_t others = sizes_.pp - (first ? 1 : 0) - (last ? 1 : 0);
    const int64_t total = model_.config().num_layers + with_table + with_loss - first.value_or(0) - last.value_or(0);
    int64_t next = 0;
    for (int64_t chunk = 0; chunk < sizes_.vp; ++chunk) {
      for (int64_t pp = 0; pp < sizes_.pp; ++pp) {
        int64_t layers = others > 0 ? total / others : 0;
        if (pp == 0) layers = first.value_or(layers);
        if (pp + 1 == sizes_.pp) layers = last.value_or(layers);
        layers /= sizes_.vp;
        if (pp == 0 && chunk == 0) layers -= with_table;
        if (pp + 1 == sizes_.pp && chunk + 1 == sizes_.vp) layers -= with_loss;
        layers_.emplace_back(next, layers);
        next += layers;
      }
    }
    if (next == model_.config().num_layers) return;
    refuse(fmt::format("{} layers are not {} stages of {} chunks", model_.config().num_layers, sizes_.pp, sizes_.vp));
  }

  const PickleValue& args_;
  const CanonicalModel& model_;
  MegatronSizes sizes_;
  std::vector<std::string_view> order_;
  std::map<std::pair<int64_t, std::string>, std::vector<int64_t>> shapes_;  // one layer's and expert's, of all ranks
  std::vector<std::pair<int64_t, int64_t>> layers_;                         // first and count, by chunk and stage
};

// One optimizer of one model-parallel rank, as the folder has it.
struct StoredRank {
  // By buffer and key, in the order of the buckets.
  std::map<int64_t, std::map<std::string, std::map<int64_t, std::string>>> buckets;
  std::string gathered;  // an object
};

// By optimizer (of experts or not) and number of the rank.
using StoredRanks = std::map<std::pair<bool, int64_t>, StoredRank>;

std::optional<int64_t> take_number_after(std::string_view& name, std::string_view before) {
  const size_t at = name.find(before);
  if (at == std::string_view::npos) return std::nullopt;
  name.remove_prefix(at + before.size());
  int64_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (error != std::errc() || number < 0) return std::nullopt;
  name.remove_prefix(static_cast<size_t>(end - name.data()));
  return number;
}

StoredRanks stored_ranks(const DcpFolder& dcp, const MegatronSizes& sizes, std::set<std::string>& unknown) {
  StoredRanks ranks;
  const auto rank_of = [&](std::string_view& name) -> StoredRank& {
    const std::string whole(name);
    const int64_t optimizer = name.starts_with("chained_") ? take_number_after(name, "chained_").value_or(2) : 0;
    const auto number = take_number_after(name, kInBuckets);
    if (!number || optimizer > (sizes.has_expert_optimizer() ? 1 : 0)) {
      refuse(fmt::format("{} is of an optimizer that is not known", whole));
    }
    return ranks[{optimizer == 1, *number}];
  };
  for (const auto& [whole, shape] : dcp.tensors()) {
    if (!is_in_buckets(whole)) continue;
    std::string_view name = whole;
    StoredRank& rank = rank_of(name);
    const auto buffer = take_number_after(name, ".gbuf_idx_"), bucket = take_number_after(name, ".bucket_idx_");
    if (!buffer || !bucket || !name.starts_with('.') || shape.size() != 1) refuse(whole + " is no bucket");
    const std::string key = state_key(name.substr(1));
    if (key.empty()) {
      unknown.insert(std::string(name.substr(1)));
    } else {
      rank.buckets[*buffer][key][*bucket] = whole;
    }
  }
  for (const std::string& whole : dcp.objects()) {
    std::string_view name = whole;
    if (is_in_buckets(name) && name.find(".param_state/") != std::string_view::npos) rank_of(name).gathered = whole;
  }
  return ranks;
}

void take_stored_buckets(const DcpFolder& dcp, const StoredRank& rank, const RankChunks& chunks,
                         const std::string& where, RankStates& states) {
  int64_t number = 0;
  for (const std::vector<RankParameter>& parameters : chunks) {
    if (parameters.empty()) continue;
    const auto buffer = rank.buckets.find(number++);
    if (buffer == rank.buckets.end()) refuse(fmt::format("{} has no buffer {}", where, number - 1));
    for (const auto& [key, names] : buffer->second) {
      std::vector<ForeignTensor> buckets;
      for (const auto& [bucket, name] : names) {
        if (bucket != std::ssize(buckets)) refuse(fmt::format("{} has no bucket before {}", where, name));
        buckets.push_back(dcp.tensor(name));
        for (const ForeignTensor::Shard& shard : buckets.back().shards) {
          // Runs of it are taken as contiguous.
          if (shard.stored.num_bytes == shard.box.num_elements() * bits_of(shard.stored.dtype) / 8) continue;
          refuse(fmt::format("{} is not contiguous", name));
        }
      }
      take_buckets(parameters, buckets, fmt::format("{}, buffer {}", where, number - 1), states[key]);
    }
  }
  if (number != std::ssize(rank.buckets)) refuse(where + " has more buffers than model chunks");
}

}  // namespace

const PickleValue& sharded_object(const TorchArchive& archive) {
  const PickleValue& root = archive.root();
  return root.is_sequence() && root.items.size() == 1 ? *root.items[0] : root;
}

bool is_in_buckets(std::string_view name) {
  const size_t at = name.find(kInBuckets);
  return at == 0 || (at != std::string_view::npos && name.starts_with("chained_"));
}

void read_megatron_buckets(const DcpFolder& dcp, const TorchArchive& common, const CanonicalModel& model,
                           ForeignTensors& tensors) {
  const PickleValue* args = common.root().find("args");
  if (args == nullptr) refuse(fmt::format("{} has no args, which say how ranks divide the model", common.what()));
  const Order order(dcp, *args, model);
  const MegatronSizes& sizes = order.sizes();
  std::set<std::string> unknown;
  const StoredRanks stored = stored_ranks(dcp, sizes, unknown);
  std::vector<std::pair<std::string, ForeignTensor>> made;
  for (int64_t pp = 0; pp < sizes.pp; ++pp) {
    // Dense parameters, and each rank's experts; what cuts them has numbers next to one another.
    for (int64_t ep = -1; ep < (sizes.has_expert_optimizer() ? sizes.ep : 0); ++ep) {
      const bool are_experts = ep >= 0;
      const RankChunks chunks = order.rank(pp, are_experts ? std::optional(ep) : std::nullopt);
      if (std::ranges::all_of(chunks, [](const auto& chunk) { return chunk.empty(); })) continue;
      const int64_t num_parts = are_experts ? sizes.etp : sizes.tp;
      std::vector<RankStates> states;
      for (int64_t part = 0; part < num_parts; ++part) {
        const int64_t number = part + num_parts * (are_experts ? ep + sizes.ep * pp : pp);
        const std::string where = fmt::format("dp_group_idx_{}{}", number, are_experts ? " of experts" : "");
        const auto rank = stored.find({are_experts, number});
        if (rank == stored.end()) refuse(where + " is missing");
        RankStates& own = states.emplace_back();
        if (rank->second.gathered.empty()) {
          take_stored_buckets(dcp, rank->second, chunks, where, own);
        } else {
          const auto archive = dcp.object(rank->second.gathered);
          const BucketRule rule = pp == 0 ? bucket_rule(*args) : BucketRule{};
          own = gathered_states(*archive, sharded_object(*archive), chunks, rule, unknown);
        }
      }
      for (const auto& [key, of_key] : states[0]) {
        for (const auto& [name, first] : of_key) {
          const auto cut = megatron_cut(model, name);
          if (!cut) continue;  // the last stage's copy of a table
          std::vector<const RankPart*> parts;
          for (const RankStates& own : states) {
            const auto same = own.find(key);
            if (same == own.end() || !same->second.contains(name)) refuse(fmt::format("not all ranks have {}", key));
            parts.push_back(&same->second.at(name));
          }
          made.emplace_back(key, joined(name, parts, *cut));
        }
      }
    }
  }
  for (const auto& [key, tensor] : made) read_megatron_tensor(tensor, tensor.name, key, model, tensors);
  for (const std::string& name : unknown) leave_over(tensors, "optimizer state that no optimizer here keeps", name);
}

}  // namespace megalith
