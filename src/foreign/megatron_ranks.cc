// Megatron-LM's file a rank: mp_rank_TP[_PP][_EP]/model_optim_rng.pt, whose tensors are cut over tensor-parallel ranks
// and whose layers are numbered from 0 in each pipeline stage. The optimizer's state is there by the parameters' order,
// or in distrib_optim.pt, as buffers that hold the parameters in reverse order, each beginning at a multiple of 64.
// Source: Megatron-LM, megatron/training/checkpointing.py; megatron-core, core/distributed/param_and_grad_buffer.py.
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

namespace megalith {
namespace fs = std::filesystem;
namespace {

constexpr const char* kRankFile = "model_optim_rng.pt";
constexpr const char* kBufferFile = "distrib_optim.pt";
constexpr int64_t kBufferAlignment = 64, kMostBufferElements = int64_t{1} << 50;

struct RankSizes {
  int64_t tp = 1, pp = 1, ep = 1;
};

fs::path rank_folder(const fs::path& folder, const RankSizes& sizes, int64_t tp, int64_t pp, int64_t ep) {
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
  return megatron_record(TorchArchive(*first_rank_file(folder)));
}

RankSizes rank_sizes(const TorchArchive& archive) {
  RankSizes sizes;
  const PickleValue* args = archive.root().find("args");
  if (args == nullptr) throw UserError(fmt::format("{} has no args", archive.what()), "save it with Megatron-LM");
  const std::pair<const char*, int64_t*> kSizes[] = {{"tensor_model_parallel_size", &sizes.tp},
                                                     {"model_parallel_size", &sizes.tp},
                                                     {"pipeline_model_parallel_size", &sizes.pp},
                                                     {"expert_model_parallel_size", &sizes.ep}};
  for (const auto& [name, size] : kSizes) {
    const PickleValue* value = args->find(name);
    if (value != nullptr && value->whole()) *size = std::clamp<int64_t>(*value->whole(), 1, 100'000);
  }
  return sizes;
}

// A rank's tensors in the order of its parameters, with names of the whole model.
struct RankTensor {
  std::string name;
  FileTensor place;
};
struct RankFile {
  std::unique_ptr<TorchArchive> archive;
  std::vector<std::vector<RankTensor>> chunks;  // of the pipeline that it interleaves
};

RankFile open_rank(const fs::path& path) {
  if (!fs::exists(path)) {
    throw UserError(fmt::format("{} is missing", path.string()), "a rank's folder was not copied: copy them all");
  }
  RankFile rank{.archive = std::make_unique<TorchArchive>(path), .chunks = {}};
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

// A tensor of all tensor-parallel ranks, put together. part: its place in each rank.
ForeignTensor joined(const std::string& name, std::span<const FileTensor> parts, const MegatronCut& cut) {
  ForeignTensor whole{.name = name, .shape = parts[0].shape, .shards = {}};
  if (cut.dim < 0) {
    whole.shards.push_back({Box::whole(whole.shape), parts[0]});
    return whole;
  }
  const auto dim = static_cast<size_t>(cut.dim);
  const int64_t num_ranks = std::ssize(parts), num_halves = cut.is_gated ? 2 : 1;
  if (dim >= whole.shape.size() || __builtin_mul_overflow(parts[0].shape[dim], num_ranks, &whole.shape[dim])) {
    throw UserError(fmt::format("{}: {} is [{}], which {} ranks cannot have cut along dim {}",
                                parts[0].file->path().string(), name, fmt::join(parts[0].shape, ", "), num_ranks, dim),
                    "the file is damaged, or of another model: copy the whole checkpoint");
  }
  const int64_t per_half = parts[0].shape[dim] / num_halves;
  for (int64_t rank = 0; rank < num_ranks; ++rank) {
    const FileTensor& part = parts[static_cast<size_t>(rank)];
    if (part.shape != parts[0].shape) {
      throw UserError(fmt::format("{}: {} is [{}], and [{}] in the first rank's file", part.file->path().string(), name,
                                  fmt::join(part.shape, ", "), fmt::join(parts[0].shape, ", ")),
                      "the files do not belong together: copy the whole checkpoint");
    }
    for (int64_t half = 0; half < num_halves; ++half) {
      Box box = Box::whole(part.shape), own = box;
      own.offset[dim] = half * per_half;
      box.extent[dim] = own.extent[dim] = per_half;
      box.offset[dim] = half * per_half * num_ranks + rank * per_half;
      whole.shards.push_back({box, sub_tensor(part, own)});
    }
  }
  return whole;
}

// States of one rank's parameters, in the order of `tensors`: key → a place for each.
using RankStates = std::map<std::string, std::vector<FileTensor>>;

FileTensor shaped(FileTensor stored, int64_t first, const std::vector<int64_t>& shape) {
  const int64_t element = bits_of(stored.dtype) / 8;
  stored.offset += first * element;
  stored.shape = shape;
  stored.strides = row_major(shape);
  stored.num_bytes = Box::whole(shape).num_elements() * element;
  return stored;
}

// distrib_optim.pt: {buffer: {dtypes: {"param", "exp_avg", "exp_avg_sq", "numel_unpadded"}}}. UserError for other
// forms.
RankStates buffer_states(const TorchArchive& archive, const std::vector<RankTensor>& tensors,
                         std::set<std::string>& unknown) {
  const PickleValue* buffer = archive.root().find(int64_t{0});
  const auto refuse = [&](const std::string& reason) {
    throw UserError(fmt::format("{}: {}; saved as torch_dist it can be read", archive.what(), reason));
  };
  if (buffer == nullptr) refuse("it has no buffer 0 (before megatron-core 0.7, or of several optimizers)");
  if (archive.root().find(int64_t{1}) != nullptr) refuse("it has several buffers, as experts over ranks do");
  const PickleValue* states = nullptr;
  buffer->for_each_entry([&](const PickleValue& /*dtypes*/, const PickleValue& value) { states = &value; });
  if (states == nullptr) refuse("its buffer is empty");
  std::vector<int64_t> begins(tensors.size());
  int64_t at = 0;
  for (size_t i = tensors.size(); i-- > 0;) {
    const int64_t elements = Box::whole(tensors[i].place.shape).num_elements();
    at = div_up(at, kBufferAlignment) * kBufferAlignment;
    begins[i] = at;
    // A damaged file's tensors can repeat one element endlessly.
    if (elements > kMostBufferElements - at) refuse("its parameters have more elements than a buffer can");
    at += elements;
  }
  RankStates found;
  states->for_each_entry([&](const PickleValue& key, const PickleValue& value) {
    const auto name = key.option_text();
    const auto stored = archive.tensor(value);
    if (!name || !stored) return;
    if (state_key(*name).empty()) {
      unknown.insert(*name);
      return;
    }
    // shaped() takes it as contiguous, so its bytes are counted.
    if (stored->shape != std::vector<int64_t>{at} || stored->num_bytes != at * bits_of(stored->dtype) / 8) {
      refuse(fmt::format("{} has [{}] elements, expected {} for these parameters in one bucket", *name,
                         fmt::join(stored->shape, ", "), at));
    }
    for (size_t i = 0; i < tensors.size(); ++i) {
      found[state_key(*name)].push_back(shaped(*stored, begins[i], tensors[i].place.shape));
    }
  });
  return found;
}

// Numbers of parameters in the optimizer's state are positions in its groups: first those with weight decay. UserError
// for groups that do not fit.
RankStates listed_states(const TorchArchive& archive, const PickleValue& optimizer,
                         const std::vector<RankTensor>& tensors, std::set<std::string>& unknown) {
  const PickleValue* inner = optimizer.find("optimizer");
  const PickleValue& torch_state = inner != nullptr ? *inner : optimizer;
  const PickleValue* groups = torch_state.find("param_groups");
  const PickleValue* states = torch_state.find("state");
  if (groups == nullptr || states == nullptr) return {};
  const auto refuse = [&](const std::string& reason) {
    throw UserError(fmt::format("{}: {}", archive.what(), reason));
  };
  std::vector<FileTensor> masters(tensors.size());
  const PickleValue* fp32 = optimizer.find("fp32_from_fp16_params");
  std::map<int64_t, size_t> tensor_of;  // by its number
  size_t next_of[2] = {0, 0};           // of those without and with decay
  for (size_t group = 0; group < groups->items.size(); ++group) {
    const PickleValue& one = *groups->items[group];
    const PickleValue* mult = one.find("wd_mult");
    const PickleValue* numbers = one.find("params");
    const bool decays = mult == nullptr || mult->number().value_or(1) != 0;
    if (numbers == nullptr) refuse("a group without parameters");
    size_t& next = next_of[decays ? 1 : 0];
    for (size_t i = 0; i < numbers->items.size(); ++i) {
      const auto is_of_group = [&](const RankTensor& tensor) {
        return (tensor.place.shape.size() > 1 && !tensor.name.ends_with(".bias")) == decays;
      };
      while (next < tensors.size() && !is_of_group(tensors[next])) ++next;
      const auto number = numbers->items[i]->whole();
      if (next >= tensors.size() || !number) refuse("its groups of parameters do not fit the model's");
      const size_t tensor = next++;
      tensor_of[*number] = tensor;
      if (fp32 == nullptr || group >= fp32->items.size() || i >= fp32->items[group]->items.size()) continue;
      if (const auto master = archive.tensor(*fp32->items[group]->items[i])) masters[tensor] = *master;
    }
  }
  RankStates found;
  states->for_each_entry([&](const PickleValue& key, const PickleValue& value) {
    const auto tensor = key.whole() ? tensor_of.find(*key.whole()) : tensor_of.end();
    if (tensor == tensor_of.end()) return;
    value.for_each_entry([&](const PickleValue& name, const PickleValue& state) {
      const auto text = name.option_text();
      const std::string ours = text ? state_key(*text) : "";
      const auto stored = archive.tensor(state);
      if (!stored || text == "step") return;
      if (ours.empty()) {
        unknown.insert(text.value_or("a state without a name"));
        return;
      }
      std::vector<FileTensor>& places = found[ours];
      places.resize(tensors.size());
      places[tensor->second] = *stored;
    });
  });
  if (fp32 != nullptr) found[std::string(kMasterKey)] = masters;
  return found;
}

class MegatronRanks {
 public:
  MegatronRanks(fs::path folder, const CanonicalModel& model, ForeignTensors& tensors)
      : folder_(std::move(folder)), model_(model), tensors_(tensors) {}

  void read() {
    sizes_ = rank_sizes(TorchArchive(*first_rank_file(folder_)));
    const int64_t per_rank = model_.config().has_experts() ? model_.config().expert_count() / sizes_.ep : 0;
    for (int64_t ep = 0; ep < sizes_.ep; ++ep) {
      std::vector<std::vector<RankFile>> stages;  // by pp, tp
      for (int64_t pp = 0; pp < sizes_.pp; ++pp) {
        std::vector<RankFile>& stage = stages.emplace_back();
        for (int64_t tp = 0; tp < sizes_.tp; ++tp) {
          stage.push_back(open_rank(rank_folder(folder_, sizes_, tp, pp, ep) / kRankFile));
        }
      }
      int64_t first_layer = 0;
      for (size_t chunk = 0; chunk < stages[0][0].chunks.size(); ++chunk) {
        for (size_t pp = 0; pp < stages.size(); ++pp) {
          int64_t count = 0;
          for (RankFile& rank : stages[pp]) {
            if (chunk >= rank.chunks.size()) {
              throw UserError(fmt::format("{} has {} model chunks, and the first rank's {}", rank.archive->what(),
                                          rank.chunks.size(), stages[0][0].chunks.size()),
                              "the files do not belong together: copy the whole checkpoint");
            }
            count = renumber(rank.chunks[chunk], first_layer, ep * per_rank);
          }
          first_layer += count;
        }
      }
      for (size_t pp = 0; pp < stages.size(); ++pp) read_stage(stages[pp], static_cast<int64_t>(pp), ep);
    }
    for (const std::string& name : unknown_) {
      leave_over(tensors_, "optimizer state that no optimizer here keeps", name);
    }
  }

 private:
  // Reads the files of a stage's tensor-parallel ranks, which have the same parameters in the same order.
  void read_stage(std::vector<RankFile>& ranks, int64_t pp, int64_t ep) {
    std::vector<std::vector<RankTensor>> parameters;
    for (RankFile& rank : ranks) {
      std::vector<RankTensor>& list = parameters.emplace_back();
      for (std::vector<RankTensor>& chunk : rank.chunks) {
        for (RankTensor& tensor : chunk) {
          if (megatron_cut(model_, tensor.name)) {
            list.push_back(std::move(tensor));
          } else if (&rank == ranks.data()) {
            const std::string_view why = unused_in_megatron(tensor.name);
            leave_over(tensors_, why.empty() ? "no parameter of this model" : why, tensor.name);
          }
        }
      }
      const bool are_same = std::equal(list.begin(), list.end(), parameters[0].begin(), parameters[0].end(),
                                       [](const RankTensor& a, const RankTensor& b) { return a.name == b.name; });
      if (!are_same) {
        throw UserError(fmt::format("{} has {} parameters, and the first rank's file {}, or others",
                                    rank.archive->what(), list.size(), parameters[0].size()),
                        "the files do not belong together: copy the whole checkpoint");
      }
    }
    std::vector<RankStates> states;
    for (size_t tp = 0; tp < ranks.size(); ++tp) {
      const fs::path buffers = rank_folder(folder_, sizes_, static_cast<int64_t>(tp), pp, ep) / kBufferFile;
      const PickleValue* optimizer = ranks[tp].archive->root().find("optimizer");
      RankStates& own = states.emplace_back();
      try {
        if (fs::exists(buffers)) {
          own = buffer_states(TorchArchive(buffers), parameters[tp], unknown_);
        } else if (optimizer != nullptr) {
          own = listed_states(*ranks[tp].archive, *optimizer, parameters[tp], unknown_);
        }
      } catch (const UserError& error) {
        // The weights can be taken without them.
        leave_over(tensors_, error.message(), "the optimizer's state");
      }
    }
    for (size_t i = 0; i < parameters[0].size(); ++i) {
      const std::string& name = parameters[0][i].name;
      // Copies: the tied table in the last stage, and what expert-parallel ranks share.
      if (!read_.insert(name).second) continue;
      std::vector<FileTensor> parts;
      for (const std::vector<RankTensor>& list : parameters) parts.push_back(list[i].place);
      add(name, std::string(kModelKey), parts);
      for (const auto& [key, places] : states[0]) {
        parts.clear();
        for (const RankStates& own : states) {
          const auto found = own.find(key);
          if (found != own.end() && found->second[i].file != nullptr) parts.push_back(found->second[i]);
        }
        if (parts.size() == ranks.size()) add(name, key, parts);
      }
    }
  }

  void add(const std::string& name, const std::string& key, std::span<const FileTensor> parts) {
    read_megatron_tensor(joined(name, parts, *megatron_cut(model_, name)), name, key, model_, tensors_);
  }

  fs::path folder_;
  const CanonicalModel& model_;
  ForeignTensors& tensors_;
  RankSizes sizes_;
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
