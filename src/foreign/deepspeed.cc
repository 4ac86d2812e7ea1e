// DeepSpeed's folders of data-parallel ranks (ZeRO 1, 2, 3): global_stepN, named in the file `latest`, has a file of
// model states, and one of optimizer states a rank. The optimizer's weights and moments are fp32 vectors:
//
//   ZeRO 1, 2  a vector for each group of parameters, one after another in the order of param_shapes, cut into equal
//              parts for the ranks; the last part may lack its padding, and parameters may be padded
//   ZeRO 3     a vector for each rank, in as many tensors as there are sub-groups, with the rank's part of each
//              parameter: ceil(elements / ranks) of them, padded at the end
//
// A universal checkpoint, which ds_to_universal.py makes of these, has in its folder `zero` one for each parameter,
// of its name: whole tensors in fp32.pt, exp_avg.pt and exp_avg_sq.pt.
//
// Source: DeepSpeed 0.19, runtime/engine.py, runtime/zero/{stage_1_and_2,stage3}.py, utils/zero_to_fp32.py,
// checkpoint/ds_to_universal.py.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "core/error.h"
#include "core/file.h"
#include "core/folder.h"
#include "core/json.h"
#include "foreign/foreign_source.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

const char* const kModelFiles[] = {"mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_model_states.pt"};
const char* const kCopyRemedy = "the files do not belong together, or some are missing: copy the whole checkpoint";
constexpr int64_t kMostRanks = 100'000, kMostElements = int64_t{1} << 50;

std::optional<fs::path> model_file(const fs::path& folder) {
  for (const char* name : kModelFiles) {
    if (fs::exists(folder / name)) return folder / name;
  }
  return std::nullopt;
}

bool is_deepspeed(const fs::path& folder) {
  if (model_file(folder)) return true;
  if (!fs::exists(folder / "latest")) return false;
  const std::vector<std::string> names = names_in(folder);
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) { return model_file(folder / name); });
}

// The folder of the files.
fs::path states_folder(const fs::path& folder) {
  if (model_file(folder)) return folder;
  const std::string text = read_file(folder / "latest");
  const fs::path tag = text.substr(0, text.find_first_of(" \n\r\t"));
  if (tag.empty() || tag.filename() != tag || !model_file(folder / tag)) {
    throw UserError(fmt::format("{} names '{}', where no mp_rank_00_model_states.pt is", (folder / "latest").string(),
                                text.substr(0, 40)),
                    "write the name of a folder of states into it, or give that folder to --load");
  }
  return folder / tag;
}

int64_t count_of(const TorchArchive& archive, const PickleValue& from, std::string_view name, int64_t otherwise,
                 int64_t most = int64_t{1} << 50) {
  const PickleValue* value = from.find(name);
  const auto number = value == nullptr ? std::nullopt : archive.number(*value);
  return number ? whole_number(*number, 0, most, fmt::format("{}: {}", archive.what(), name)) : otherwise;
}

const PickleValue& member(const TorchArchive& archive, const PickleValue& from, std::string_view name) {
  const PickleValue* value = from.find(name);
  if (value == nullptr) throw UserError(fmt::format("{}: {} is missing", archive.what(), name), kCopyRemedy);
  return *value;
}

std::optional<fs::path> rank_file(const fs::path& folder, int64_t rank) {
  for (const char* prefix : {"", "bf16_", "fp16_"}) {
    fs::path path = folder / fmt::format("{}zero_pp_rank_{}_mp_rank_00_optim_states.pt", prefix, rank);
    if (fs::exists(path)) return path;
  }
  return std::nullopt;
}

// A parameter's place in its group's vector, in the order of the file.
struct FlatParameter {
  std::string name;
  std::vector<int64_t> shape;
  int64_t elements = 1;
  size_t group = 0;
  int64_t begin = 0;  // in its group
};

