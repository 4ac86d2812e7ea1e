#include "kinds/flow/flux_encoders.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "checkpoint/adapter_base.h"
#include "checkpoint/checkpoint_reader.h"
#include "checkpoint/load_store.h"
#include "core/error.h"
#include "core/json.h"
#include "core/strings.h"
#include "device/transfer.h"
#include "models/autoencoder.h"
#include "models/clip_text.h"
#include "models/encoder_decoder.h"
#include "models/families.h"
#include "models/hf_rows.h"
#include "models/states_units.h"
#include "tokenizer/tokenizer.h"

namespace megalith {

namespace fs = std::filesystem;

struct FluxEncoders::Parts {
  FluxEncoderOptions options;
  Logger* log = nullptr;
  Groups groups = Groups::single();
  std::unique_ptr<Autoencoder> autoencoder;
  std::unique_ptr<ClipText> clip;
  std::unique_ptr<Model> t5;
  std::unique_ptr<Tokenizer> clip_tokenizer, t5_tokenizer;
  std::string vae_checksum, t5_checksum, clip_checksum;
};

namespace {

constexpr const char* kAutoencoderFile = "diffusion_pytorch_model.safetensors";
constexpr const char* kSingleAutoencoderFile = "ae.safetensors";

struct EncoderPaths {
  fs::path vae;  // a folder or a file
  fs::path t5, t5_tokenizer, clip, clip_tokenizer;
};

// Collects independent errors of several parts.
class Findings {
 public:
  template <typename Check>
  void gather(const Check& check) {
    try {
      check();
    } catch (const UserErrors& several) {
      errors_.insert(errors_.end(), several.errors().begin(), several.errors().end());
    } catch (const UserError& one) {
      errors_.push_back(one);
    }
  }
  void add(std::string message, std::string remedy) { errors_.emplace_back(std::move(message), std::move(remedy)); }
  void throw_if_any() {
    if (errors_.size() == 1) throw errors_.front();
    if (!errors_.empty()) throw UserErrors(std::move(errors_));
  }

