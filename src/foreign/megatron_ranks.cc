// Megatron-LM's file a rank: mp_rank_TP[_PP][_EP]/model_optim_rng.pt, whose tensors are cut over tensor-parallel ranks
// and whose layers are numbered from 0 in each chunk of a pipeline stage. The optimizer's state is there by the
// parameters' order, or in distrib_optim.pt as buffers (megatron_rank_parts.h).
// Source: Megatron-LM, megatron/training/checkpointing.py.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "core/error.h"
#include "core/folder.h"
#include "foreign/foreign_source.h"
#include "foreign/megatron_names.h"
#include "foreign/megatron_rank_parts.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

constexpr const char* kRankFile = "model_optim_rng.pt";
constexpr const char* kBufferFile = "distrib_optim.pt";

fs::path rank_folder(const fs::path& folder, const MegatronSizes& sizes, int64_t tp, int64_t pp, int64_t ep) {
  std::string name = fmt::format("mp_rank_{:02}", tp);
  if (sizes.pp > 1) name += fmt::format("_{:03}", pp);
  if (sizes.ep > 1) name += fmt::format("_{:03}", ep);
  return folder / name;
}

// The first rank's file, whose args say how many there are.
std::optional<fs::path> first_rank_file(const fs::path& folder) {
  for (const char* name : {"mp_rank_00", "mp_rank_00_000", "mp_rank_00_000_000"}) {
    if (fs::exists(folder / name / kRankFile)) return folder / name / kRankFile;
  }
  return std::nullopt;
}

bool has_megatron_ranks(const fs::path& folder) { return first_rank_file(folder).has_value(); }

ForeignRecord record_megatron_ranks(const fs::path& folder) {
  const TorchArchive archive(*first_rank_file(folder));
  ForeignRecord record = megatron_record(archive);
  std::vector<std::string> names;
  for (const char* chunk : {"model", "model0"}) {
    const PickleValue* model = archive.root().find(chunk);
    if (model == nullptr) continue;
    for_each_item(archive.pickle(), *model,
                  [&](const std::string& name, const PickleValue&) { names.push_back(name); });
  }
  read_megatron_network(names, record);
  return record;
}

const PickleValue& args_of(const TorchArchive& archive) {
  const PickleValue* args = archive.root().find("args");
  if (args == nullptr) throw UserError(fmt::format("{} has no args", archive.what()), "save it with Megatron-LM");
  return *args;
}

// A rank's tensors in the order of its modules, with names of the whole model.
struct RankTensor {
  std::string name;
  FileTensor place;
};
struct RankFile {
  std::unique_ptr<TorchArchive> archive;
  std::vector<std::vector<RankTensor>> chunks;  // of the pipeline that it interleaves
  std::map<std::string, RankPart> weights = {};
  RankStates states = {};
};

// opened: its archive, or null.
RankFile open_rank(const fs::path& path, std::unique_ptr<TorchArchive> opened) {
  if (!fs::exists(path)) {
    throw UserError(fmt::format("{} is missing", path.string()), "a rank's folder was not copied: copy them all");
  }
  if (opened == nullptr) opened = std::make_unique<TorchArchive>(path);
  RankFile rank{.archive = std::move(opened), .chunks = {}};
  for (int64_t chunk = -1; chunk < 1000; ++chunk) {
    const PickleValue* model = rank.archive->root().find(chunk < 0 ? "model" : fmt::format("model{}", chunk));
    if (model == nullptr && chunk >= 0) break;
    if (model == nullptr) continue;
    std::vector<RankTensor> tensors;
    for_each_item(rank.archive->pickle(), *model, [&](const std::string& name, const PickleValue& value) {
      if (auto place = rank.archive->tensor(value)) tensors.push_back({name, std::move(*place)});
    });
    rank.chunks.push_back(std::move(tensors));
    if (chunk < 0) break;
  }
  if (rank.chunks.empty()) throw UserError(fmt::format("{} has no model", path.string()), "give a whole checkpoint");
  return rank;
}

// Renumbers the layers of a stage and the experts of a rank; the count of layers.
int64_t renumber(std::vector<RankTensor>& tensors, int64_t first_layer, int64_t first_expert) {
  int64_t num_layers = 0;
  for (RankTensor& tensor : tensors) {
    // The last: Transformer Engine's grouped linear has an expert's number at the end (weight0, weight1, …).
    const std::pair<std::string_view, int64_t> numbers[] = {
        {"layers.", first_layer}, {"local_experts.", first_expert}, {".weight", first_expert}};
    for (const auto& [before, first] : numbers) {
      const size_t at = tensor.name.find(before);
      if (at == std::string::npos) continue;
      const size_t begin = at + before.size(), end = tensor.name.find('.', begin);
      const std::string digits = tensor.name.substr(begin, end - begin);
      if (digits.empty() || digits.size() > 6 || digits.find_first_not_of("0123456789") != std::string::npos) continue;
      const int64_t number = std::stoll(digits);
      if (before == "layers.") num_layers = std::max(num_layers, number + 1);
      tensor.name.replace(begin, digits.size(), std::to_string(first + number));
    }
  }
  return num_layers;
}

