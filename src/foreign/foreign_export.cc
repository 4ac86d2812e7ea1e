#include "foreign/foreign_export.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "checkpoint/checkpoint_reader.h"
#include "checkpoint/pieces.h"
#include "config/record.h"
#include "core/error.h"
#include "core/file.h"
#include "core/strings.h"
#include "foreign/dcp.h"
#include "foreign/foreign_target.h"
#include "optim/piece_views.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

const ForeignTarget* const kTargets[] = {&kToTorchtitan, &kToDcp, &kToFusedDcp, &kToTorchDist};
constexpr int64_t kCopiedAtOnce = int64_t{64} << 20;
// Kept by the optimizers of all these trainers.
constexpr std::string_view kMoments[] = {"exp_avg", "exp_avg_sq"};

// Canonical tensors of a stored model, by key and name.
class StoredTensors {
 public:
  explicit StoredTensors(const StoredModel& model) {
    std::map<std::string, std::vector<PieceView>> views;
    for (const CheckpointTensor& tensor : model.state.tensors) {
      for (PieceView& view : piece_views(*tensor.placement, tensor.local, tensor.range, tensor.form)) {
        views[tensor.key].push_back(std::move(view));
      }
    }
    for (const auto& [key, of_key] : views) {
      for (Chunk& chunk : make_chunks(of_key)) {
        MEGALITH_CHECK(chunk.is_whole(), "{} {} is stored in part", key, chunk.name);
        std::string name = chunk.name;
        chunks_[key].emplace(std::move(name), std::move(chunk));
      }
    }
  }

  const std::map<std::string, std::map<std::string, Chunk>>& keys() const { return chunks_; }
  bool has(std::string_view key) const { return chunks_.contains(std::string(key)); }
  const Chunk* find(std::string_view key, const std::string& name) const {
    const auto of_key = chunks_.find(std::string(key));
    if (of_key == chunks_.end()) return nullptr;
    const auto chunk = of_key->second.find(name);
    return chunk == of_key->second.end() ? nullptr : &chunk->second;
  }

 private:
  std::map<std::string, std::map<std::string, Chunk>> chunks_;
};

void for_each_piece(const ForeignLayout& layout, const std::function<void(const ForeignPiece&)>& visit) {
  for (const ForeignLayout::Place& place : layout.places) {
    for (const Patch& patch : place.patches) for_each_piece(*place.placement, patch, visit);
  }
}

std::string first_of(const std::vector<std::string>& names) {
  return names.size() == 1 ? names[0] : fmt::format("{} and {} more", names[0], names.size() - 1);
}

// Weights that no tensor of the form holds, wholly.
void check_weights(const ForeignTarget& target, const StoredTensors& stored,
                   const std::vector<ExportedTensor>& tensors) {
  std::map<std::string, int64_t> covered;
  for (const ExportedTensor& tensor : tensors) {
    for_each_piece(tensor.layout, [&](const ForeignPiece& found) {
      covered[found.piece.name] += found.piece.canonical.num_elements();
    });
  }
  std::vector<std::string> left, missing;
  for (const auto& [name, chunk] : stored.keys().at(std::string(kModelKey))) {
    if (covered[name] != chunk.box.num_elements()) left.push_back(name);
  }
  if (!left.empty()) {
    throw UserError(fmt::format("{} has no place for {}", target.name, first_of(left)),
                    "nothing was written; adapters can be merged first: convert --merge_adapter … --save_hf …");
  }
  for (const auto& [name, count] : covered) {
    if (stored.find(kModelKey, name) == nullptr) missing.push_back(name);
  }
  throw_unless_empty("the checkpoint", missing, {}, {}, "it is of another architecture than it records");
}

// Marks tensors with states; refuses optimizers that have other ones.
void check_states(const ForeignTarget& target, const StoredModel& model, const StoredTensors& stored,
                  std::vector<ExportedTensor>& tensors) {
  std::vector<std::string> other;
  for (const auto& [key, chunks] : stored.keys()) {
    if (key != kModelKey && key != kMasterKey && std::ranges::find(kMoments, key) == std::end(kMoments))
      other.push_back(key);
  }
  const bool has_both = stored.has(kMoments[0]) && stored.has(kMoments[1]);
  if (!other.empty() || (stored.has(kMoments[0]) != stored.has(kMoments[1]))) {
    if (other.empty()) other.emplace_back(stored.has(kMoments[0]) ? kMoments[0] : kMoments[1]);
    const auto named =
        std::ranges::find(model.state.configuration, "optimizer", [](const auto& entry) { return entry.first; });
    const bool is_named = named != model.state.configuration.end();
    throw UserError(fmt::format("{} keeps AdamW's two moments, and the checkpoint's optimizer{} has {}", target.name,
                                is_named ? " " + plain_text(named->second) : "", fmt::join(other, ", ")),
                    "nothing was written; --no_save_optim leaves the optimizer's state out");
  }
  for (ExportedTensor& tensor : tensors) {
    std::vector<std::string> missing;
    size_t num_found = 0;
    for_each_piece(tensor.layout, [&](const ForeignPiece& found) {
      for (const std::string_view key : kMoments) {
        if (stored.find(key, found.piece.name) != nullptr)
          ++num_found;
        else
          missing.push_back(fmt::format("{} {}", key, found.piece.name));
      }
    });
    tensor.has_state = has_both && missing.empty();
    if (has_both && num_found > 0) throw_unless_empty("the checkpoint", missing, {}, {}, "it is damaged: use another");
  }
}

