#include "cli/generate_pictures.h"

#include <ATen/ATen.h>

#include <filesystem>
#include <utility>

#include "cli/within_memory.h"
#include "core/file.h"
#include "core/number_of.h"
#include "core/output_file.h"
#include "core/strings.h"
#include "core/time.h"
#include "image/pixels.h"
#include "image/png.h"
#include "kinds/flow/flux_generation.h"
#include "kinds/flow/picture_samples.h"
#include "train/inference_memory.h"
#include "train/outputs.h"
#include "train/pipelined_model.h"
#include "train/setup.h"

namespace megalith {
namespace {

namespace fs = std::filesystem;

PictureRequest request_of(const Resolved& run, const PictureTask& task) {
  PictureRequest request;
  request.has_guidance = run.config.model.guidance_embed;
  request.steps = task.options.steps.value_or(default_steps(request.has_guidance));
  request.guidance = task.options.guidance;
  request.height = task.options.height;
  request.width = task.options.width;
  request.seed = task.seed;
  return request;
}

// "a.png", "a_2.png", …
fs::path picture_file(const std::string& output, int64_t sample) {
  if (sample == 0) return output;
  fs::path path = output;
  path.replace_filename(fmt::format("{}_{}.png", path.stem().string(), sample + 1));
  return path;
}

int sample_pictures(CommandContext& context, const Session& session, const PictureTask& task,
                    const PictureRequest& request, FluxEncoders& encoders, const FluxEncoders::Texts& texts) {
  const Resolved& run = *session.resolved;
  const BuiltModel built = build_model(run, session.groups, session.device);
  load_weights(run, built, session.groups, context.log);
  PipelinedModel model(built.view(), session.groups, session.device);
  const auto predict = [&](const ModelInput& input) { return model.forward(input, HeadOutput::kLogits).logits; };
  const Stopwatch watch;
  Progress progress(context.log, "generate", request.steps * task.num_samples, "steps");
  for (int64_t sample = 0; sample < task.num_samples; ++sample) {
    const at::Tensor latents =
        generate_latents(predict, texts, request, static_cast<uint64_t>(sample), encoders.latent_channels(),
                         encoders.latent_reduction(), session.device, [&](int64_t) { progress.advance(1); });
    if (!session.groups.world->is_first()) continue;
    const at::Tensor pixels = encoders.decode(latents);
    write_file_atomic(picture_file(*task.options.output, sample), encode_png(from_pixels(pixels[0])));
  }
  progress.finish();
  context.log.info("{} of {} x {} pixels, {} each, in {}, written to {}",
                   number_of(task.num_samples, "picture", "pictures"), request.height, request.width,
                   number_of(request.steps, "step", "steps"), format_duration(watch.elapsed_s()), *task.options.output);
  return kExitSuccess;
}

}  // namespace

void PictureOptions::visit(OptionVisitor& v) {
  v.group("Pictures");
  v.field("output", output,
          "PNG file for the picture; with num_samples the next ones are NAME_2.png and so on. With input it is the "
          "JSON lines file for the answers.");
  v.field("steps", steps, "Steps from noise to the picture. Default: 28 for a model with guidance_embed, else 4.")
      .at_least(1);
  v.field("guidance", guidance, "How closely a model with guidance_embed follows the prompt.").at_least(0);
  v.field("height", height, "Height of the picture, a multiple of 16.").unit("pixels").at_least(16);
  v.field("width", width, "Width of the picture, a multiple of 16.").unit("pixels").at_least(16);
}

std::vector<UserError> check_picture_task(const Resolved& run, const PictureTask& task) {
  std::vector<UserError> errors = check_picture_request(request_of(run, task), kFluxReduction);
  const std::optional<std::string>& output = task.options.output;
  if (!output) {
    errors.emplace_back("a model of pictures was given, and no output", "name the file: --output picture.png");
  } else if (!output->ends_with(".png")) {
    errors.emplace_back(fmt::format("output is '{}'", *output), "its name must end in .png");
  } else if (auto error = check_writable("output", *output, /*is_folder=*/false)) {
    errors.push_back(std::move(*error));
  } else {
    for (int64_t sample = 0; sample < task.num_samples; ++sample) {
      auto taken = check_replaceable("output", picture_file(*output, sample), {}, run.config.checkpoint.overwrite);
      if (taken) errors.push_back(std::move(*taken));
    }
  }
  if (auto error = check_encoders_named(run, "a picture is drawn of a prompt, which encoders read")) {
    errors.push_back(std::move(*error));
  }
  for (const char* option : {"prompt_ids", "print_ids", "ignore_eos", "max_new_tokens"}) {
    if (!run.options->find(option)->is_set()) continue;
    errors.emplace_back(fmt::format("{} is given, and {} makes pictures", option,
                                    run.derived.checkpoint.load_hf.value_or("this model")),
                        "leave it out: it is an option of language models");
  }
  return errors;
}

int generate_pictures(CommandContext& context, const Session& session, const Launch& launch, const PictureTask& task) {
  const Resolved& run = *session.resolved;
  PictureRequest request = request_of(run, task);
  FluxEncoderOptions where = run.config.encoders;
  where.folder = find_encoders(run, context.environment, context.log).string();
  where.text_length = run.config.data.flux.text_length;
  where.dtype = run.derived.dtype;
  where.device = session.device;
  request.schedule = read_flow_schedule(where.folder, {.is_dynamic = request.has_guidance});
  const std::unique_ptr<FluxEncoders> encoders = FluxEncoders::open(where, context.log);
  const FluxEncoders::Texts texts = encoders->encode_texts({&task.prompt, 1});
  throw_if_any(check_encoders(*encoders, texts, run.config.model));
  // T5 may be as large as the transformer.
  encoders->release_text_encoders();
  const int64_t tokens = request.height * request.width / (4 * kFluxReduction * kFluxReduction);
  const MemoryMeasure measure = [=](const Resolved& resolved, int rank) {
    return estimate_inference(resolved, rank, {.rows = 1, .length = tokens, .head = HeadOutput::kLogits});
  };
  return run_within_memory(session, launch, measure, [&](const MemoryEstimate&) {
    return sample_pictures(context, session, task, request, *encoders, texts);
  });
}

}  // namespace megalith