// Numbers of parameters in the optimizer's state are positions in its groups: those with weight decay and those
// without, each in the order of the modules. UserError for groups that do not fit.
RankStates listed_states(const TorchArchive& archive, const PickleValue& optimizer,
                         const std::vector<RankParameter>& parameters, std::set<std::string>& unknown) {
  const PickleValue* inner = optimizer.find("optimizer");
  const PickleValue& torch_state = inner != nullptr ? *inner : optimizer;
  const PickleValue* groups = torch_state.find("param_groups");
  const PickleValue* states = torch_state.find("state");
  if (groups == nullptr || states == nullptr) return {};
  const auto refuse = [&](const std::string& reason) {
    throw UserError(fmt::format("{}: {}", archive.what(), reason));
  };
  RankStates found;
  const PickleValue* fp32 = optimizer.find("fp32_from_fp16_params");
  std::map<int64_t, const RankParameter*> parameter_of;  // by its number
  size_t next_of[2] = {0, 0};                            // of those without and with decay
  for (size_t group = 0; group < groups->items.size(); ++group) {
    const PickleValue& one = *groups->items[group];
    const PickleValue* mult = one.find("wd_mult");
    const PickleValue* numbers = one.find("params");
    const bool decays = mult == nullptr || mult->number().value_or(1) != 0;
    if (numbers == nullptr) refuse("a group without parameters");
    size_t& next = next_of[decays ? 1 : 0];
    for (size_t i = 0; i < numbers->items.size(); ++i) {
      const auto is_of_group = [&](const RankParameter& parameter) {
        return (parameter.shape.size() > 1 && !parameter.name.ends_with(".bias")) == decays;
      };
      while (next < parameters.size() && !is_of_group(parameters[next])) ++next;
      const auto number = numbers->items[i]->whole();
      if (next >= parameters.size() || !number) refuse("its groups of parameters do not fit the model's");
      const RankParameter& parameter = parameters[next++];
      parameter_of[*number] = &parameter;
      if (fp32 == nullptr || group >= fp32->items.size() || i >= fp32->items[group]->items.size()) continue;
      if (const auto master = archive.tensor(*fp32->items[group]->items[i])) {
        found[std::string(kMasterKey)][parameter.name] = RankPart::whole(*master);
      }
    }
  }
  states->for_each_entry([&](const PickleValue& key, const PickleValue& value) {
    const auto parameter = key.whole() ? parameter_of.find(*key.whole()) : parameter_of.end();
    if (parameter == parameter_of.end()) return;
    value.for_each_entry([&](const PickleValue& name, const PickleValue& state) {
      const auto text = name.option_text();
      const std::string ours = text ? state_key(*text) : "";
      const auto stored = archive.tensor(state);
      if (!stored || text == "step") return;
      if (ours.empty()) {
        unknown.insert(text.value_or("a state without a name"));
        return;
      }
      found[ours][parameter->second->name] = RankPart::whole(*stored);
    });
  });
  return found;
}

// Tensors in a model's state that no optimizer updates.
bool is_parameter(std::string_view name) {
  return unused_in_megatron(name).empty() && !name.ends_with("router.expert_bias");
}

class MegatronRanks {
 public:
  MegatronRanks(fs::path folder, const CanonicalModel& model, ForeignTensors& tensors)
      : folder_(std::move(folder)), model_(model), tensors_(tensors) {}

