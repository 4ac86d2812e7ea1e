#include "gguf/export.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <tuple>

#include "checkpoint/hf.h"
#include "checkpoint/pieces.h"
#include "core/error.h"
#include "core/file.h"
#include "core/on_threads.h"
#include "core/strings.h"
#include "gguf/architectures.h"
#include "gguf/model_name.h"
#include "models/hf_rows.h"
#include "models/hf_text_part.h"
#include "optim/piece_views.h"
#include "tensor_files/outline.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kBlockValues = int64_t{4} << 20;  // converted at a time

// The parts of a tensor of the file.
struct Recipe {
  GgufChange change = GgufChange::kNone;
  std::vector<const Chunk*> sources;  // one, or a layer's experts
  at::Tensor made;                    // instead: computed
};

at::Tensor whole_tensor(const Chunk& chunk) {
  MEGALITH_CHECK(chunk.is_whole(), "{} is stored in part", chunk.name);
  const PieceView& first = chunk.parts.front();
  if (chunk.parts.size() == 1 && !first.piece.is_transposed && first.tensor.sizes() == at::IntArrayRef(chunk.shape))
    return values_of(first.tensor);
  const at::Tensor whole = at::empty(chunk.shape, chunk.dtype);
  auto* out = static_cast<std::byte*>(whole.data_ptr());
  const auto bytes = static_cast<int64_t>(whole.element_size());
  for_each_block(chunk, chunk.dtype, int64_t{64} << 20, [&](const Box& box, const at::Tensor& block) {
    const auto* from = static_cast<const std::byte*>(block.const_data_ptr());
    for_each_run(chunk.shape, box, [&](int64_t in_tensor, int64_t in_box, int64_t count) {
      std::copy_n(from + in_box * bytes, count * bytes, out + in_tensor * bytes);
    });
  });
  return whole;
}

at::Tensor columns_first(const at::Tensor& tensor) { return tensor.dim() == 3 ? tensor.transpose(1, 2) : tensor; }

at::Tensor changed(const at::Tensor& tensor, GgufChange change, const ModelConfig& config) {
  switch (change) {
    case GgufChange::kNone:
    case GgufChange::kStack:
      return tensor;
    case GgufChange::kQueryRows:
      return with_adjacent_pairs(tensor, config.num_attention_heads);
    case GgufChange::kKeyRows:
      return with_adjacent_pairs(tensor, config.num_kv_heads());
    case GgufChange::kPlusOne:
      // In fp16 as the converter, which keeps that dtype.
      return (tensor.scalar_type() == at::kHalf ? tensor : tensor.to(at::kFloat)) + 1;
    case GgufChange::kTranspose:
      return tensor.dim() < 2 ? tensor : tensor.transpose(-1, -2);
    case GgufChange::kFirstHalf:
      return columns_first(tensor).narrow(1, 0, tensor.size(-1) / 2);
    case GgufChange::kSecondHalf:
      return columns_first(tensor).narrow(1, tensor.size(-1) / 2, tensor.size(-1) / 2);
    case GgufChange::kEven:
      return columns_first(tensor.slice(-1, 0, tensor.size(-1), 2));
    case GgufChange::kOdd:
      return columns_first(tensor.slice(-1, 1, tensor.size(-1), 2));
    case GgufChange::kKeyUp:
    case GgufChange::kValueUp: {
      const at::Tensor by_head =
          tensor.view({config.num_attention_heads, config.qk_head_dim + config.v_head_dim, tensor.size(-1)});
      return change == GgufChange::kKeyUp ? by_head.narrow(1, 0, config.qk_head_dim).transpose(1, 2)
                                          : by_head.narrow(1, config.qk_head_dim, config.v_head_dim);
    }
  }
  throw InternalError("a GGUF tensor without its change");
}

// The shape after a change, without data.
std::vector<int64_t> shape_of(const Recipe& recipe, const ModelConfig& config) {
  if (recipe.made.defined()) return recipe.made.sizes().vec();
  const at::Tensor empty = at::empty(recipe.sources.front()->shape, at::TensorOptions(at::kMeta));
  std::vector<int64_t> shape = changed(empty, recipe.change, config).sizes().vec();
  if (recipe.change == GgufChange::kStack) shape.insert(shape.begin(), std::ssize(recipe.sources));
  return shape;
}

