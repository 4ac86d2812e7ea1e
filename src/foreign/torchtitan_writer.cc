// Folders of torch.distributed.checkpoint to write: torchtitan's own, and one with Hugging Face's names that a loop of
// any PyTorch program loads as {"model": …, "optimizer": …}. The optimizer's state is in PyTorch's flattened form.
// Source: PyTorch, distributed/checkpoint/state_dict.py (flatten_optimizer_state_dict); torchtitan, trainer.py,
// components/{checkpoint,lr_scheduler}.py.
#include <ATen/ops/scalar_tensor.h>
#include <fmt/format.h>

#include <map>
#include <set>

#include "foreign/foreign_target.h"
#include "foreign/pickle_writer.h"
#include "foreign/torchtitan_names.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

using namespace pickled;  // NOLINT: opcodes read like words

std::string optimizer_name(std::string_view part, std::string_view parameter, std::string_view key) {
  return fmt::format("optimizer.{}.{}.{}", part, parameter, key);
}

std::vector<std::string> titan_state_names(std::string_view key, std::string_view parameter) {
  return {optimizer_name("state", parameter, key)};
}

constexpr std::string_view kModelPart = "model.";  // beside "optimizer."
std::string_view without_part(std::string_view parameter) { return parameter.substr(kModelPart.size()); }
std::vector<std::string> dcp_state_names(std::string_view key, std::string_view parameter) {
  return {optimizer_name("state", without_part(parameter), key)};
}

// by_shape: norms and biases do not decay, as in our run; else parameters are one group.
void add_optimizer(const ForeignContents& contents, DcpWriter& writer,
                   std::string_view (*parameter_of)(std::string_view), bool by_shape) {
  const RunSettings& run = contents.settings;
  std::vector<std::string_view> all, decaying, others;
  for (const ExportedTensor& tensor : contents.tensors) {
    if (!tensor.has_state) continue;
    const std::string_view parameter = parameter_of(tensor.names.front());
    const bool decays = !by_shape || (tensor.layout.shape.size() > 1 && !parameter.ends_with(".bias"));
    all.push_back(parameter);
    (decays ? decaying : others).push_back(parameter);
  }
  const auto names = [](std::string_view part, const std::vector<std::string_view>& parameters, std::string_view key) {
    std::vector<std::string> found;
    for (const std::string_view parameter : parameters) found.push_back(optimizer_name(part, parameter, key));
    return found;
  };
  const auto count = static_cast<double>(contents.model.state.train.optimizer_step);
  writer.add_tensor(names("state", all, "step"), at::scalar_tensor(count, at::kFloat));
  struct {
    const char* key;
    std::string value;
    const std::vector<std::string_view>& parameters;
  } const options[] = {
      {"lr", real(run.next_lr), all},
      {"initial_lr", real(run.learning_rate.lr), all},
      {"betas", tuple({real(run.optimizer.adam_beta1), real(run.optimizer.adam_beta2)}), all},
      {"eps", real(run.optimizer.adam_eps), all},
      {"weight_decay", real(run.next_weight_decay), decaying},
      {"weight_decay", real(0), others},
      {"amsgrad", boolean(false), all},
      {"maximize", boolean(false), all},
      {"foreach", none(), all},
      {"fused", none(), all},
      {"capturable", boolean(false), all},
      {"differentiable", boolean(false), all},
      {"decoupled_weight_decay", boolean(true), all},
  };
  for (const auto& option : options) {
    writer.add_object(names("param_groups", option.parameters, option.key), option.value);
  }
}