  void read() {
    const fs::path first_path = *first_rank_file(folder_);
    auto first = std::make_unique<TorchArchive>(first_path);
    sizes_ = megatron_sizes(args_of(*first));
    rule_ = bucket_rule(args_of(*first));
    order_ = head_order(*first);
    if (model_.config().has_encoder() && sizes_.pp > 1) {
      throw UserError(fmt::format("{}: a T5 over {} pipeline stages is not read", first->what(), sizes_.pp),
                      "save it with pipeline_model_parallel_size 1");
    }
    const int64_t per_rank = model_.config().has_experts() ? model_.config().expert_count() / sizes_.ep : 0;
    // By pp; by tp and ep.
    std::vector<std::map<std::pair<int64_t, int64_t>, RankFile>> stages(static_cast<size_t>(sizes_.pp));
    for (int64_t pp = 0; pp < sizes_.pp; ++pp) {
      for (int64_t rank = 0; rank < sizes_.num_ranks(); ++rank) {
        const std::pair at(sizes_.tp_of(rank), sizes_.ep_of(rank));
        auto& stage = stages[static_cast<size_t>(pp)];
        if (stage.contains(at)) continue;
        const fs::path path = rank_folder(folder_, sizes_, at.first, pp, at.second) / kRankFile;
        stage.emplace(at, open_rank(path, path == first_path ? std::move(first) : nullptr));
      }
    }
    const size_t num_chunks = stages[0].begin()->second.chunks.size();
    int64_t first_layer = 0;
    for (size_t chunk = 0; chunk < num_chunks; ++chunk) {
      for (auto& stage : stages) {
        int64_t count = 0;
        for (auto& [at, rank] : stage) {
          if (rank.chunks.size() != num_chunks) {
            throw UserError(fmt::format("{} has {} model chunks, and the first rank's {}", rank.archive->what(),
                                        rank.chunks.size(), num_chunks),
                            "the files do not belong together: copy the whole checkpoint");
          }
          count = renumber(rank.chunks[chunk], first_layer, at.second * per_rank);
        }
        first_layer += count;
      }
    }
    for (size_t pp = 0; pp < stages.size(); ++pp) read_stage(stages[pp], static_cast<int64_t>(pp));
    for (const std::string& name : unknown_) {
      leave_over(tensors_, "optimizer state that no optimizer here keeps", name);
    }
  }

 private:
  using Stage = std::map<std::pair<int64_t, int64_t>, RankFile>;

  void read_stage(Stage& stage, int64_t pp) {
    const bool ends = pp + 1 == sizes_.pp;
    for (auto& [at, rank] : stage) {
      RankChunks dense(rank.chunks.size()), experts(rank.chunks.size());
      for (size_t chunk = 0; chunk < rank.chunks.size(); ++chunk) {
        for (RankTensor& tensor : rank.chunks[chunk]) {
          if (is_parameter(tensor.name) && !is_second_megatron_name(model_, tensor.name)) {
            const bool is_apart = sizes_.has_expert_optimizer() && is_of_expert(tensor.name);
            const bool is_first = pp == 0 && tensor.name.ends_with("word_embeddings.weight");
            const bool is_last = ends && tensor.name.ends_with("output_layer.weight");
            const bool is_shared = sizes_.pp > 1 && model_.find("lm_head.weight") == nullptr && (is_first || is_last);
            (is_apart ? experts : dense)[chunk].push_back({tensor.name, tensor.place.shape, is_shared});
          }
          if (megatron_cut(model_, tensor.name)) {
            rank.weights[tensor.name] = RankPart::whole(tensor.place);
          } else if (at == std::pair<int64_t, int64_t>()) {
            const std::string_view why = unused_in_megatron(tensor.name);
            leave_over(tensors_, why.empty() ? "no parameter of this model" : why, tensor.name);
          }
        }
      }
      check_same(rank, stage.begin()->second, at.second == stage.begin()->first.second);
      try {
        read_states(rank, rank_folder(folder_, sizes_, at.first, pp, at.second) / kBufferFile, dense, experts,
                    pp == 0 ? rule_ : BucketRule{});
      } catch (const UserError& error) {
        // The weights can be taken without them.
        leave_over(tensors_, error.message(), "the optimizer's state");
      }
    }
    for (const auto& [at, rank] : stage) {
      for (const auto& [name, part] : rank.weights) {
        // Copies: the tied table in the last stage, and what ranks share.
        if (read_.insert(name).second) read_tensor(name, at.second, stage);
      }
    }
  }

  static void check_same(const RankFile& rank, const RankFile& first, bool is_of_same_experts) {
    const bool are_same =
        rank.weights.size() == first.weights.size() &&
        (!is_of_same_experts || std::equal(rank.weights.begin(), rank.weights.end(), first.weights.begin(),
                                           [](const auto& a, const auto& b) { return a.first == b.first; }));
    if (are_same) return;
    throw UserError(fmt::format("{} has {} parameters, and the first rank's file {}, or others", rank.archive->what(),
                                rank.weights.size(), first.weights.size()),
                    "the files do not belong together: copy the whole checkpoint");
  }

