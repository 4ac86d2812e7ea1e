#include "kinds/flow/picture_data.h"

#include <fmt/ranges.h>

#include <array>
#include <filesystem>
#include <memory>
#include <utility>

#include "core/checksum.h"
#include "core/file.h"
#include "data/builder_lock.h"
#include "device/device.h"
#include "kinds/flow/flux_folder.h"
#include "kinds/flow/picture_source.h"

namespace megalith {
namespace {

namespace fs = std::filesystem;

// FLUX's encoders as a FluxSampleEncoder with host tensors.
class FrozenEncoders final : public FluxSampleEncoder {
 public:
  explicit FrozenEncoders(std::unique_ptr<FluxEncoders> encoders) : encoders_(std::move(encoders)) {}

  Texts encode_texts(std::span<const std::string> captions) override {
    const FluxEncoders::Texts texts = encoders_->encode_texts(captions);
    return {texts.states.cpu(), texts.pooled.cpu()};
  }
  Latents encode_pictures(const at::Tensor& pixels) override {
    const FluxEncoders::Latents latents = encoders_->encode_pictures(pixels);
    return {latents.mean.cpu(), latents.log_var.cpu()};
  }
  double latent_scale() const override { return encoders_->latent_scale(); }
  double latent_shift() const override { return encoders_->latent_shift(); }
  std::string identity() const override { return encoders_->identity(); }

 private:
  std::unique_ptr<FluxEncoders> encoders_;
};

using PathLists = std::array<std::vector<std::string>*, 4>;
PathLists path_lists(DataOptions& data) {
  return {&data.data_path, &data.train_data_path, &data.valid_data_path, &data.test_data_path};
}

FluxPrepareOptions preparation_of(const Resolved& resolved, const std::vector<std::string>& pictures) {
  FluxPrepareOptions options;
  for (const std::string& path : pictures) options.input.push_back(fs::absolute(path).lexically_normal().string());
  const FluxDataOptions& flux = resolved.config.data.flux;
  options.image_size = flux.image_size;
  options.vae_latent_mode =
      flux.vae_latent_mode == VaeLatentModeAsked::kResample ? VaeLatentMode::kResample : VaeLatentMode::kPresampled;
  options.seed = resolved.config.train.seed;
  return options;
}

std::string name_of_job(const FluxPrepareOptions& options, const FluxEncoderOptions& encoders, int64_t text_length,
                        const PictureSource& source) {
  const std::string job = fmt::format("{}|{}|{}|{}|{}|{}|{}|{}|{}", source.identity(), encoders.folder,
                                      encoders.vae.value_or(""), encoders.t5.value_or(""), encoders.clip.value_or(""),
                                      options.image_size, text_length, name_of(options.vae_latent_mode), options.seed);
  return fmt::format("{}-{:016x}", fs::path(options.input.front()).filename().string(), checksum64(job));
}

std::string encoded_folder(const Resolved& resolved, const std::vector<std::string>& pictures, Logger& log) {
  FluxPrepareOptions options = preparation_of(resolved, pictures);
  FluxEncoderOptions encoders = resolved.derived.encoders;
  encoders.text_length = resolved.config.data.flux.text_length;
  const std::unique_ptr<PictureSource> source = open_picture_source(options.source());
  const fs::path cache = resolved.config.data.data_cache_path ? fs::path(*resolved.config.data.data_cache_path)
                                                              : fs::path(options.input.front() + ".encoded");
  const std::string name = name_of_job(options, encoders, encoders.text_length, *source);
  const fs::path folder = cache / name;
  options.output = folder.string();
  if (fs::exists(folder / kFluxIndexFile)) return folder.string();
  make_directories(cache);
  const BuilderLock lock(cache / (name + ".lock"), [&] {
    log.info("another process encodes the pictures of {}; waiting for it", options.input.front());
  });
  if (fs::exists(folder / kFluxIndexFile)) return folder.string();
  log.info("{} holds pictures: encoding them once, in {}", options.input.front(), folder.string());
  // Frozen, so half precision suffices, whatever the model's.
  encoders.dtype = resolved.derived.dtype == at::kFloat ? at::kFloat : at::kBFloat16;
  encoders.device = select_device(resolved.config.runtime.device.device, /*local_rank=*/0);
  const FluxPrepareReport report = encode_pictures(options, encoders, *source, log);
  if (report.samples < report.rows) log.warn("{}", describe(report, options));
  return folder.string();
}

}  // namespace

FluxPrepareReport encode_pictures(const FluxPrepareOptions& pictures, const FluxEncoderOptions& encoders,
                                  PictureSource& source, Logger& log) {
  FrozenEncoders frozen(FluxEncoders::open(encoders, log));
  return prepare_flux(pictures, source, frozen, log);
}

bool names_pictures(const std::string& value) {
  std::error_code code;
  if (!fs::exists(value, code)) return false;
  if (!fs::is_directory(value, code)) return true;
  // An unfinished folder of `prepare flux` has no index yet.
  for (const char* own : {kFluxIndexFile, kFluxEmptyFile, kFluxStateFile}) {
    if (fs::exists(fs::path(value) / own, code)) return false;
  }
  return true;
}

bool has_unencoded_pictures(const Resolved& resolved) {
  DataOptions data = resolved.config.data;
  for (const std::vector<std::string>* list : path_lists(data)) {
    for (const std::string& path : *list) {
      if (names_pictures(path)) return true;
    }
  }
  return false;
}

std::vector<UserError> check_unencoded_pictures(const Resolved& resolved) {
  std::vector<UserError> errors;
  DataOptions data = resolved.config.data;
  for (const std::vector<std::string>* list : path_lists(data)) {
    size_t count = 0;
    for (const std::string& path : *list) count += names_pictures(path) ? 1 : 0;
    if (count == 0) continue;
    if (count < list->size()) {
      errors.emplace_back(fmt::format("of the data paths {} some name pictures, and some folders of prepare flux",
                                      fmt::join(*list, ", ")),
                          "prepare all of them into one folder");
      continue;
    }
    try {
      (void)open_picture_source(preparation_of(resolved, *list).source());
    } catch (const UserErrors& several) {
      errors.insert(errors.end(), several.errors().begin(), several.errors().end());
    } catch (const UserError& error) {
      errors.push_back(error);
    }
  }
  return errors;
}

void prepare_pictures(Resolved& resolved, Logger& log) {
  if (!has_unencoded_pictures(resolved)) return;
  for (std::vector<std::string>* list : path_lists(resolved.derived.data)) {
    if (list->empty() || !names_pictures(list->front())) continue;
    const std::string folder = encoded_folder(resolved, *list, log);
    *list = {folder};
  }
}

}  // namespace megalith
