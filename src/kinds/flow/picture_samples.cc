#include "kinds/flow/picture_samples.h"

#include <algorithm>
#include <utility>

#include "core/file.h"
#include "core/visible_text.h"
#include "hub/hub.h"
#include "image/pixels.h"
#include "image/png.h"
#include "image/resize.h"
#include "kinds/flow/picture_data.h"
#include "storage/s3_settings.h"

namespace megalith {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kPageSide = 256;  // of a picture on a page
constexpr uint64_t kFirstPicture = 0;

PictureRequest request_of(const Resolved& resolved) {
  const Config& config = resolved.config;
  PictureRequest request;
  request.height = request.width = config.data.flux.image_size;
  request.has_guidance = config.model.guidance_embed;
  request.steps = config.samples.sample_steps.value_or(default_steps(request.has_guidance));
  request.guidance = config.samples.sample_guidance.value_or(request.guidance);
  const bool has_own_seed = resolved.options->of(config.sampling.sampling_seed).is_set();
  request.seed = static_cast<uint64_t>(has_own_seed ? config.sampling.sampling_seed : config.train.seed);
  return request;
}

std::optional<fs::path> folder_of(const Config& config) {
  if (config.samples.sample_folder) return fs::path(*config.samples.sample_folder);
  if (config.log.output_dir) return fs::path(*config.log.output_dir) / "samples";
  const auto& save = config.checkpoint.save;
  if (save && !is_object_url(*save)) return fs::path(*save) / "samples";
  return std::nullopt;
}

// No side longer than kPageSide.
Picture for_a_page(const Picture& picture) {
  const int64_t longest = std::max(picture.width, picture.height);
  if (longest <= kPageSide) return picture;
  const auto side = [&](int64_t pixels) { return std::max<int64_t>(1, pixels * kPageSide / longest); };
  return resize(picture, side(picture.width), side(picture.height), ResizeFilter::kLanczos);
}

// The FLUX folder around load_hf's transformer.
std::optional<fs::path> pipeline_of(const Resolved& run) {
  if (!run.derived.checkpoint.load_hf) return std::nullopt;
  const fs::path around = (fs::path(*run.derived.checkpoint.load_hf) / "").parent_path().parent_path();
  std::error_code ignored;
  if (!fs::exists(around / "model_index.json", ignored)) return std::nullopt;
  return around;
}

}  // namespace

std::optional<UserError> check_encoders_named(const Resolved& run, const std::string& why) {
  const FluxEncoderOptions& encoders = run.config.encoders;
  if (!encoders.folder.empty() || (encoders.vae && encoders.t5 && encoders.clip) || pipeline_of(run)) {
    return std::nullopt;
  }
  return UserError(fmt::format("{}, and no encoders are named{}", why,
                               run.derived.checkpoint.load_hf ? fmt::format(": {} holds the transformer of a FLUX only",
                                                                            *run.derived.checkpoint.load_hf)
                                                              : ""),
                   "name a FLUX folder with --encoders.path, or each with --vae.path, --t5.path, --clip.path");
}

fs::path find_encoders(const Resolved& run, const EnvironmentMap& environment, Logger& log) {
  const HubOptions& hub = run.config.hub;
  const std::string& named = run.config.encoders.folder;
  if (!named.empty()) return resolve_hub_path("encoders.path", named, HubNeed::kEncoders, environment, hub, log);
  return complete_hub_folder("load_hf", pipeline_of(run).value_or("").string(), HubNeed::kEncoders, environment, hub,
                             log);
}