  void read_states(RankFile& rank, const fs::path& buffers, const RankChunks& dense, const RankChunks& experts,
                   const BucketRule& rule) {
    const auto take = [&](const RankStates& states) {
      for (const auto& [key, of_key] : states) rank.states[key].insert(of_key.begin(), of_key.end());
    };
    const bool has_experts =
        std::any_of(experts.begin(), experts.end(), [](const auto& chunk) { return !chunk.empty(); });
    // An optimizer, or a list of that for all else and that for experts.
    const auto for_each_optimizer = [&](const TorchArchive& archive, const PickleValue& root, const auto& read_one) {
      const bool is_list = root.is_sequence();
      const size_t count = is_list ? root.items.size() : 1;
      if (count < (has_experts ? 2 : 1) || count > (sizes_.has_expert_optimizer() ? 2 : 1)) {
        throw UserError(fmt::format("{}: {} optimizers of one rank, by chunks of the model", archive.what(), count));
      }
      read_one(is_list ? *root.items[0] : root, dense);
      if (has_experts) read_one(*root.items[1], experts);
    };
    const PickleValue* optimizer = rank.archive->root().find("optimizer");
    if (fs::exists(buffers)) {
      const TorchArchive archive(buffers);
      for_each_optimizer(archive, archive.root(), [&](const PickleValue& root, const RankChunks& chunks) {
        // Ranks that hold copies leave it to the first of them.
        if (!root.is(PickleValue::Kind::kNone)) take(gathered_states(archive, root, chunks, rule, unknown_));
      });
    } else if (optimizer != nullptr) {
      for_each_optimizer(*rank.archive, *optimizer, [&](const PickleValue& root, const RankChunks& chunks) {
        std::vector<RankParameter> all;
        for (const std::vector<RankParameter>& chunk : chunks) all.insert(all.end(), chunk.begin(), chunk.end());
        take(listed_states(*rank.archive, root, all, unknown_));
      });
    }
  }

  // Weights and states of all ranks that cut it.
  void read_tensor(const std::string& name, int64_t ep, const Stage& stage) {
    MegatronCut cut = *megatron_cut(model_, name);
    const int64_t num_matrices = order_ == HeadOrder::kHeadFirst ? 0 : matrices_of_heads(name);
    if (num_matrices > 0 && model_.config().num_kv_heads() != model_.config().num_attention_heads) {
      throw UserError(fmt::format("{}: its checkpoint_version is older than groups of queries (num_query_groups {})",
                                  folder_.string(), model_.config().num_kv_heads()),
                      "give the architecture that it was trained with");
    }
    if (num_matrices > 0 && order_ == HeadOrder::kMatrixFirst) cut.num_parts = num_matrices;
    const bool is_expert = is_of_expert(name);
    const int64_t num_parts = is_expert ? sizes_.etp : sizes_.tp;
    std::set<std::string> keys = {std::string(kModelKey)};
    for (const auto& [at, rank] : stage) {
      for (const auto& [key, states] : rank.states) keys.insert(key);
    }
    for (const std::string& key : keys) {
      std::vector<const RankPart*> parts;
      for (int64_t part = 0; part < num_parts; ++part) {
        const RankPart* found = nullptr;
        for (int64_t number = 0; number < sizes_.num_ranks() && found == nullptr; ++number) {
          if (part != (is_expert ? sizes_.etp_of(number) : sizes_.tp_of(number))) continue;
          if (is_expert && sizes_.ep_of(number) != ep) continue;
          const RankFile& rank = stage.at({sizes_.tp_of(number), sizes_.ep_of(number)});
          const auto of_key = rank.states.find(key);
          const std::map<std::string, RankPart> none;
          const auto& places = key == kModelKey ? rank.weights : of_key == rank.states.end() ? none : of_key->second;
          const auto place = places.find(name);
          if (place != places.end()) found = &place->second;
        }
        if (found != nullptr) parts.push_back(found);
      }
      if (std::ssize(parts) != num_parts) continue;  // in the last stage's copy of a table
      ForeignTensor whole = joined(name, parts, cut);
      if (num_matrices > 0) whole = by_head(whole, model_.config().num_attention_heads, num_matrices, order_);
      read_megatron_tensor(whole, name, key, model_, tensors_);
    }
  }

  fs::path folder_;
  const CanonicalModel& model_;
  ForeignTensors& tensors_;
  MegatronSizes sizes_;
  BucketRule rule_;
  HeadOrder order_ = HeadOrder::kHeadFirst;
  std::set<std::string> read_, unknown_;
};

void read_megatron_ranks(const fs::path& folder, const CanonicalModel& model, ForeignTensors& tensors) {
  MegatronRanks(folder, model, tensors).read();
}

}  // namespace

const ForeignSource kMegatronRanks = {.kind = ForeignKind::kMegatron,
                                      .name = "a file a rank of Megatron-LM",
                                      .is_here = has_megatron_ranks,
                                      .record = record_megatron_ranks,
                                      .read = read_megatron_ranks};

}  // namespace megalith