std::vector<FlatParameter> flat_parameters(const TorchArchive& model, const PickleValue* paddings) {
  std::vector<FlatParameter> all;
  const PickleValue& groups = member(model, model.root(), "param_shapes");
  for (size_t group = 0; group < groups.items.size(); ++group) {
    const bool has_paddings = paddings != nullptr && group < paddings->items.size();
    const PickleValue* of_group = has_paddings ? paddings->items[group] : nullptr;
    int64_t at = 0;
    size_t place = 0;
    groups.items[group]->for_each_entry([&](const PickleValue& key, const PickleValue& value) {
      FlatParameter one{.name = key.option_text().value_or(""), .shape = {}, .group = group, .begin = at};
      const auto sizes = value.items.size() <= kMostDims ? value.whole_numbers() : std::nullopt;
      bool fits = sizes.has_value();
      for (const int64_t size : sizes.value_or(std::vector<int64_t>{})) {
        fits = fits && size >= 0 && !__builtin_mul_overflow(one.elements, size, &one.elements);
      }
      const bool is_padded = of_group != nullptr && place < of_group->items.size();
      const int64_t padding = is_padded ? of_group->items[place]->whole().value_or(-1) : 0;
      fits = fits && padding >= 0 && one.elements <= kMostElements && padding <= kMostElements - one.elements &&
             at <= kMostElements - one.elements - padding;
      if (!fits) throw UserError(fmt::format("{}: the shape of {} cannot be", model.what(), one.name), kCopyRemedy);
      one.shape = *sizes;
      at += one.elements + padding;
      ++place;
      all.push_back(std::move(one));
    });
  }
  return all;
}

// Adds elements [from, from + count) of a vector, which `runs` make, as those of a parameter from `at` on.
void take_run(const std::vector<FileTensor>& runs, int64_t from, int64_t count, int64_t at, ForeignTensor& tensor) {
  int64_t begin = 0;
  for (const FileTensor& run : runs) {
    const int64_t first = std::max(from, begin), last = std::min(from + count, begin + run.shape[0]);
    if (first < last) {
      const FileTensor part = sub_tensor(run, {{first - begin}, {last - first}});
      for (ForeignTensor::Shard& shard : shards_of_run(tensor.shape, at + first - from, part)) {
        tensor.shards.push_back(std::move(shard));
      }
    }
    begin += run.shape[0];
  }
}

class ZeroStates {
 public:
  ZeroStates(const fs::path& folder, const TorchArchive& model) {
    const int64_t world = count_of(model, model.root(), "dp_world_size", 1, kMostRanks);
    if (world == 0) throw UserError(fmt::format("{}: dp_world_size is 0", model.what()), kCopyRemedy);
    for (int64_t rank = 0; rank < world; ++rank) {
      const auto path = rank_file(folder, rank);
      if (!path) {
        throw UserError(
            fmt::format("{}: the optimizer states of rank {} of {} are missing", folder.string(), rank, world),
            kCopyRemedy);
      }
      ranks_.push_back(std::make_unique<TorchArchive>(*path));
    }
    const PickleValue& first = states(0);
    is_partitioned_ = first.find("fp32_flat_groups") != nullptr;
    if (first.find("ds_zero_partition_groups") != nullptr) {
      throw UserError(fmt::format("{}: parameters are divided over other groups of ranks than all", ranks_[0]->what()),
                      "save it with DeepSpeed's zero_to_fp32.py, and give its folder to --load_hf");
    }
    parameters_ = flat_parameters(model, is_partitioned_ ? nullptr : first.find("param_alignment_paddings"));
    for (size_t rank = 0; rank < ranks_.size(); ++rank) read_rank(rank);
  }

  bool is_partitioned() const { return is_partitioned_; }
  int64_t num_ranks() const { return std::ssize(ranks_); }
  const std::set<std::string>& unknown() const { return unknown_; }

