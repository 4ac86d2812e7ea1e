// Pictures drawn during training every sample_interval steps (train/sample_options.h), always from the same noise, to
// show progress.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "core/error.h"
#include "core/log.h"
#include "kinds/flow/flux_encoders.h"
#include "kinds/flow/flux_generation.h"
#include "metrics/step_record.h"
#include "train/config.h"
#include "train/kind.h"
#include "train/pipelined_model.h"

namespace megalith {

// The FLUX folder with a run's encoders: encoders.path, else the one around load_hf's transformer. Hub names are
// fetched. May be empty.
std::filesystem::path find_encoders(const Resolved& run, const EnvironmentMap& environment, Logger& log);

// The error if needed encoders are not named; derived.checkpoint.load_hf is a path.
// why  "a picture is drawn of a prompt, which encoders read"
std::optional<UserError> check_encoders_named(const Resolved& run, const std::string& why);

// Errors for encoders of another model.
std::vector<UserError> check_encoders(const FluxEncoders& encoders, const FluxEncoders::Texts& texts,
                                      const ModelConfig& model);

// True if a run encodes pictures or captions: for samples, or its data (picture_data.h).
bool needs_encoders(const Resolved& resolved);

// Checks that encoders are named if and only if needed.
std::vector<UserError> check_named_encoders(const Resolved& resolved);

class PictureSamples final : public RunSamples {
 public:
  // Encodes the caption and frees those encoders; the autoencoder stays if pictures are shown. UserErrors of
  // FluxEncoders::open(), or for another model's encoders. samples.is_on(); the Resolved and the Logger must outlive
  // it.
  //   is_shown  this rank has the sinks
  PictureSamples(const Resolved& resolved, at::Device device, bool is_shown, Logger& log);

  // A failed write of the file costs a warning.
  void show(PipelinedModel& model, int64_t iteration, const std::vector<std::unique_ptr<MetricsSink>>& sinks) override;

 private:
  PictureRequest request_;
  std::string prompt_;
  std::optional<std::filesystem::path> folder_;  // of the files
  int64_t channels_, reduction_;
  FluxEncoders::Texts texts_;
  std::unique_ptr<FluxEncoders> decoder_;  // null if not shown
  at::Device device_;
  Logger& log_;
};

}  // namespace megalith