std::vector<ExportedTensor> titan_exports(const CanonicalModel& model) {
  std::vector<ExportedTensor> tensors;
  for (auto& [name, layout] : titan_tensors(model)) {
    ExportedTensor tensor{.names = {name}, .layout = std::move(layout)};
    const bool is_tied = !model.config().untie_embeddings_and_output_weights;
    if (is_tied && name == "tok_embeddings.weight") tensor.tied = {"output.weight"};
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

void add_rest_of_titan(const ForeignContents& contents, const fs::path&, DcpWriter& writer) {
  const TrainState& train = contents.model.state.train;
  const auto whole_name = [](std::string_view parameter) { return parameter; };
  if (contents.with_optimizer) add_optimizer(contents, writer, whole_name, /*by_shape=*/false);
  const int64_t length = contents.settings.seq_length;
  writer.add_object({"train_state.step"}, whole(train.iteration));
  writer.add_object({"train_state.ntokens_seen"}, whole(train.consumed_train_samples * length));
  // torch's LambdaLR: positions and rates; the curve is torchtitan's own.
  const std::string rate = list({real(contents.settings.next_lr)}),
                    peak = list({real(contents.settings.learning_rate.lr)});
  const std::pair<const char*, std::string> scheduler[] = {
      {"base_lrs", peak},
      {"last_epoch", whole(train.iteration)},
      {"_step_count", whole(train.iteration + 1)},
      {"_is_initial", boolean(false)},
      {"_get_lr_called_within_step", boolean(false)},
      {"_last_lr", rate},
      {"lr_lambdas", list({none()})},
      {"lr_lambdas.0", dict({})},
  };
  for (const auto& [key, value] : scheduler) writer.add_object({fmt::format("lr_scheduler.{}", key)}, value);
}

// Canonical tensors, each as its own boxes of local ones.
std::vector<ExportedTensor> hf_exports(const CanonicalModel& model) {
  std::vector<ExportedTensor> tensors;
  std::map<std::string, size_t> indices;
  for (const Placement* placement : model.placements()) {
    for (const Piece& piece : placement->pieces) {
      const auto [found, is_new] = indices.emplace(piece.name, tensors.size());
      if (is_new) {
        tensors.push_back({.names = {fmt::format("{}{}", kModelPart, piece.name)},
                           .layout = {.shape = piece.shape, .view = {}, .places = {}}});
        for (const std::string& alias : piece.aliases)
          tensors.back().tied.push_back(fmt::format("{}{}", kModelPart, alias));
      }
      Patch patch{.foreign = piece.canonical, .local = piece.local, .dims = {}};
      for (size_t d = 0; d < piece.shape.size(); ++d) patch.dims.push_back(piece.other_dim(d));
      tensors[found->second].layout.places.push_back({placement, {patch}});
    }
  }
  return tensors;
}

// The same with a layer's experts in the two tensors of transformers 5's classes.
std::vector<ExportedTensor> fused_hf_exports(const CanonicalModel& model) {
  std::vector<ExportedTensor> tensors;
  std::set<std::string> fused;
  const int64_t num_layers = model.config().num_layers + model.config().num_prediction_modules();
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    for (const char* rest : {"gate_up_proj", "down_proj"}) {
      const std::string name = fmt::format("model.layers.{}.mlp.experts.{}", layer, rest);
      ForeignLayout layout = fused_experts_layout(model, name);
      if (layout.places.empty()) continue;
      for (const ForeignLayout::Place& place : layout.places) {
        for_each_piece(*place.placement, place.patches[0], [&](const ForeignPiece& piece) {
          fused.insert(fmt::format("{}{}", kModelPart, piece.piece.name));
        });
      }
      tensors.push_back({.names = {fmt::format("{}{}", kModelPart, name)}, .layout = std::move(layout)});
    }
  }
  for (ExportedTensor& tensor : hf_exports(model)) {
    if (fused.contains(tensor.names[0])) continue;
    constexpr std::string_view kOlder = ".block_sparse_moe.";
    if (const size_t at = tensor.names[0].find(kOlder); at != std::string::npos) {
      tensor.names[0].replace(at, kOlder.size(), ".mlp.");
    }
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

void add_rest_of_dcp(const ForeignContents& contents, const fs::path&, DcpWriter& writer) {
  if (contents.with_optimizer) add_optimizer(contents, writer, without_part, /*by_shape=*/true);
  writer.add_object({"step"}, whole(contents.model.state.train.iteration));
}

}  // namespace

const ForeignTarget kToTorchtitan = {.word = "torchtitan",
                                     .name = "torchtitan's form",
                                     .folder_name = [](int64_t iteration) { return fmt::format("step-{}", iteration); },
                                     .keeps_masters = false,
                                     .state_names = titan_state_names,
                                     .tensors = titan_exports,
                                     .add_rest = add_rest_of_titan,
                                     .finish = nullptr};

const ForeignTarget kToDcp = {.word = "dcp",
                              .name = "torch.distributed.checkpoint with Hugging Face's names",
                              .folder_name = [](int64_t) { return std::string(); },
                              .keeps_masters = false,
                              .state_names = dcp_state_names,
                              .tensors = hf_exports,
                              .add_rest = add_rest_of_dcp,
                              .finish = nullptr};

const ForeignTarget kToFusedDcp = {.word = "dcp_fused",
                                   .name = "torch.distributed.checkpoint with transformers 5's names",
                                   .folder_name = [](int64_t) { return std::string(); },
                                   .keeps_masters = false,
                                   .state_names = dcp_state_names,
                                   .tensors = fused_hf_exports,
                                   .add_rest = add_rest_of_dcp,
                                   .finish = nullptr};

}  // namespace megalith