  // Whole parameters of a key's vectors.
  void read(const std::string& key, const std::string& as, const CanonicalModel& model, ForeignTensors& tensors) const {
    const auto found = vectors_.find(key);
    if (found == vectors_.end()) return;
    const auto num_ranks = static_cast<int64_t>(ranks_.size());
    int64_t at = 0;  // in each rank's vector
    for (const FlatParameter& one : parameters_) {
      ForeignTensor tensor{.name = key + " of " + one.name, .shape = one.shape, .shards = {}};
      if (is_partitioned_) {
        const int64_t part = (one.elements + num_ranks - 1) / num_ranks;
        for (int64_t rank = 0; rank < num_ranks; ++rank) {
          const int64_t begin = rank * part, count = std::min(part, one.elements - begin);
          if (count > 0) take_run(found->second[static_cast<size_t>(rank)], at, count, begin, tensor);
        }
        at += part;
      } else if (one.group < found->second.size()) {
        take_run(found->second[one.group], one.begin, one.elements, 0, tensor);
      }
      read_canonical_tensor(tensor, one.name, as, model, tensors);
    }
  }

 private:
  const PickleValue& states(size_t rank) const {
    return member(*ranks_[rank], ranks_[rank]->root(), "optimizer_state_dict");
  }

  void read_rank(size_t rank) {
    const TorchArchive& archive = *ranks_[rank];
    const PickleValue& own = states(rank);
    const PickleValue& masters =
        member(archive, own, is_partitioned_ ? "fp32_flat_groups" : "single_partition_of_fp32_groups");
    for (size_t i = 0; i < masters.items.size(); ++i) add(rank, i, std::string(kMasterKey), *masters.items[i]);
    const PickleValue& torch_state =
        member(archive, own, is_partitioned_ ? "optimizer_state_dict" : "base_optimizer_state");
    const PickleValue* by_number = torch_state.find("state");
    if (by_number == nullptr) return;
    for (size_t i = 0; i < masters.items.size(); ++i) {
      const PickleValue* state = by_number->find(static_cast<int64_t>(i));
      if (state == nullptr) continue;
      state->for_each_entry([&](const PickleValue& name, const PickleValue& value) {
        const std::string theirs = name.option_text().value_or("");
        const std::string ours = state_key(theirs);
        if (!ours.empty()) return add(rank, i, ours, value);
        if (theirs != "step" && archive.tensor(value)) unknown_.insert(theirs);
      });
    }
  }

  void add(size_t rank, size_t group, const std::string& key, const PickleValue& value) {
    const auto stored = ranks_[rank]->tensor(value);
    const bool is_vector = stored && stored->shape.size() == 1 && (stored->shape[0] <= 1 || stored->strides[0] == 1);
    if (!is_vector) {
      throw UserError(fmt::format("{}: {} of group {} is no vector", ranks_[rank]->what(), key, group), kCopyRemedy);
    }
    std::vector<std::vector<FileTensor>>& vectors = vectors_[key];
    const size_t vector = is_partitioned_ ? rank : group;
    if (vectors.size() <= vector) vectors.resize(vector + 1);
    vectors[vector].push_back(*stored);
  }

  std::vector<std::unique_ptr<TorchArchive>> ranks_;
  bool is_partitioned_ = false;
  std::vector<FlatParameter> parameters_;
  // By key: the vectors of groups (ZeRO 1, 2) or of ranks (ZeRO 3).
  std::map<std::string, std::vector<std::vector<FileTensor>>> vectors_;
  std::set<std::string> unknown_;
};