bool has_masters_of(const ExportedTensor& tensor, const StoredTensors& stored) {
  bool has_all = true;
  for_each_piece(tensor.layout, [&](const ForeignPiece& found) {
    has_all = has_all && stored.find(kMasterKey, found.piece.name) != nullptr;
  });
  return has_all;
}

// A tensor's boxes, made of the stored tensors of `key`.
void add_tensor(DcpWriter& writer, const std::vector<std::string>& names, const ForeignLayout& layout,
                std::string_view key, const StoredTensors& stored) {
  const size_t num_leading = layout.num_leading_dims();
  std::map<std::vector<int64_t>, std::vector<std::pair<const Placement*, const Patch*>>> found;
  for (const ForeignLayout::Place& place : layout.places) {
    for (const Patch& patch : place.patches) {
      const auto begin = patch.foreign.offset.begin();
      found[{begin, begin + static_cast<ptrdiff_t>(num_leading)}].emplace_back(place.placement, &patch);
    }
  }
  std::vector<Box> boxes;
  for (const auto& [leading, patches] : found) {
    Box box = Box::whole(layout.shape);
    for (size_t d = 0; d < num_leading; ++d) {
      box.offset[d] = leading[d];
      box.extent[d] = 1;
    }
    boxes.push_back(std::move(box));
  }
  const auto source = [&](const ForeignPiece& piece) -> const Chunk& {
    const Chunk* chunk = stored.find(key, piece.piece.name);
    MEGALITH_CHECK(chunk != nullptr, "{} has no {}", piece.piece.name, key);
    return *chunk;
  };
  std::optional<at::ScalarType> dtype;
  for_each_piece(layout, [&](const ForeignPiece& piece) { dtype = source(piece).dtype; });
  writer.add_tensor(names, dtype.value(), layout.shape, boxes, [&](const Box& box) {
    const at::Tensor made = at::empty(box.extent, *dtype);
    const at::Tensor view = layout.view.empty() ? made : made.view(layout.view);
    int64_t num_elements = 0;
    const std::vector<int64_t> leading(box.offset.begin(), box.offset.begin() + static_cast<ptrdiff_t>(num_leading));
    for (const auto& [placement, patch] : found.at(leading)) {
      for_each_piece(*placement, *patch, [&](const ForeignPiece& piece) {
        const Chunk& chunk = source(piece);
        MEGALITH_CHECK(chunk.dtype == *dtype, "{} {} is of another dtype than its neighbours", key, chunk.name);
        std::vector<int64_t> origin(view.dim(), 0);
        std::copy(leading.begin(), leading.end(), origin.begin());
        at::Tensor to = slice_box(view, piece.in_foreign, origin);
        // The canonical dims, in their order; extents of the others are 1.
        std::vector<int64_t> extent, strides;
        for (const size_t dim : piece.dims) {
          extent.push_back(piece.in_foreign.extent[dim]);
          strides.push_back(to.stride(static_cast<int64_t>(dim)));
        }
        to = to.as_strided(extent, strides);
        const Box& wanted = piece.piece.canonical;
        for (const PieceView& part : chunk.parts) {
          const Box common = intersect(part.piece.canonical, wanted);
          if (common.is_empty()) continue;
          // In blocks: values that are read when asked for may be a copy.
          const Chunk shared{
              .name = chunk.name, .shape = chunk.shape, .box = common, .dtype = chunk.dtype, .parts = {part}};
          for_each_block(shared, chunk.dtype, kCopiedAtOnce, [&](const Box& in, const at::Tensor& block) {
            slice_box(to, in, wanted.offset).copy_(block);
          });
          num_elements += common.num_elements();
        }
      });
    }
    MEGALITH_CHECK(num_elements == made.numel(), "{}: {} of {} elements are stored", names.front(), num_elements,
                   made.numel());
    return made;
  });
}

int64_t recorded_count(const Configuration& configuration, std::string_view name) {
  const auto found = std::ranges::find(configuration, name, [](const auto& entry) { return entry.first; });
  if (found == configuration.end() || found->second.empty()) return 0;
  return std::strtoll(found->second.c_str(), nullptr, 10);  // 0 for null
}

