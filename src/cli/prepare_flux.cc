// See prepare_flux.h.
#include "cli/prepare_flux.h"

#include <fmt/format.h>

#include "cli/help.h"
#include "cli/print.h"
#include "core/error.h"
#include "core/folder.h"
#include "device/device.h"
#include "hub/hub.h"
#include "kinds/flow/flux_encoders.h"
#include "kinds/flow/flux_folder.h"
#include "kinds/flow/flux_prepare.h"
#include "kinds/flow/picture_data.h"

namespace megalith {
namespace {

enum class EncoderDtype { kFloat32, kBfloat16 };

struct FluxPreparation {
  FluxPrepareOptions pictures;
  std::optional<std::string> load_hf;
  int64_t text_length = 512;
  EncoderDtype encoder_dtype = EncoderDtype::kBfloat16;
  DeviceChoice device = DeviceChoice::kAuto;
  FluxEncoderOptions encoders;
  HubOptions hub;

  void visit(OptionVisitor& v) {
    pictures.visit(v);
    v.group("Encoders");
    v.field("load_hf", load_hf,
            "Folder or name of a FLUX model with its encoders: vae, text_encoder, text_encoder_2 and their tokenizers.")
        .alias("hf_path");
    v.field("text_length", text_length, "Tokens of a caption, as T5 reads it. FLUX.1 schnell: 256.")
        .unit("tokens")
        .within(1, 8192);
    v.choice("encoder_dtype", encoder_dtype, {"float32", "bfloat16"},
             "What the encoders compute with. Captions are kept in it, latents in float32.");
    v.choice("device", device, {"auto", "cpu", "gpu"},
             "What the encoders compute on. auto takes a GPU when there is one, the first that this process sees.");
    encoders.visit(v);
    hub.visit(v);
  }
};

constexpr const char* kFluxUsage =
    "usage: megalith prepare flux --input PICTURES ... --output FOLDER --load_hf FLUX_FOLDER [--option value ...]";

std::vector<UserError> check(const FluxPreparation& options, const OptionSet& set) {
  std::vector<UserError> errors = refuse_urls(set);
  for (UserError& error : check_flux_prepare(options.pictures)) errors.push_back(std::move(error));
  const bool has_own = options.encoders.vae && options.encoders.t5 && options.encoders.clip;
  if (!options.load_hf && !has_own) {
    errors.emplace_back("no encoders are named",
                        "name a FLUX folder with --load_hf, or each encoder with --vae.path, --t5.path, --clip.path");
  }
  return errors;
}

void prepare_with(FluxPreparation& options, PictureSource& source, Logger& log) {
  options.encoders.folder = options.load_hf.value_or("");
  options.encoders.text_length = options.text_length;
  options.encoders.dtype = options.encoder_dtype == EncoderDtype::kBfloat16 ? at::kBFloat16 : at::kFloat;
  options.encoders.device = select_device(options.device, /*local_rank=*/0);
  const FluxPrepareReport report = encode_pictures(options.pictures, options.encoders, source, log);
  print_out("{}", describe(report, options.pictures));
}

}  // namespace

int prepare_flux_pictures(CommandContext& context) {
  FluxPreparation options;
  OptionSet set(options);
  const Resolution resolution = resolve(set, context.config_inputs());
  if (resolution.wants_help) return print_help(context, kFluxUsage, set);
  for (const std::string& note : resolution.notes) context.log.note("{}", note);
  std::vector<UserError> errors = check(options, set);
  std::unique_ptr<PictureSource> source;
  try {
    source = open_picture_source(options.pictures.source());
  } catch (const UserErrors& several) {
    errors.insert(errors.end(), several.errors().begin(), several.errors().end());
  } catch (const UserError& error) {
    errors.push_back(error);
  }
  throw_if_any(std::move(errors));
  resolve_hub_option("load_hf", options.load_hf, HubNeed::kEncoders, context.environment, options.hub, context.log);
  prepare_with(options, *source, context.log);
  return kExitSuccess;
}

void prepare_pictures_once(const std::filesystem::path& input, const std::filesystem::path& model,
                           const std::filesystem::path& output, Logger& log) {
  if (is_there(output / kFluxIndexFile)) {
    log.info("{} holds prepared pictures: nothing is to be done", output.string());
    return;
  }
  FluxPreparation options;
  options.pictures.input = {input.string()};
  options.pictures.output = output.string();
  options.load_hf = model.string();
  throw_if_any(check_flux_prepare(options.pictures));
  prepare_with(options, *open_picture_source(options.pictures.source()), log);
}

CommandOptions prepare_flux_options() { return options_of<FluxPreparation>("prepare flux"); }

}  // namespace megalith