std::vector<UserError> check_encoders(const FluxEncoders& encoders, const FluxEncoders::Texts& texts,
                                      const ModelConfig& model) {
  std::vector<UserError> errors;
  const auto check = [&](std::string_view what, int64_t found, std::string_view option, int64_t expected) {
    if (found == expected) return;
    errors.emplace_back(fmt::format("{} is {}, and the model's {} asks for {}", what, found, option, expected),
                        "give the encoders that belong to the model");
  };
  check("4 times the channels of the autoencoder's latents", 4 * encoders.latent_channels(), "in_channels",
        model.in_channels);
  check("the pixels of a latent's side", encoders.latent_reduction(), "token of 16 pixels", kFluxReduction);
  check("the width of T5", texts.states.size(2), "context_dim", model.context_dim);
  check("the width of CLIP", texts.pooled.size(1), "vec_in_dim", model.vec_in_dim);
  return errors;
}

bool needs_encoders(const Resolved& resolved) {
  return resolved.config.samples.is_on() || has_unencoded_pictures(resolved);
}

std::vector<UserError> check_named_encoders(const Resolved& resolved) {
  std::vector<UserError> errors;
  if (!needs_encoders(resolved)) {
    for (const char* option : {"encoders.path", "vae.path", "t5.path", "clip.path"}) {
      if (!resolved.options->find(option)->is_set()) continue;
      errors.emplace_back(
          fmt::format("{} is given, and this run reads no pictures and no captions", option),
          fmt::format("leave {} out, or let a model of pictures draw samples with --sample_interval", option));
    }
    return errors;
  }
  const char* why = has_unencoded_pictures(resolved)
                        ? "the data path names pictures, which are to be encoded"
                        : "sample_interval is given, which reads a caption and decodes a picture";
  if (resolved.config.checkpoint.load_hf) return errors;  // perhaps a whole FLUX, not yet inspected
  if (auto error = check_encoders_named(resolved, why)) errors.push_back(std::move(*error));
  return errors;
}

PictureSamples::PictureSamples(const Resolved& resolved, at::Device device, bool is_shown, Logger& log)
    : request_(request_of(resolved)),
      prompt_(visible_text(*resolved.config.samples.sample_prompt)),
      folder_(folder_of(resolved.config)),
      channels_(0),
      reduction_(0),
      device_(device),
      log_(log) {
  FluxEncoderOptions options = resolved.derived.encoders;
  options.text_length = resolved.config.data.flux.text_length;
  options.dtype = resolved.derived.dtype;
  options.device = device;
  request_.schedule = read_flow_schedule(options.folder, {.is_dynamic = request_.has_guidance});
  std::unique_ptr<FluxEncoders> encoders = FluxEncoders::open(options, log);
  texts_ = encoders->encode_texts({&*resolved.config.samples.sample_prompt, 1});
  std::vector<UserError> errors = check_encoders(*encoders, texts_, resolved.config.model);
  if (!errors.empty()) throw UserErrors(std::move(errors));
  channels_ = encoders->latent_channels();
  reduction_ = encoders->latent_reduction();
  encoders->release_text_encoders();
  if (is_shown) decoder_ = std::move(encoders);
}

void PictureSamples::show(PipelinedModel& model, int64_t iteration,
                          const std::vector<std::unique_ptr<MetricsSink>>& sinks) {
  const auto predict = [&](const ModelInput& input) { return model.forward(input, HeadOutput::kLogits).logits; };
  const at::Tensor latents = generate_latents(predict, texts_, request_, kFirstPicture, channels_, reduction_, device_);
  if (decoder_ == nullptr) return;
  const Picture picture = from_pixels(decoder_->decode(latents)[0]);
  PictureRecord record{.iteration = iteration,
                       .prompt = prompt_,
                       .height = picture.height,
                       .width = picture.width,
                       .png = encode_png(picture),
                       .small_png = encode_png(for_a_page(picture)),
                       .file = {}};
  if (folder_) {
    const fs::path file = *folder_ / fmt::format("iteration_{:07d}.png", iteration);
    try {
      make_directories(*folder_);
      write_file_atomic(file, record.png);
      record.file = file.string();
    } catch (const UserError& error) {
      log_.warn("the picture of iteration {} could not be written: {}", iteration, error.message());
    }
  }
  for (const auto& sink : sinks) sink->on_picture(record);
}

}  // namespace megalith