// ZeRO 3's parameters that are not trained: each rank's part of them is with its model's state.
void read_frozen(const fs::path& folder, const TorchArchive& first, int64_t num_ranks, const CanonicalModel& model,
                 ForeignTensors& tensors) {
  const PickleValue* shapes = first.root().find("frozen_param_shapes");
  if (shapes == nullptr || shapes->is(PickleValue::Kind::kNone)) return;
  std::vector<std::unique_ptr<TorchArchive>> ranks;
  for (int64_t rank = 0; rank < num_ranks; ++rank) {
    const fs::path path = folder / fmt::format("zero_pp_rank_{}_mp_rank_00_model_states.pt", rank);
    if (!fs::exists(path)) throw UserError(fmt::format("{} is missing", path.string()), kCopyRemedy);
    ranks.push_back(std::make_unique<TorchArchive>(path));
  }
  shapes->for_each_entry([&](const PickleValue& key, const PickleValue& value) {
    const std::string name = key.option_text().value_or("");
    const auto sizes = value.items.size() <= kMostDims ? value.whole_numbers() : std::nullopt;
    const Piece* piece = model.piece(name);
    if (piece == nullptr) return leave_over(tensors, "no parameter of this model", name);
    ForeignTensor tensor{.name = name, .shape = sizes.value_or(std::vector<int64_t>{}), .shards = {}};
    if (tensor.shape == piece->shape) {  // else refused below, with both
      const int64_t elements = Box::whole(tensor.shape).num_elements(), part = div_up(elements, num_ranks);
      for (int64_t rank = 0; rank < num_ranks; ++rank) {
        const TorchArchive& archive = *ranks[static_cast<size_t>(rank)];
        const PickleValue& fragments = member(archive, archive.root(), "frozen_param_fragments");
        const auto stored = archive.tensor(member(archive, fragments, name));
        const int64_t begin = rank * part, count = std::min(part, elements - begin);
        const bool fits = stored && stored->shape.size() == 1 && stored->shape[0] >= count &&
                          (stored->shape[0] <= 1 || stored->strides[0] == 1);
        if (!fits) throw UserError(fmt::format("{}: the part of {} does not fit", archive.what(), name), kCopyRemedy);
        if (count > 0) take_run({*stored}, 0, count, begin, tensor);
      }
    }
    read_canonical_tensor(tensor, name, std::string(kModelKey), model, tensors);
  });
}

constexpr const char* kUniversal = "zero";

bool is_universal(const fs::path& states) { return fs::is_directory(states / kUniversal); }

// The weights are fp32.pt's where the model's state has none (ZeRO 3).
void read_universal(const fs::path& states, bool has_weights, const CanonicalModel& model, ForeignTensors& tensors) {
  const std::pair<const char*, std::string> files[] = {{"fp32.pt", std::string(has_weights ? kMasterKey : kModelKey)},
                                                       {"exp_avg.pt", "exp_avg"},
                                                       {"exp_avg_sq.pt", "exp_avg_sq"}};
  for (const std::string& name : names_in(states / kUniversal)) {
    if (!fs::is_directory(states / kUniversal / name)) continue;
    for (const auto& [file, key] : files) {
      const fs::path path = states / kUniversal / name / file;
      if (!fs::exists(path)) continue;
      const TorchArchive archive(path);
      const PickleValue* value = archive.root().find("param");
      const auto stored = archive.tensor(value == nullptr ? archive.root() : *value);
      if (!stored) throw UserError(fmt::format("{} holds no tensor", path.string()), kCopyRemedy);
      const ForeignTensor whole{.name = fmt::format("{} of {}", file, name),
                                .shape = stored->shape,
                                .shards = {{Box::whole(stored->shape), *stored}}};
      read_canonical_tensor(whole, name, key, model, tensors);
    }
  }
}

ForeignRecord record_deepspeed(const fs::path& folder) {
  const fs::path states = states_folder(folder);
  const TorchArchive model(*model_file(states));
  ForeignRecord record;
  for (const fs::path& beside : {folder, states.parent_path()}) {
    if (!record.says_architecture()) read_trainer_record(beside, record);
  }
  const PickleValue& root = model.root();
  record.train.iteration = count_of(model, root, "global_steps", 0, int64_t{1} << 31);
  record.train.skipped_iterations = std::min(count_of(model, root, "skipped_steps", 0), record.train.iteration);
  record.train.consumed_train_samples = count_of(model, root, "global_samples", kUnknownSamples);
  record.train.optimizer_step = record.train.iteration - record.train.skipped_iterations;
  if (const fs::path universal = states / kUniversal / "optimizer_state.pt"; fs::exists(universal)) {
    const TorchArchive archive(universal);
    read_updates(archive, archive.root(), record);
  }
  const auto path = rank_file(states, 0);
  if (!path) return record;
  const TorchArchive first(*path);
  const PickleValue& own = member(first, first.root(), "optimizer_state_dict");
  read_updates(first, own, record);
  const PickleValue* scaler = own.find("loss_scaler");
  if (scaler == nullptr || scaler->find("scale_window") == nullptr) return record;  // a fixed one
  const int64_t window = std::max<int64_t>(count_of(first, *scaler, "scale_window", 1), 1);
  const PickleValue* overflow = scaler->find("last_overflow_iter");
  const int64_t last = overflow == nullptr ? -1 : overflow->whole().value_or(-1);
  const PickleValue* scale = scaler->find("cur_scale");
  if (const auto number = scale == nullptr ? std::nullopt : first.number(*scale)) {
    record.train.numbers["loss_scale"] = *number;
    const int64_t good = count_of(first, *scaler, "cur_iter", 0) - 1 - std::max<int64_t>(last, -1);
    record.train.numbers["loss_scale_good_steps"] = static_cast<double>(std::max<int64_t>(good, 0) % window);
    record.train.numbers["loss_scale_hysteresis"] = static_cast<double>(count_of(first, *scaler, "cur_hysteresis", 1));
  }
  return record;
}