// Factors by which Llama 3's rotation stretches wavelengths, in the converter's operations and dtype.
at::Tensor rope_factors(const ModelConfig& config) {
  const int64_t width = config.query_head_dim();
  const at::Tensor frequency =
      at::pow(config.rotary_base, at::arange(0, width, 2, at::kFloat) / static_cast<double>(width)).reciprocal();
  const at::Tensor wavelength = frequency.reciprocal() * (2 * M_PI);
  const auto context = static_cast<double>(config.rope_scaling_original_max_position_embeddings);
  const double low = config.rope_scaling_low_freq_factor, high = config.rope_scaling_high_freq_factor;
  const double factor = config.rope_scaling_factor;
  const at::Tensor smooth = (wavelength.reciprocal() * context - low) / (high - low);
  const at::Tensor blended = ((1 - smooth) / factor + smooth).reciprocal();
  const at::Tensor stretched = at::where(wavelength > context / low, at::full_like(wavelength, factor), blended);
  return at::where(wavelength < context / high, at::ones_like(wavelength), stretched);
}

// In the order of the source's files, in which llama.cpp's converter takes them; else by name.
std::vector<const Chunk*> in_order(const std::vector<Chunk>& chunks, const std::optional<fs::path>& source) {
  std::map<std::string, std::string> files;
  if (source) {
    const HfWeights weights = open_hf_weights(*source);
    for (const auto& [name, entry] : weights.store.entries()) {
      if (!entry.parts.empty()) files[name] = entry.parts.front().path().filename().string();
    }
  }
  std::vector<const Chunk*> order;
  for (const Chunk& chunk : chunks) order.push_back(&chunk);
  std::ranges::sort(order, {}, [&](const Chunk* chunk) { return std::tuple(files[chunk->name], chunk->name); });
  return order;
}

struct Stack {
  std::string name;
  std::map<int64_t, const Chunk*> experts;
};

// Recipes by name, in order. UserError for a tensor that the architecture has no place for.
std::vector<std::pair<std::string, Recipe>> plan(const GgufArchitecture& architecture, const ModelConfig& config,
                                                 const std::vector<const Chunk*>& chunks) {
  std::vector<std::pair<std::string, Recipe>> recipes;
  if (architecture.has_rope_freqs && config.use_rope_scaling && config.rope_scaling_type == RopeScalingType::kLlama3)
    recipes.push_back({"rope_freqs.weight", {.sources = {}, .made = rope_factors(config)}});
  std::vector<std::string> homeless;
  // A layer's stacks follow its last expert, in the order of their rows.
  std::map<int64_t, std::map<size_t, Stack>> stacks;
  for (const Chunk* chunk : chunks) {
    const std::vector<int64_t> numbers = numbers_in(chunk->name);
    // Prediction modules come after the layers.
    if (!numbers.empty() && numbers[0] >= config.num_layers) continue;
    const std::vector<GgufTarget> targets = gguf_targets(architecture, chunk->name);
    if (targets.empty()) homeless.push_back(chunk->name);
    for (const GgufTarget& target : targets) {
      if (target.change != GgufChange::kStack) {
        recipes.push_back({target.name, {.change = target.change, .sources = {chunk}, .made = {}}});
        continue;
      }
      std::map<size_t, Stack>& layer = stacks[numbers[0]];
      Stack& stack = layer[target.row];
      stack.name = target.name;
      stack.experts[numbers.at(1)] = chunk;
      const auto is_full = [&](const auto& row) { return std::ssize(row.second.experts) == config.expert_count(); };
      if (layer.size() < 3 || !std::ranges::all_of(layer, is_full)) continue;
      for (const auto& [row, full] : layer) {
        Recipe recipe{.change = GgufChange::kStack, .sources = {}, .made = {}};
        for (const auto& [expert, source] : full.experts) recipe.sources.push_back(source);
        recipes.push_back({full.name, std::move(recipe)});
      }
    }
  }
  if (homeless.empty()) return recipes;
  const size_t shown = std::min<size_t>(homeless.size(), 3);
  throw UserError(fmt::format("GGUF: llama.cpp's {} has no place for {}{}", architecture.name,
                              fmt::join(homeless.begin(), homeless.begin() + static_cast<int64_t>(shown), ", "),
                              homeless.size() > shown ? fmt::format(" and {} more", homeless.size() - shown) : ""),
                  "it has no model of this shape; --save_hf keeps it");
}

