// Pictures that a model draws while it trains, every sample_interval steps (train/samples.h): each from the same noise,
// so that what changes is what was learned.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "core/error.h"
#include "core/log.h"
#include "metrics/step_record.h"
#include "train/config.h"
#include "train/flux_encoders.h"
#include "train/flux_generation.h"
#include "train/pipelined_model.h"

namespace megalith {

// The FLUX folder whose encoders a run uses: encoders.path, else the folder around the transformer that load_hf names.
// Names of the hub are fetched. Empty where there is none.
std::filesystem::path find_encoders(const Resolved& run, const EnvironmentMap& environment, Logger& log);

// The error for a run of which encoders are asked and none are named; derived.checkpoint.load_hf is a path.
// why  "a picture is drawn of a prompt, which encoders read"
std::optional<UserError> check_encoders_named(const Resolved& run, const std::string& why);

// Errors for encoders that do not belong to the model.
std::vector<UserError> check_encoders(const FluxEncoders& encoders, const FluxEncoders::Texts& texts,
                                      const ModelConfig& model);

// Whether a run reads pictures or captions itself: to draw samples, or to encode its data (train/picture_data.h).
bool needs_encoders(const Resolved& resolved);

// That encoders are named where they are needed, and only there.
std::vector<UserError> check_named_encoders(const Resolved& resolved);

class PictureSamples {
 public:
  // The encoders read the caption, and their memory is given back; the autoencoder stays where pictures are shown.
  // UserErrors: what FluxEncoders::open() throws, encoders of another model. samples.is_on(); the Resolved and the
  // Logger outlive it.
  //   is_shown  whether this rank has the sinks
  PictureSamples(const Resolved& resolved, at::Device device, bool is_shown, Logger& log);

  // Draws with the present weights; every rank of the model calls it. The record is empty where nothing is shown. A
  // file that cannot be written costs a warning.
  std::optional<PictureRecord> make(PipelinedModel& model, int64_t iteration);

 private:
  PictureRequest request_;
  std::string prompt_;
  std::optional<std::filesystem::path> folder_;  // of the files
  int64_t channels_, reduction_;
  FluxEncoders::Texts texts_;
  std::unique_ptr<FluxEncoders> decoder_;  // null where nothing is shown
  at::Device device_;
  Logger& log_;
};

}  // namespace megalith