RunSettings settings_of(const StoredModel& model) {
  RunSettings settings;
  const OptionSet options(settings);
  const Configuration& recorded = model.state.configuration;
  for (const auto& [name, value] : recorded) {
    Option* option = options.find(name);
    if (option == nullptr) continue;
    option->set(plain_text(value), {OptionLayer::kModel, "checkpoint"});
    settings.are_recorded = settings.are_recorded || name == "lr";
  }
  const TrainState& train = model.state.train;
  settings.batch = recorded_count(recorded, "global_batch_size");
  if (settings.batch == 0) settings.batch = train.consumed_train_samples / std::max<int64_t>(train.iteration, 1);
  settings.batch = std::max<int64_t>(settings.batch, 1);
  settings.seq_length = recorded_count(recorded, "seq_length");
  settings.train_samples = recorded_count(recorded, "train_samples");
  if (settings.train_samples == 0) settings.train_samples = recorded_count(recorded, "train_iters") * settings.batch;
  settings.train_samples = std::max<int64_t>(settings.train_samples, 1);
  const auto position = train.numbers.find("schedule_samples");
  settings.schedule_samples =
      position == train.numbers.end() ? train.consumed_train_samples : static_cast<int64_t>(position->second);
  settings.next_lr = settings.learning_rate.lr;
  settings.next_weight_decay = settings.learning_rate.weight_decay;
  if (!settings.are_recorded) return settings;
  const LearningRateCurve curve(settings.learning_rate, settings.train_samples, settings.batch);
  settings.next_lr = curve.learning_rate(settings.schedule_samples);
  settings.next_weight_decay = curve.weight_decay(settings.schedule_samples);
  return settings;
}

}  // namespace

void RunSettings::visit(OptionVisitor& v) {
  learning_rate.visit(v);
  optimizer.visit(v);
}

const ForeignTarget* find_foreign_target(std::string_view word) {
  const auto found = std::ranges::find(kTargets, word, [](const ForeignTarget* target) { return target->word; });
  return found == std::end(kTargets) ? nullptr : *found;
}

fs::path save_foreign(const ForeignTarget& target, const fs::path& root, const StoredModel& model,
                      const ForeignExport& settings, Logger& log) {
  const at::NoGradGuard no_grad;
  const std::string name = target.folder_name(model.state.train.iteration);
  const fs::path folder = name.empty() ? root : root / name;
  if (fs::exists(folder) && !(settings.overwrite && is_dcp_folder(folder))) {
    throw UserError(fmt::format("save {}: it is there already{}", folder.string(),
                                settings.overwrite ? ", and holds no checkpoint of this form" : ""),
                    settings.overwrite ? "name another folder" : "replace it with --overwrite, or name another folder");
  }
  if (!kStacks.contains(model.config.model_type) || !model.config.is_causal()) {
    throw UserError(fmt::format("model_type {} has no form in {}",
                                kModelTypeWords[static_cast<size_t>(model.config.model_type)], target.name),
                    "only decoders are written: use --save_hf, or --save for a checkpoint of ours");
  }
  const CanonicalModel canonical(model.config);
  const StoredTensors stored(model);
  std::vector<ExportedTensor> tensors = target.tensors(canonical);
  check_weights(target, stored, tensors);
  const bool with_optimizer = settings.with_optimizer && stored.keys().size() > 1;
  if (with_optimizer) check_states(target, model, stored, tensors);
  const RunSettings run = settings_of(model);
  const ForeignContents contents{.model = model, .settings = run, .tensors = tensors, .with_optimizer = with_optimizer};
  AtomicDirectory made(folder, settings.overwrite);
  DcpWriter writer(made.path());
  const auto state_names = [&](const ExportedTensor& tensor, std::string_view key) {
    std::vector<std::string> names;
    for (const std::string& name : tensor.names) {
      for (std::string& of_state : target.state_names(key, name)) names.push_back(std::move(of_state));
    }
    return names;
  };
  for (const ExportedTensor& tensor : tensors) {
    std::vector<std::string> names = tensor.names;
    names.insert(names.end(), tensor.tied.begin(), tensor.tied.end());
    const bool has_master = has_masters_of(tensor, stored);
    if (tensor.has_state && target.keeps_masters && !has_master) {
      for (std::string& name : state_names(tensor, kMasterKey)) names.push_back(std::move(name));
    }
    const bool takes_master = has_master && !target.keeps_masters;
    add_tensor(writer, names, tensor.layout, takes_master ? kMasterKey : kModelKey, stored);
  }
  for (const ExportedTensor& tensor : tensors) {
    if (!tensor.has_state) continue;
    for (const std::string_view key : kMoments) {
      add_tensor(writer, state_names(tensor, key), tensor.layout, key, stored);
    }
    if (target.keeps_masters && has_masters_of(tensor, stored)) {
      add_tensor(writer, state_names(tensor, kMasterKey), tensor.layout, kMasterKey, stored);
    }
  }
  target.add_rest(contents, made.path(), writer);
  writer.finish();
  made.commit();
  if (target.finish != nullptr) target.finish(contents, root);
  log.note(
      "{}: left behind are random states, the loader's position and scales of FP8, which follow or are measured anew",
      folder.string());
  if (with_optimizer && !run.are_recorded) {
    log.note(
        "{}: the optimizer's options are not recorded, so defaults are written: lr {}, betas {} and {}, eps {}, "
        "weight_decay {}",
        folder.string(), run.next_lr, run.optimizer.adam_beta1, run.optimizer.adam_beta2, run.optimizer.adam_eps,
        run.next_weight_decay);
  }
  return folder;
}

}  // namespace megalith