 private:
  std::vector<UserError> errors_;
};

bool has_tokenizer(const fs::path& folder) {
  return fs::exists(folder / "tokenizer.json") || fs::exists(folder / "vocab.json") ||
         fs::exists(folder / "spiece.model");
}

std::string fetch_remedy(const std::string& option) {
  return fmt::format(
      "name its folder with --{}.path, or fetch the whole of a FLUX folder: megalith fetch "
      "black-forest-labs/FLUX.1-dev\n  accept its licence on https://huggingface.co/black-forest-labs/"
      "FLUX.1-dev first, and put a token of that account into HF_TOKEN",
      option);
}

EncoderPaths find_paths(const FluxEncoderOptions& options, Findings& findings) {
  const fs::path folder = options.folder;
  EncoderPaths paths;
  // A part's own folder, or the FLUX folder's.
  const auto find = [&](const std::optional<std::string>& own, const char* option, const char* what, const char* part) {
    const fs::path path = own ? fs::path(*own) : folder / part;
    if (fs::exists(path)) return path;
    if (own) {
      findings.add(fmt::format("{}.path {}: it does not exist", option, *own),
                   fmt::format("give a folder of {}", what));
    } else if (folder.empty()) {
      findings.add(fmt::format("{} is not named", what), fetch_remedy(option));
    } else {
      findings.add(fmt::format("{} has no {}, which is {}", folder.string(), part, what), fetch_remedy(option));
    }
    return fs::path();
  };
  const bool has_single =
      !options.vae && !folder.empty() && !fs::exists(folder / "vae") && fs::exists(folder / kSingleAutoencoderFile);
  paths.vae = has_single ? folder / kSingleAutoencoderFile : find(options.vae, "vae", "the autoencoder", "vae");
  paths.clip = find(options.clip, "clip", "CLIP's text encoder", "text_encoder");
  paths.t5 = find(options.t5, "t5", "T5's encoder", "text_encoder_2");
  const auto tokenizer = [&](const std::optional<std::string>& own, const char* option, const char* what,
                             const char* part) {
    if (own && has_tokenizer(*own)) return fs::path(*own);
    if (!folder.empty() && fs::exists(folder / part)) return folder / part;
    findings.add(
        own ? fmt::format("{}.path {} has no tokenizer{}", option, *own,
                          folder.empty() ? "" : fmt::format(", and {} no {}", folder.string(), part))
            : fmt::format("{} has no {}, which is {}", folder.string(), part, what),
        fmt::format("put the tokenizer's files into the folder of {}.path, or fetch the FLUX folder anew", option));
    return fs::path();
  };
  if (!folder.empty() || options.clip) {
    paths.clip_tokenizer = tokenizer(options.clip, "clip", "CLIP's tokenizer", "tokenizer");
  }
  if (!folder.empty() || options.t5) paths.t5_tokenizer = tokenizer(options.t5, "t5", "T5's tokenizer", "tokenizer_2");
  return paths;
}

Json load_config(const fs::path& folder) {
  if (!fs::exists(folder / kHfConfigFile)) {
    throw UserError(fmt::format("{} has no {}", folder.string(), kHfConfigFile), "fetch or copy the whole folder");
  }
  return load_json(folder / kHfConfigFile);
}

// A part's stored weights and the tensors to fill.
struct PartWeights {
  std::string what;
  TensorStore store;
  std::function<bool(std::string_view)> may_be_unused;
  // For a file in Black Forest Labs' names: its autoencoder's number of levels.
  std::optional<int64_t> levels_of_single_file;
};

// Tensors in the file's names and shapes, sharing the parameters' memory.
struct FileTensors {
  std::vector<std::unique_ptr<Placement>> placements;
  std::vector<CheckpointTensor> tensors;
};

FileTensors tensors_in_file(const Module& model, const PartWeights& weights) {
  FileTensors in_file;
  in_file.tensors = model_tensors(model.parameters());
  if (!weights.levels_of_single_file) return in_file;
  for (CheckpointTensor& tensor : in_file.tensors) {
    const std::string& name = tensor.placement->pieces.front().name;
    std::vector<int64_t> shape = tensor.placement->local_shape;
    // Attention's linear layers are 1x1 convolutions there.
    if (shape.size() == 2) shape.insert(shape.end(), {1, 1});
    in_file.placements.push_back(
        std::make_unique<Placement>(Placement::whole(single_file_name(name, *weights.levels_of_single_file), shape)));
    tensor.placement = in_file.placements.back().get();
    tensor.local = tensor.local.view(shape);
  }
  return in_file;
}

StoreSource source_of(const PartWeights& weights) {
  return {.what = weights.what,
          .open = [&] { return weights.store; },
          .may_be_unused = weights.may_be_unused,
          .remedy = [] { return std::string("the folder is another model's, or incomplete: fetch it again"); }};
}

// UserError if the file does not fit the model's shapes. On the meta device, before allocation.
void check_weights(const Module& on_meta, const PartWeights& weights) {
  const FileTensors wanted = tensors_in_file(on_meta, weights);
  std::vector<PieceView> views;
  for (const CheckpointTensor& tensor : wanted.tensors) {
    for (PieceView& view : piece_views(*tensor.placement, tensor.local)) views.push_back(std::move(view));
  }
  const StoreFit fit = compare_with_store(weights.store, views);
  throw_unless_empty(weights.what, fit.missing, fit.misshaped, {}, source_of(weights).remedy());
}

void load_part(const Module& model, const PartWeights& weights, const Groups& groups) {
  load_store(source_of(weights), tensors_in_file(model, weights).tensors, groups);
}

struct AutoencoderPlan {
  AutoencoderConfig config;
  PartWeights weights;
};

AutoencoderPlan plan_autoencoder(const fs::path& path) {
  AutoencoderPlan plan;
  const bool is_folder = fs::is_directory(path);
  const fs::path folder = is_folder ? path : path.parent_path();
  fs::path file = path;
  if (is_folder) {
    const bool is_single = !fs::exists(path / kAutoencoderFile) && fs::exists(path / kSingleAutoencoderFile);
    file = path / (is_single ? kSingleAutoencoderFile : kAutoencoderFile);
    if (!fs::exists(file)) {
      throw UserError(fmt::format("{} has no {}", path.string(), kAutoencoderFile), "fetch or copy the whole folder");
    }
  }
  // Black Forest Labs' files have no configuration: they are FLUX.1's.
  if (fs::exists(folder / kHfConfigFile)) {
    plan.config = read_autoencoder_config(load_config(folder), (folder / kHfConfigFile).string());
  }
  plan.weights.what = file.string();
  plan.weights.store = TensorStore::open_file(file);
  if (plan.weights.store.find(kSingleFileMark) != nullptr) {
    plan.weights.levels_of_single_file = std::ssize(plan.config.block_out_channels);
  }
  if (plan.config.in_channels != 3 || plan.config.out_channels != 3) {
    throw UserError(fmt::format("{}: an autoencoder of {} and {} channels, and pictures have 3", path.string(),
                                plan.config.in_channels, plan.config.out_channels),
                    "give the autoencoder that belongs to FLUX");
  }
  check_weights(Autoencoder(plan.config, {.device = at::kMeta}), plan.weights);
  return plan;
}

struct ClipPlan {
  ClipTextConfig config;
  PartWeights weights;
};

ClipPlan plan_clip(const fs::path& folder) {
  ClipPlan plan;
  plan.config = read_clip_text_config(load_config(folder), (folder / kHfConfigFile).string());
  plan.weights.what = folder.string();
  plan.weights.store = TensorStore::open_folder(folder);
  // A whole CLIP also has an image encoder; older versions stored position ids.
  plan.weights.may_be_unused = [](std::string_view name) {
    return name.starts_with("vision_model.") || name.starts_with("visual_projection.") ||
           name.starts_with("text_projection.") || name == "logit_scale" || name.ends_with("embeddings.position_ids");
  };
  check_weights(ClipText(plan.config, {.device = at::kMeta}), plan.weights);
  return plan;
}

struct T5Plan {
  HfModel model;
  ModelPart part;
  PartWeights weights;
};

std::unique_ptr<Model> build_t5(const T5Plan& plan, const Groups& groups, at::ScalarType dtype, at::Device device) {
  LayerContext context;
  context.groups = &groups;
  context.dtype = dtype;
  context.device = device;
  return plan.model.family->build(plan.model.config, context, plan.part);
}

T5Plan plan_t5(const fs::path& folder, const Groups& groups) {
  T5Plan plan{.model = read_hf_config(folder)};
  if (plan.model.config.model_type != ModelType::kT5) {
    throw UserError(fmt::format("{} is a {}, expected T5's encoder", folder.string(), plan.model.family->name),
                    "give the folder of a T5EncoderModel: `text_encoder_2` in a FLUX folder");
  }
  family_for(plan.model.config);  // checks the sizes
  plan.part.units = states_units(plan.model.config, /*has_pooler=*/false);
  plan.part.range = {0, std::ssize(plan.part.units)};
  plan.weights.what = folder.string();
  plan.weights.store = TensorStore::open_folder(folder);
  // Parts of a whole T5 besides the encoder.
  plan.weights.may_be_unused = [](std::string_view name) {
    return name.starts_with("decoder.") || name.starts_with("lm_head.");
  };
  check_weights(*build_t5(plan, groups, at::kFloat, at::kMeta), plan.weights);
  return plan;
}

std::unique_ptr<Tokenizer> open_tokenizer(const fs::path& folder, int64_t vocab_size, const char* what) {
  TokenizerOptions options;
  options.tokenizer_type = "HuggingFaceTokenizer";
  options.tokenizer_model = folder.string();
  std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(options);
  if (tokenizer->vocab_size() > vocab_size) {
    throw UserError(fmt::format("the tokenizer in {} has {} tokens, and {} {}", folder.string(),
                                tokenizer->vocab_size(), what, vocab_size),
                    "give the tokenizer that belongs to the encoder");
  }
  if (!tokenizer->pad() && !tokenizer->eod()) {
    throw UserError(fmt::format("the tokenizer in {} names no padding token", folder.string()),
                    "add \"pad_token\" to its tokenizer_config.json");
  }
  return tokenizer;
}

// (b, length) int64 on the CPU. Tokens are cut before the last, which ends a text.
at::Tensor ids_of_captions(std::span<const std::string> captions, const Tokenizer& tokenizer, int64_t length,
                           int64_t& num_cut) {
  const int32_t pad = tokenizer.pad() ? *tokenizer.pad() : *tokenizer.eod();
  const at::Tensor ids = at::full({std::ssize(captions), length}, pad, at::kLong);
  auto* row = ids.mutable_data_ptr<int64_t>();
  for (const std::string& caption : captions) {
    std::vector<int32_t> tokens = tokenizer.encode(caption, /*add_special=*/true);
    if (std::ssize(tokens) > length) {
      ++num_cut;
      const int32_t end = tokens.back();
      tokens.resize(static_cast<size_t>(length));
      tokens.back() = end;
    }
    std::ranges::copy(tokens, row);
    row += length;
  }
  return ids;
}

at::Tensor t5_states(Model& t5, const at::Tensor& ids) {
  const int64_t b = ids.size(0), s = ids.size(1);
  ModelInput input;
  input.context.b = b;
  input.context.s = s;
  input.context.encoder_s = s;
  input.context.is_training = false;
  input.more.set(input::kEncoderTokens.name, ids);
  return t5.forward(input, {}, HeadOutput::kLogits).boundary.at(kMemory).view({b, s, -1});
}

}  // namespace

FluxEncoders::FluxEncoders(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
FluxEncoders::~FluxEncoders() = default;

std::unique_ptr<FluxEncoders> FluxEncoders::open(const FluxEncoderOptions& options, Logger& log) {
  auto parts = std::make_unique<Parts>();
  parts->options = options;
  parts->log = &log;
  Findings findings;
  const EncoderPaths paths = find_paths(options, findings);
  AutoencoderPlan vae;
  ClipPlan clip;
  T5Plan t5;
  if (!paths.vae.empty()) findings.gather([&] { vae = plan_autoencoder(paths.vae); });
  if (!paths.clip.empty()) findings.gather([&] { clip = plan_clip(paths.clip); });
  if (!paths.t5.empty()) findings.gather([&] { t5 = plan_t5(paths.t5, parts->groups); });
  if (!paths.clip_tokenizer.empty()) {
    findings.gather(
        [&] { parts->clip_tokenizer = open_tokenizer(paths.clip_tokenizer, clip.config.vocab_size, "CLIP"); });
  }
  if (!paths.t5_tokenizer.empty()) {
    findings.gather([&] {
      const int64_t vocab_size = t5.model.config.vocab_size.value_or(INT64_MAX);
      parts->t5_tokenizer = open_tokenizer(paths.t5_tokenizer, vocab_size, "T5");
    });
  }
  findings.throw_if_any();

  const FrozenContext context{.dtype = options.dtype, .device = options.device};
  parts->autoencoder = std::make_unique<Autoencoder>(vae.config, context);
  load_part(*parts->autoencoder, vae.weights, parts->groups);
  parts->clip = std::make_unique<ClipText>(clip.config, context);
  load_part(*parts->clip, clip.weights, parts->groups);
  parts->t5 = build_t5(t5, parts->groups, options.dtype, options.device);
  load_part(*parts->t5, t5.weights, parts->groups);
  parts->vae_checksum = checksum_of_weights(vae.weights.store);
  parts->clip_checksum = checksum_of_weights(clip.weights.store);
  parts->t5_checksum = checksum_of_weights(t5.weights.store);
  log.info("encoders: autoencoder {}, CLIP {}, T5 {}", format_count(parts->autoencoder->num_parameters()),
           format_count(parts->clip->num_parameters()), format_count(parts->t5->num_parameters()));
  return std::unique_ptr<FluxEncoders>(new FluxEncoders(std::move(parts)));
}

FluxEncoders::Texts FluxEncoders::encode_texts(std::span<const std::string> captions) {
  const at::NoGradGuard no_grad;
  MEGALITH_CHECK(parts_->t5 && parts_->clip, "captions after the text encoders were released");
  const FluxEncoderOptions& options = parts_->options;
  int64_t num_cut = 0, num_cut_for_clip = 0;
  const at::Tensor t5_ids = ids_of_captions(captions, *parts_->t5_tokenizer, options.text_length, num_cut);
  const at::Tensor clip_ids = ids_of_captions(captions, *parts_->clip_tokenizer,
                                              parts_->clip->config().max_position_embeddings, num_cut_for_clip);
  if (num_cut > 0) {
    parts_->log->note("a caption is longer than {} tokens of T5's: what is behind them is not read",
                      options.text_length);
  }
  if (num_cut_for_clip > 0) {
    parts_->log->note("a caption is longer than {} tokens of CLIP's: what is behind them is read by T5 only",
                      parts_->clip->config().max_position_embeddings);
  }
  return {.states = t5_states(*parts_->t5, sent_to(t5_ids, options.device)),
          .pooled = parts_->clip->forward(sent_to(clip_ids, options.device)).pooled};
}

FluxEncoders::Latents FluxEncoders::encode_pictures(const at::Tensor& pixels) {
  const at::NoGradGuard no_grad;
  const FluxEncoderOptions& options = parts_->options;
  const Autoencoder::Posterior posterior =
      parts_->autoencoder->encode(sent_to(pixels, options.device).to(options.dtype));
  return {posterior.mean, posterior.log_var};
}

at::Tensor FluxEncoders::decode(const at::Tensor& latents) {
  const at::NoGradGuard no_grad;
  const FluxEncoderOptions& options = parts_->options;
  const at::Tensor plain = sent_to(latents, options.device) / latent_scale() + latent_shift();
  return parts_->autoencoder->decode(plain.to(options.dtype));
}

void FluxEncoders::release_text_encoders() {
  parts_->t5.reset();
  parts_->clip.reset();
}

double FluxEncoders::latent_scale() const { return parts_->autoencoder->config().scaling_factor; }
double FluxEncoders::latent_shift() const { return parts_->autoencoder->config().shift_factor; }
int64_t FluxEncoders::latent_channels() const { return parts_->autoencoder->config().latent_channels; }
int64_t FluxEncoders::latent_reduction() const { return parts_->autoencoder->config().reduction(); }

std::string FluxEncoders::identity() const {
  return fmt::format("vae {}, t5 {}, clip {}", parts_->vae_checksum, parts_->t5_checksum, parts_->clip_checksum);
}

}  // namespace megalith