GgufValue value_of(const GgufKeyRow& row, const Json& value) {
  const std::string what = fmt::format("config.json: {}", row.from.empty() ? row.key : row.from);
  switch (row.kind) {
    case GgufKind::kUint:
      return static_cast<uint32_t>(whole_number(json_as<double>(value, what), 0, UINT32_MAX, what));
    case GgufKind::kFloat:
      return static_cast<float>(json_as<double>(value, what));
    case GgufKind::kBool:
      return json_as<bool>(value, what);
    case GgufKind::kText:
      return json_as<std::string>(value, what);
    case GgufKind::kBools: {
      std::vector<bool> values;
      for (const Json& item : value) values.push_back(json_as<bool>(item, what));
      return values;
    }
  }
  throw InternalError("a GGUF key without a kind");
}

// given: the loaded folder's own config.json, else null
void set_rows(const GgufArchitecture& architecture, std::span<const GgufKeyRow> rows, const Json& config,
              const Json& given, GgufKeys& keys) {
  for (const GgufKeyRow& row : rows) {
    const auto is_set = [&](const Json& file) {
      const auto found = file.find(row.from);
      return found != file.end() && !found->is_null();
    };
    if (row.only_if_given && !given.is_null() && !is_set(given)) continue;
    if (row.value == nullptr && !is_set(config)) continue;
    const Json value = row.value != nullptr ? row.value(config) : config[std::string(row.from)];
    if (!value.is_null()) keys.set(fmt::format("{}.{}", architecture.name, row.key), value_of(row, value));
  }
}

// The folder's own file; of a model with images, its language model's part.
Json given_config(const fs::path& folder) {
  const fs::path file = folder / kHfConfigFile;
  Json json = load_json(file);
  if (const HfTextPart* part = find_hf_text_part(json)) json = text_config_of(*part, json, file.string());
  return json;
}

class Writer {
 public:
  Writer(const fs::path& file, const ModelConfig& config, Progress* progress)
      : file_(file), config_(config), progress_(progress) {}

  void append(const std::string& header) { file_.append(std::string_view(header)); }

  void append(const GgufTensorInfo& info, const Recipe& recipe) {
    const int64_t begin = file_.size();
    if (recipe.made.defined()) append_values(recipe.made, info.type);
    for (const Chunk* source : recipe.sources)
      append_values(changed(whole_tensor(*source), recipe.change, config_), info.type);
    MEGALITH_CHECK(file_.size() - begin == info.num_bytes(), "{} has {} of {} bytes", info.name, file_.size() - begin,
                   info.num_bytes());
    file_.append(std::string_view(std::string(static_cast<size_t>(gguf_padding(info.num_bytes())), '\0')));
  }

  void commit() { file_.commit(); }

 private:
  // Rows in blocks, each by one thread: a block of values never spans rows.
  void append_values(const at::Tensor& values, GgufType type) {
    if (values.dim() > 2) {
      for (int64_t i = 0; i < values.size(0); ++i) append_values(values[i], type);
      return;
    }
    const at::Tensor rows = values.dim() == 2 ? values : values.reshape({1, -1});
    const int64_t columns = rows.size(1), at_once = std::max<int64_t>(kBlockValues / std::max<int64_t>(columns, 1), 1);
    const int64_t row_bytes = div_exact(columns, block_size(type)) * block_bytes(type);
    for (int64_t begin = 0; begin < rows.size(0); begin += at_once) {
      const int64_t count = std::min(at_once, rows.size(0) - begin);
      const at::Tensor block = rows.narrow(0, begin, count).to(at::kFloat).contiguous();
      bytes_.resize(static_cast<size_t>(count * row_bytes));
      const std::span<const float> all(block.const_data_ptr<float>(), static_cast<size_t>(block.numel()));
      const auto threads = static_cast<int64_t>(at::get_num_threads()), share = div_up(count, threads);
      for_each_on_threads(static_cast<size_t>(div_up(count, share)), static_cast<size_t>(threads), [&](size_t part) {
        const int64_t first = static_cast<int64_t>(part) * share, here = std::min(share, count - first);
        quantize(type, all.subspan(static_cast<size_t>(first * columns), static_cast<size_t>(here * columns)),
                 std::span(bytes_).subspan(static_cast<size_t>(first * row_bytes),
                                           static_cast<size_t>(here * row_bytes)));
      });
      file_.append(std::span<const std::byte>(bytes_));
      if (progress_ != nullptr) progress_->advance(static_cast<int64_t>(bytes_.size()));
    }
  }

  AtomicFile file_;
  const ModelConfig& config_;
  Progress* progress_;
  std::vector<std::byte> bytes_;
};

