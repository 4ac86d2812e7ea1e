// Options of the frozen encoders around a FLUX model (kinds/flow/flux_encoders.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

#include "config/option.h"

namespace megalith {

struct FluxEncoderOptions {
  std::string folder;  // of a FLUX model; empty: separate folders
  // A folder of AutoencoderKL, or a file in Black Forest Labs' names (ae.safetensors).
  std::optional<std::string> vae;
  std::optional<std::string> t5;    // a folder of T5's encoder and optional tokenizer
  std::optional<std::string> clip;  // likewise for CLIP
  int64_t text_length = 512;        // T5's tokens; CLIP reads as many as it has positions
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;

  // vae.path, t5.path, clip.path
  void visit(OptionVisitor& v);
};

}  // namespace megalith