void read_deepspeed(const fs::path& folder, const CanonicalModel& model, ForeignTensors& tensors) {
  const fs::path states = states_folder(folder);
  for (const std::string& name : names_in(states)) {
    const bool is_other = name.starts_with("layer_") || name.starts_with("expp_rank_") ||
                          (name.starts_with("mp_rank_") && name != kModelFiles[0]);
    if (!is_other) continue;
    throw UserError(fmt::format("{} holds {}: a model divided over tensor-, pipeline- or expert-parallel ranks",
                                states.string(), name),
                    "only data parallelism (ZeRO 1, 2, 3) is read: save it as a Hugging Face model, for --load_hf");
  }
  const TorchArchive file(*model_file(states));
  if (!rank_file(states, 0) && !is_universal(states)) {
    const PickleValue* optimizer = file.root().find("optimizer");
    const bool has_own = optimizer != nullptr && !optimizer->is(PickleValue::Kind::kNone);
    if (has_own) leave_over(tensors, "an optimizer without ZeRO, whose parameters have no names", "optimizer");
  }
  std::optional<ZeroStates> zero;
  if (rank_file(states, 0) && !is_universal(states)) zero.emplace(states, file);
  const bool is_partitioned = zero && zero->is_partitioned();
  const PickleValue* module = file.root().find("module");
  if (!is_partitioned && module != nullptr) {
    module->for_each_entry([&](const PickleValue& key, const PickleValue& value) {
      const auto stored = file.tensor(value);
      const std::string name = key.option_text().value_or("");
      if (!stored) return leave_over(tensors, "no tensor", name);
      if (is_universal(states) && stored->num_bytes == 0) return;  // ZeRO 3's
      const ForeignTensor whole{.name = name, .shape = stored->shape, .shards = {{Box::whole(stored->shape), *stored}}};
      read_canonical_tensor(whole, name, std::string(kModelKey), model, tensors);
    });
  }
  if (is_universal(states)) {
    const bool has_weights = !tensors.stores[std::string(kModelKey)].entries().empty();
    return read_universal(states, has_weights, model, tensors);
  }
  if (!zero) return;
  if (is_partitioned) read_frozen(states, file, zero->num_ranks(), model, tensors);
  // ZeRO 3 keeps the weights only here.
  zero->read(std::string(kMasterKey), std::string(is_partitioned ? kModelKey : kMasterKey), model, tensors);
  for (const char* key : {"exp_avg", "exp_avg_sq", "momentum_buffer"}) zero->read(key, key, model, tensors);
  for (const std::string& name : zero->unknown()) {
    leave_over(tensors, "optimizer state that no optimizer here keeps", name);
  }
}

}  // namespace

const ForeignSource kDeepSpeed = {.kind = ForeignKind::kDeepSpeed,
                                  .name = "DeepSpeed's ZeRO",
                                  .is_here = is_deepspeed,
                                  .record = record_deepspeed,
                                  .read = read_deepspeed};

}  // namespace megalith