void check_space(const fs::path& file, int64_t num_bytes) {
  const int64_t available = free_disk_bytes(file);
  if (available >= num_bytes) return;
  throw UserError(fmt::format("GGUF: {} needs {}, and {} are free there", file.string(), format_bytes(num_bytes),
                              format_bytes(available)),
                  "free space, choose another --save, or a smaller --dtype");
}

}  // namespace

at::Tensor with_adjacent_pairs(const at::Tensor& rows, int64_t heads) {
  std::vector<int64_t> split = {heads, 2, div_exact(rows.size(0), 2 * heads)};
  split.insert(split.end(), rows.sizes().begin() + 1, rows.sizes().end());
  return rows.reshape(split).transpose(1, 2).reshape(rows.sizes());
}

void save_gguf(const fs::path& file, std::span<const CheckpointTensor> tensors, const ModelFamily& family,
               const ModelConfig& model, const GgufExport& settings) {
  const GgufArchitecture& architecture = gguf_architecture(family);
  std::vector<std::string> notes;
  const int64_t window_period = check_gguf_limits(architecture, model, notes);
  ModelConfig config = model;
  config.mtp_num_layers.reset();
  std::vector<PieceView> views;
  for (const CheckpointTensor& tensor : tensors) {
    for (PieceView& view : piece_views(*tensor.placement, tensor.local, tensor.range)) views.push_back(std::move(view));
  }
  const std::vector<Chunk> chunks = make_chunks(views);
  const auto planned = plan(architecture, config, in_order(chunks, settings.source));
  std::map<std::string, const Recipe*> recipes;
  std::vector<GgufTensorInfo> infos;
  for (const auto& [name, recipe] : planned) {
    recipes[name] = &recipe;
    infos.push_back({.name = name, .shape = shape_of(recipe, config)});
  }

  GgufKeys keys;
  keys.set("general.architecture", std::string(architecture.name));
  set_gguf_model_name(settings.name, settings.source, infos, keys);
  const Json hf_config = make_hf_config(family, config, at::kFloat);
  const Json given = settings.source ? given_config(*settings.source) : Json(nullptr);
  const int64_t given_modules =
      given.is_null() ? 0 : json_get_or<int64_t>(given, "num_nextn_predict_layers", 0, kHfConfigFile);
  if (model.num_prediction_modules() > 0 || given_modules > 0)
    notes.emplace_back("GGUF: the prediction modules are left out");
  for (const std::span<const GgufKeyRow> rows : architecture.keys) {
    set_rows(architecture, rows, hf_config, given, keys);
  }
  keys.set("general.file_type", static_cast<uint32_t>(settings.type));
  set_rows(architecture, architecture.more_keys, hf_config, given, keys);
  if (window_period > 0) {
    keys.set(fmt::format("{}.attention.sliding_window_pattern", architecture.name),
             static_cast<uint32_t>(window_period));
  }
  keys.set("general.quantization_version", kGgufQuantizationVersion);
  if (settings.tokenizer) {
    Json with_ids = settings.source ? given : hf_config;
    with_ids["vocab_size"] = hf_config["vocab_size"];
    if (!settings.source && settings.pad_token_id) with_ids["pad_token_id"] = *settings.pad_token_id;
    set_gguf_vocabulary(architecture, *settings.tokenizer, with_ids, keys);
  } else {
    keys.set("tokenizer.ggml.model", "none");
    keys.set(fmt::format("{}.vocab_size", architecture.name), static_cast<uint32_t>(*config.vocab_size));
  }
  choose_gguf_types(settings.type, architecture.name, config, infos);
  if (is_k_quant(settings.type)) {
    for (const char* key : {"general.quantization_version", "general.file_type"}) keys.move_to_end(key);
  }

  const std::string header = gguf_header(keys, infos);
  int64_t num_bytes = 0;
  for (const GgufTensorInfo& info : infos) num_bytes += info.num_bytes() + gguf_padding(info.num_bytes());
  check_space(file, num_bytes + static_cast<int64_t>(header.size()));
  std::unique_ptr<Progress> progress;
  if (settings.log != nullptr) {
    for (const std::string& note : notes) settings.log->note("{}", note);
    progress = std::make_unique<Progress>(*settings.log, fmt::format("writing {}", file.string()), num_bytes, "bytes",
                                          settings.progress);
  }
  if (file.has_parent_path()) make_directories(file.parent_path());
  Writer writer(file, config, progress.get());
  writer.append(header);
  for (const GgufTensorInfo& info : infos) writer.append(info, *recipes.at(info.name));
  writer.commit();
  if (progress) progress->finish();
}

}  // namespace megalith
