// Results of FLUX's encoders and its sampler as files, for tests in Python that compare with diffusers.
//
//   flux_tool encode REQUEST.json   {"folder" | "vae", "t5", "clip": paths, "text_length", "dtype": "fp32" | "bf16",
//                                    "captions": [text, …], "inputs": FILE, "output": FILE}
//       FILE of inputs: pixels (b, 3, H, W) and latents (b, c, h, w), each if asked for; of outputs: states, pooled,
//       mean, log_var, decoded. Prints latent_scale, latent_shift and identity as JSON.
//   flux_tool sample REQUEST.json   {"folder", "steps", "tokens", "seed", "shape": [channels, height, width], "output"}
//       The sigmas, noise, and what Euler's steps make of it with the velocity sin(3 x) + sigma * x. The schedule is
//       the folder's, else FLUX.1-dev's.
//   flux_tool generate REQUEST.json {"folder", "steps", "height", "width", "seed", "guidance" (or none), "channels",
//                                    "reduction", "inputs": FILE of text (1, l, d) and pooled (1, p), "output"}
//       noise, and the latents that generate_latents() makes of it with a model that reads all that it is given.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json.h"
#include "kinds/flow/flux_encoders.h"
#include "kinds/flow/flux_generation.h"
#include "kinds/flow/flux_sampling.h"
#include "tensor_files/safetensors.h"
#include "tensor_files/safetensors_writer.h"

namespace megalith {
namespace {

using Tensors = std::map<std::string, at::Tensor>;

void write_tensors(const std::string& path, const Tensors& tensors) {
  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, tensor] : tensors) {
    entries.push_back({name, safetensors_dtype_of(tensor.scalar_type()), tensor.sizes().vec()});
  }
  SafetensorsWriter writer(path, make_safetensors_layout(std::move(entries)));
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor whole = tensor.cpu().contiguous();
    writer.write(name, 0, {static_cast<const std::byte*>(whole.const_data_ptr()), whole.nbytes()});
  }
  writer.finish();
}

void encode(const Json& request, const std::string& where) {
  FluxEncoderOptions options;
  options.folder = json_get_or<std::string>(request, "folder", "", where);
  options.vae = json_find<std::string>(request, "vae", where);
  options.t5 = json_find<std::string>(request, "t5", where);
  options.clip = json_find<std::string>(request, "clip", where);
  options.text_length = json_get<int64_t>(request, "text_length", where);
  options.dtype = json_get<std::string>(request, "dtype", where) == "bf16" ? at::kBFloat16 : at::kFloat;
  Logger log;
  const auto encoders = FluxEncoders::open(options, log);
  Tensors outputs;
  if (const auto captions = json_get<std::vector<std::string>>(request, "captions", where); !captions.empty()) {
    const FluxEncoders::Texts texts = encoders->encode_texts(captions);
    outputs["states"] = texts.states;
    outputs["pooled"] = texts.pooled;
    encoders->release_text_encoders();
  }
  const SafetensorsFile inputs(json_get<std::string>(request, "inputs", where));
  if (const SafetensorsTensor* pixels = inputs.find("pixels")) {
    const FluxEncoders::Latents latents = encoders->encode_pictures(inputs.view(*pixels));
    outputs["mean"] = latents.mean;
    outputs["log_var"] = latents.log_var;
  }
  if (const SafetensorsTensor* latents = inputs.find("latents")) {
    outputs["decoded"] = encoders->decode(inputs.view(*latents));
  }
  write_tensors(json_get<std::string>(request, "output", where), outputs);
  std::puts(dump_json(Json{{"latent_scale", encoders->latent_scale()},
                           {"latent_shift", encoders->latent_shift()},
                           {"identity", encoders->identity()}})
                .c_str());
}

void sample(const Json& request, const std::string& where) {
  const FlowSchedule schedule = read_flow_schedule(json_get<std::string>(request, "folder", where), {});
  const std::vector<double> sigmas = schedule.sigmas(json_get<int64_t>(request, "steps", where),
                                                     json_get<int64_t>(request, "tokens", where));
  const auto shape = json_get<std::vector<int64_t>>(request, "shape", where);
  const at::Tensor noise =
      flow_noise(json_get<uint64_t>(request, "seed", where), 0, shape.at(0), shape.at(1), shape.at(2));
  const at::Tensor end = sample_flow(
      noise, sigmas, [](const at::Tensor& x, double sigma) { return at::sin(3 * x) + sigma * x; });
  write_tensors(json_get<std::string>(request, "output", where),
                {{"sigmas", at::tensor(sigmas, at::kDouble)}, {"noise", noise}, {"end", end}});
}

// (1, n, c) of all inputs of a model, each in a place of its own.
at::Tensor predict(const ModelInput& input) {
  const Bundle& more = input.more;
  const at::Tensor places = more.at("image_positions").to(at::kFloat);
  at::Tensor numbers = more.at("text").mean() + 2 * more.at("pooled").mean() + 3 * more.at("timesteps");
  if (const at::Tensor* guidance = more.find("guidance")) numbers = numbers + *guidance / 7;
  const at::Tensor of_places = places.select(1, 0) + 0.1 * places.select(1, 1) - 0.2 * places.select(1, 2);
  return at::sin(2 * more.at("image")) + numbers + of_places.view({1, -1, 1}) +
         0.01 * static_cast<double>(input.context.s - input.context.encoder_s);
}

void generate(const Json& request, const std::string& where) {
  PictureRequest picture;
  picture.schedule = read_flow_schedule(json_get<std::string>(request, "folder", where), {});
  picture.steps = json_get<int64_t>(request, "steps", where);
  picture.height = json_get<int64_t>(request, "height", where);
  picture.width = json_get<int64_t>(request, "width", where);
  picture.seed = json_get<uint64_t>(request, "seed", where);
  if (const auto guidance = json_find<double>(request, "guidance", where)) {
    picture.has_guidance = true;
    picture.guidance = *guidance;
  }
  const auto channels = json_get<int64_t>(request, "channels", where);
  const auto reduction = json_get<int64_t>(request, "reduction", where);
  if (auto errors = check_picture_request(picture, reduction); !errors.empty()) throw UserErrors(std::move(errors));
  const SafetensorsFile inputs(json_get<std::string>(request, "inputs", where));
  const FluxEncoders::Texts texts{inputs.view(*inputs.find("text")), inputs.view(*inputs.find("pooled"))};
  const at::Tensor latents = generate_latents(predict, texts, picture, /*number=*/2, channels, reduction, at::kCPU);
  const at::Tensor noise =
      flow_noise(picture.seed, 2, channels, picture.height / reduction, picture.width / reduction);
  write_tensors(json_get<std::string>(request, "output", where), {{"noise", noise}, {"latents", latents}});
}

int run(int argc, char** argv) {
  const std::string command = argc == 3 ? argv[1] : "";
  try {
    if (command == "encode") return encode(load_json(argv[2]), argv[2]), 0;
    if (command == "sample") return sample(load_json(argv[2]), argv[2]), 0;
    if (command == "generate") return generate(load_json(argv[2]), argv[2]), 0;
    throw UserError("flux_tool encode|sample|generate REQUEST.json");
  } catch (const UserError& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 2;
  }
}

}  // namespace
}  // namespace megalith

int main(int argc, char** argv) { return megalith::run(argc, argv); }
