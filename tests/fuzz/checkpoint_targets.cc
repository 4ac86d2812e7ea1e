// Files of weights, and a checkpoint's other files.
#include <nlohmann/json.hpp>

#include "checkpoint/manifest.h"
#include "core/file.h"
#include "core/json.h"
#include "foreign/torch_archive.h"
#include "foreign/torch_file.h"
#include "fuzz/mutate.h"
#include "fuzz/target.h"
#include "optim/loss_scaler.h"
#include "tensor_files/safetensors.h"

namespace megalith::fuzz {
namespace {

std::string with_length(const std::string& header, const std::string& data) {
  std::string bytes;
  for (size_t i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(header.size() >> (8 * i)));
  return bytes + header + data;
}

Target safetensors(const Scratch& scratch) {
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"z":{"dtype":"F32","shape":[1,1],"data_offsets":[0,4]},)"
      R"("a":{"dtype":"BF16","shape":[],"data_offsets":[4,6]},"b":{"dtype":"BF16","shape":[2],"data_offsets":[6,10]},)"
      R"("e":{"dtype":"I64","shape":[0,3],"data_offsets":[10,10]}})";
  Target target{"safetensors", {with_length(header, "0123456789")}, {}, {}, {}};
  target.words = {"dtype", "shape", "data_offsets", "__metadata__", "F64",  "F4",
                  "BOOL",  "U8",    "F8_E4M3",      "C64",          "[4,6]"};
  target.run = [&scratch](std::string_view input) {
    const SafetensorsFile file(scratch.put("w.safetensors", input));
    int64_t sum = 0;
    for (const auto& [name, tensor] : file.tensors()) {
      for (const std::byte value : file.bytes(tensor)) sum += static_cast<int64_t>(value);
      require(file.find(name) == &tensor, "a tensor is found by its name");
      if (!scalar_type_of(tensor.dtype)) continue;
      const at::Tensor view = file.view(tensor);
      require(static_cast<int64_t>(view.nbytes()) == tensor.num_bytes, "a tensor has its bytes");
      const auto* values = static_cast<const uint8_t*>(view.const_data_ptr());
      for (size_t i = 0; i < view.nbytes(); ++i) sum -= values[i];
    }
    require(sum == 0, "both views hold the same bytes");
  };
  // Only the header, with the length that it then has.
  target.mutate = [words = target.words](const std::string& input, Random& random) {
    size_t length = 0;
    for (size_t i = 8; i-- > 0;) length = length << 8 | (i < input.size() ? static_cast<uint8_t>(input[i]) : 0);
    if (input.size() < 8 || length > input.size() - 8) return damaged_bytes(input, words, random);
    return with_length(damaged_json(input.substr(8, length), words, random), input.substr(8 + length));
  };
  return target;
}

// With the checksum that the text then has: damage is to get past it.
std::string with_checksum(const std::string& text) {
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return text;
  json.erase("checksum");
  const std::string sum = checksum128(dump_json(json)).hex();
  json["checksum"] = sum;
  return dump_json(json);
}

// checkpoint.json, and the loss scaler that goes on from its numbers.
Target manifest(const Scratch& scratch) {
  Manifest good;
  good.train = {.iteration = 7,
                .consumed_train_samples = 56,
                .optimizer_step = 6,
                .skipped_iterations = 1,
                .seed = 1234,
                .numbers = {{"loss_scale", 64}, {"loss_scale_good_steps", 3}, {"loss_scale_hysteresis", 2}}};
  good.architecture = {{"num_layers", "2"}};
  good.configuration = {{"lr", "1e-3"}};
  good.layout = {{"world_size", 2}, {"tp", 2}};
  good.chunks = {{.key = "model",
                  .name = "a.weight",
                  .dtype = SafetensorsDtype::kF32,
                  .shape = {4, 6},
                  .box = {.offset = {2, 0}, .extent = {2, 6}},
                  .file = "model-00001.safetensors",
                  .checksum = {}}};
  const std::string text = manifest_text(good);
  Target target{"checkpoint_manifest", {text}, words_of_json({text}), {}, {}};
  target.run = [&scratch](std::string_view input) {
    scratch.put(kManifestFile, with_checksum(std::string(input)));
    Manifest read = load_manifest(scratch.path("."));
    require(read.train.iteration >= 0 && read.train.optimizer_step >= 0, "counts are not negative");
    for (const StoredChunk& chunk : read.chunks) chunk_entry_name(chunk.name, chunk.shape, chunk.box);
    LossScaler scaler({}, /*is_fp16=*/true);
    scaler.load(read.train.numbers);
    require(scaler.scale() > 0, "the loss scale is positive");
    for (const bool was_finite : {true, false}) scaler.update(was_finite);
    manifest_text(read);
  };
  target.mutate = [words = target.words](const std::string& input, Random& random) {
    return damaged_json(input, words, random);
  };
  return target;
}

// An archive of torch.save, and every value and tensor that its pickle tells of.
Target torch_archive(const Scratch& scratch) {
  using namespace pickled;
  const std::string moment = tensor("BFloat16Storage", "0", 8, 2, {2, 3}, {3, 1});
  const std::string optimizer = dict({{"state", dict({{"exp_avg", moment}})},
                                      {"args", name("argparse", "Namespace") + ")\x81" + dict({{"lr", "K\x01"}}) + "b"},
                                      {"list", "](K\x01K\x02" "e"}});
  const std::string data = floats({1, 2, 3, 4});
  Target target{"torch_archive",
                {saved_tensor({1, 2, 3, 4, 5, 6}, {2, 3}, {1, 2}),
                 archive({{"data.pkl", whole_pickle(optimizer)}, {"byteorder", "little"}, {"data/0", data}})},
                {"PK\x03\x04", "PK\x01\x02", "PK\x05\x06", "PK\x06\x06", "PK\x06\x07", "data.pkl", "data/0",
                 "ctorch\nSize\n", "cos\nsystem\n", ")R", "\x94", "h\x01", "0", "1", "(", "t", "u", "e", "b", "Q",
                 "\x81", "\x93", "."},
                {},
                {}};
  target.run = [&scratch](std::string_view input) {
    const TorchArchive read(scratch.put("archive.pt", input));
    const auto visit = [&](const std::string&, const PickleValue& value) {
      read.number(value);
      if (const auto found = read.tensor(value)) {
        const at::Tensor view = found->view();
        // Strides of 0 repeat elements at will.
        if (view.numel() > 0 && view.numel() < 1000) view.sum();
      }
    };
    for_each_item(read.pickle(), read.root(), visit);
  };
  return target;
}

}  // namespace

std::vector<Target> checkpoint_targets(const Scratch& scratch) {
  return {safetensors(scratch), manifest(scratch), torch_archive(scratch)};
}

}  // namespace megalith::fuzz
