// Megatron-LM's record of the run: args, a Namespace of its parser, whose names are ours, and counters.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "checkpoint/fused_experts.h"
#include "core/error.h"
#include "core/json.h"
#include "foreign/foreign_source.h"
#include "foreign/megatron_names.h"

namespace megalith {
namespace {

// Keys of an optimizer's state. fp32_param and param are the masters.
struct StateRow {
  std::string_view theirs, ours;
};
constexpr StateRow kStateRows[] = {{"exp_avg", "exp_avg"},       {"exp_avg_sq", "exp_avg_sq"},
                                {"fp32_param", kMasterKey},   {"param", kMasterKey},
                                {"master_param", kMasterKey}, {"momentum_buffer", "momentum_buffer"}};

// In param_groups. A schedule keeps its peak beside the current rate; groups without decay have 0.
struct HyperparameterRow {
  std::string_view ending, option;
  bool takes_most = false;
};
constexpr HyperparameterRow kHyperparameters[] = {
    {".lr", "lr", true},          {".initial_lr", "lr", true},  {".max_lr", "lr", true}, {".betas.0", "adam_beta1"},
    {".betas.1", "adam_beta2"},   {".eps", "adam_eps"},         {".weight_decay", "weight_decay", true}};

}  // namespace

std::string state_key(std::string_view theirs) {
  for (const StateRow& row : kStateRows) {
    if (row.theirs == theirs) return std::string(row.ours);
  }
  return "";
}

void leave_state(ForeignTensors& tensors, std::string_view theirs) {
  // bitsandbytes' words; torchao's are classes of its own.
  const bool is_of_eight_bits = theirs == "state1" || theirs == "state2" || theirs.starts_with("qmap") ||
                                theirs.starts_with("absmax") || theirs == "codes";
  leave_over(tensors,
             is_of_eight_bits ? "moments of 8 bits (bitsandbytes), in blocks with scales, which are not read"
                              : "optimizer state that no optimizer here keeps",
             theirs);
}

void leave_over(ForeignTensors& tensors, std::string_view reason, std::string_view name) {
  tensors.left_over[std::string(reason)].emplace_back(name);
}

void read_megatron_tensor(const ForeignTensor& tensor, std::string_view name, const std::string& key,
                          const CanonicalModel& model, ForeignTensors& tensors) {
  const ForeignLayout layout = megatron_layout(model, name, tensor.shape);
  if (layout.places.empty()) {
    const std::string_view why = unused_in_megatron(name);
    leave_over(tensors, why.empty() ? "no parameter of this model" : why, tensor.name);
    return;
  }
  TensorStore& store = tensors.stores[key];
  const bool is_there = store.find(layout.places[0].placement->pieces[0].name) != nullptr;
  if (is_there && is_second_megatron_name(model, name)) {
    return leave_over(tensors, "a second name of a tensor", tensor.name);
  }
  add_patches(store, tensor, layout);
  ++tensors.num_read;
}

bool has_canonical_form(const CanonicalModel& model, std::string_view name) {
  if (model.piece(name) != nullptr || model.piece(mixtral_name(name)) != nullptr) return true;
  for (const bool is_mixtral : {false, true}) {
    for (const std::string& matrix : matrices_of_fused_expert(name, 0, is_mixtral)) {
      if (model.piece(matrix) != nullptr) return true;
    }
  }
  return false;
}

void read_canonical_tensor(const ForeignTensor& tensor, std::string_view name, const std::string& key,
                           const CanonicalModel& model, ForeignTensors& tensors) {
  const auto check_shape = [&](const std::vector<int64_t>& expected) {
    if (tensor.shape == expected) return;
    throw UserError(fmt::format("{} is [{}] in the checkpoint, and [{}] in this model", tensor.name,
                                fmt::join(tensor.shape, ", "), fmt::join(expected, ", ")),
                    "give the architecture that it was trained with");
  };
  const Piece* piece = model.piece(name);
  if (piece == nullptr) piece = model.piece(mixtral_name(name));
  if (piece == nullptr) {
    if (const ForeignLayout layout = fused_experts_layout(model, name); !layout.places.empty()) {
      check_shape(layout.shape);
      add_patches(tensors.stores[key], tensor, layout);
      ++tensors.num_read;
      return;
    }
    return leave_over(tensors, "no parameter of this model", tensor.name);
  }
  check_shape(piece->shape);
  TensorStore& store = tensors.stores[key];
  if (store.find(piece->name) != nullptr) return leave_over(tensors, "a second copy of a tied tensor", tensor.name);
  const Placement whole = Placement::whole(piece->name, tensor.shape);
  add_patches(store, tensor, {.shape = tensor.shape, .view = {}, .places = {{&whole, {Patch::whole(tensor.shape)}}}});
  ++tensors.num_read;
}

void read_updates(const TorchArchive& archive, const PickleValue& optimizer, ForeignRecord& record) {
  std::optional<int64_t> steps;
  for_each_item(archive.pickle(), optimizer, [&](const std::string& path, const PickleValue& value) {
    if (path != "step" && !path.ends_with(".step") && !path.ends_with("common_step")) return;
    const auto number = archive.number(value);
    if (!number) return;
    const int64_t count = whole_number(*number, 0, int64_t{1} << 50, archive.what() + ": " + path);
    if (steps && *steps != count) {
      record.mixed_updates = fmt::format("{}: parameters were updated {} and {} times", archive.what(), *steps, count);
    }
    steps = std::max(steps.value_or(0), count);
  });
  if (steps) record.train.optimizer_step = *steps;
  read_hyperparameters(archive, optimizer, "", record);
}

void read_hyperparameters(const TorchArchive& archive, const PickleValue& from, const std::string& path,
                          ForeignRecord& record) {
  const auto recorded = [&](std::string_view name) {
    return std::ranges::find(record.options, name, [](const auto& option) { return option.first; });
  };
  if (recorded("clip_grad") != record.options.end()) return;  // Megatron-LM's args say them
  for_each_item(archive.pickle(), from, [&](const std::string& below, const PickleValue& value) {
    const std::string whole = path.empty() || below.empty() ? path + below : path + "." + below;
    if (whole.find("param_groups.") == std::string::npos) return;
    const auto* const row = std::ranges::find_if(
        kHyperparameters, [&](const HyperparameterRow& one) { return whole.ends_with(one.ending); });
    const auto number = row == std::end(kHyperparameters) ? std::nullopt : archive.number(value);
    if (!number) return;
    const auto found = recorded(row->option);
    if (found == record.options.end()) {
      record.options.emplace_back(row->option, fmt::format("{}", *number));
    } else if (row->takes_most && std::strtod(found->second.c_str(), nullptr) < *number) {
      found->second = fmt::format("{}", *number);
    }
  });
}

namespace {

int64_t count_in(const TorchArchive& archive, const PickleValue* value, int64_t otherwise,
                 int64_t most = int64_t{1} << 53) {
  const auto number = value == nullptr ? std::nullopt : archive.number(*value);
  return number ? whole_number(*number, 0, most, archive.what()) : otherwise;
}

constexpr int64_t kMostFactor = int64_t{1} << 31;

}  // namespace

void read_megatron_args(const TorchArchive& archive, const PickleValue& args, ForeignRecord& record) {
  std::set<std::string> given;
  const PickleValue* groups = args.find("group_query_attention");
  const bool has_groups = groups == nullptr || groups->integer != 0;
  args.for_each_entry([&](const PickleValue& key, const PickleValue& value) {
    const auto text = value.option_text();
    if (!text || !key.is(PickleValue::Kind::kText) || text->empty()) return;
    const std::string name(key.text);
    // Without the other it is 1 and has no meaning.
    if (name == "num_query_groups" && !has_groups) return;
    if (given.insert(name).second) record.options.emplace_back(name, *text);
  });
  record.train.consumed_train_samples =
      count_in(archive, args.find("consumed_train_samples"),
               record.train.iteration * count_in(archive, args.find("global_batch_size"), 0, kMostFactor));
  record.train.seed = count_in(archive, args.find("seed"), 0);
  const PickleValue* padded = args.find("padded_vocab_size");
  if (!given.contains("vocab_size") && padded != nullptr && padded->whole()) {
    record.options.emplace_back("vocab_size", *padded->option_text());
  }
}

ForeignRecord megatron_record(const TorchArchive& common) {
  const PickleValue& root = common.root();
  ForeignRecord record;
  record.train.iteration = count_in(common, root.find("iteration"), 0, kMostFactor);
  if (const PickleValue* args = root.find("args")) read_megatron_args(common, *args, record);
  const PickleValue* scheduler = root.find("opt_param_scheduler");
  if (scheduler != nullptr) {
    record.train.numbers["schedule_samples"] =
        static_cast<double>(count_in(common, scheduler->find("num_steps"), record.train.consumed_train_samples));
  }
  record.train.optimizer_step = record.train.iteration;
  const PickleValue* optimizer = root.find("optimizer");
  if (optimizer == nullptr) return record;
  read_updates(common, *optimizer, record);
  // Experts with an optimizer of their own make it two: a list, or in torch_dist {0: …, 1: …}.
  const PickleValue* first =
      optimizer->is_sequence() && !optimizer->items.empty() ? optimizer->items[0] : optimizer->find(int64_t{0});
  const PickleValue* scaler = (first != nullptr ? first : optimizer)->find("grad_scaler");
  if (scaler != nullptr) read_megatron_scaler(common, *scaler, record);
  return record;
}

void read_megatron_network(const std::vector<std::string>& names, ForeignRecord& record) {
  const std::string_view type = megatron_model_type(names);
  if (type.empty()) return;
  const auto set = [&](const std::string& option, std::string_view value) {
    std::erase_if(record.options, [&](const auto& entry) { return entry.first == option; });
    record.options.emplace_back(option, value);
  };
  set("model_type", type);
  const auto has = [&](std::string_view part) {
    return std::ranges::any_of(names, [&](const std::string& name) { return name.find(part) != std::string::npos; });
  };
  if (type != "bert") return;
  if (!has("tokentype_embeddings.")) set("num_token_types", "0");
  // A pipeline's first stage does not have the heads.
  if (has("lm_head.")) set("bert_binary_head", has("binary_head.") ? "true" : "false");
}

void read_megatron_scaler(const TorchArchive& archive, const PickleValue& scaler, ForeignRecord& record) {
  constexpr std::pair<std::string_view, const char*> kScaler[] = {{"scale", "loss_scale"},
                                                                  {"growth_tracker", "loss_scale_good_steps"},
                                                                  {"hysteresis_tracker", "loss_scale_hysteresis"}};
  for (const auto& [theirs, ours] : kScaler) {
    const PickleValue* value = scaler.find(theirs);
    const auto number = value == nullptr ? std::nullopt : archive.number(*value);
    if (number) record.train.numbers[ours] = *number;
  }
}

}  // namespace megalith
