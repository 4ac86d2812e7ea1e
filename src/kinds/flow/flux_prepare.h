// `prepare flux`: encodes pictures and captions into a folder (flux_folder.h), once, so that training needs no
// encoders.
//
// A shard appears once complete; prepare.json then records how far the source was read, and an interrupted run resumes
// there. Random draws (where a picture is cropped, the posterior's noise) depend only on the seed and the sample's
// number, so a resumed run writes the same data.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <span>
#include <string>
#include <vector>

#include "config/option.h"
#include "core/error.h"
#include "core/log.h"
#include "image/resize.h"
#include "kinds/flow/flux_folder.h"
#include "kinds/flow/picture_source.h"

namespace megalith {

// Encodes pictures and captions; flux_encoders.h has FLUX's.
class FluxSampleEncoder {
 public:
  virtual ~FluxSampleEncoder() = default;
  struct Texts {
    at::Tensor states, pooled;  // (b, l, d), (b, p)
  };
  virtual Texts encode_texts(std::span<const std::string> captions) = 0;
  struct Latents {
    at::Tensor mean, log_var;  // (b, c, h, w), not scaled
  };
  virtual Latents encode_pictures(const at::Tensor& pixels) = 0;  // (b, 3, H, W) in [-1, 1]
  virtual double latent_scale() const = 0;
  virtual double latent_shift() const = 0;
  virtual std::string identity() const = 0;
};

struct FluxPrepareOptions {
  std::vector<std::string> input;
  std::string output;
  std::optional<std::string> image_key, caption_key;
  int64_t image_size = 512;
  bool center_crop = false;
  ResizeFilter resize_filter = ResizeFilter::kLanczos;
  VaeLatentMode vae_latent_mode = VaeLatentMode::kPresampled;
  int64_t samples_per_shard = 128;
  int64_t encode_batch_size = 8;
  std::optional<int64_t> max_samples;
  int64_t seed = 1234;
  bool overwrite = false;

  void visit(OptionVisitor& v);
  PictureSourceOptions source() const { return {input, image_key, caption_key}; }
};

// All errors of the options and the files they name, before encoders are opened.
std::vector<UserError> check_flux_prepare(const FluxPrepareOptions& options);

struct FluxPrepareReport {
  std::string kind;  // of the source
  int64_t rows = 0, samples = 0;
  int64_t too_small = 0;     // a side shorter than image_size
  int64_t no_caption = 0;    // missing or empty
  int64_t not_readable = 0;  // damaged, of another kind, or missing
  std::map<std::string, std::string> examples = {};  // the first of each of these: name to reason
  int64_t bytes = 0;  // of the shards
};

// UserError if no picture is left, and for a folder that holds other data.
FluxPrepareReport prepare_flux(const FluxPrepareOptions& options, PictureSource& source, FluxSampleEncoder& encoder,
                               Logger& log);

// The report as readable text, ending in a line break.
std::string describe(const FluxPrepareReport& report, const FluxPrepareOptions& options);

// A picture as the encoder's input: (3, size, size), cropped at a position drawn by `sample` or in the middle. Nothing
// for a picture with a side shorter than image_size.
std::optional<Picture> fitted_picture(const Picture& picture, const FluxPrepareOptions& options, int64_t sample);

}  // namespace megalith
