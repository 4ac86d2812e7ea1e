// Matrices of 8-bit floats with a scale for each block: what is read is element times scale, whatever box is asked for,
// and whatever does not fit is named.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "checkpoint/convert.h"
#include "checkpoint/hf.h"
#include "comm/thread_world.h"
#include "core/error.h"
#include "core/json.h"
#include "support/temporary_folder.h"
#include "tensor_files/outline.h"
#include "tensor_files/safetensors_writer.h"
#include "tiny_llama.h"
#include "toy_state.h"

namespace megalith {
namespace {

using namespace test;  // NOLINT: helpers
namespace fs = std::filesystem;

void write_scaled_tensors(const fs::path& path, const TensorMap& tensors) {
  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, tensor] : tensors) {
    entries.push_back({name, safetensors_dtype_of(tensor.scalar_type()), tensor.sizes().vec()});
  }
  SafetensorsWriter writer(path, make_safetensors_layout(std::move(entries)));
  for (const auto& [name, tensor] : tensors) {
    writer.write(name, 0, {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()});
  }
  writer.finish();
}

struct ScaledMatrix {
  at::Tensor stored;   // fp8
  at::Tensor scales;   // float32, one a block
  at::Tensor decoded;  // float32
};

// Every finite value of the format, and scales that are no powers of two.
ScaledMatrix scaled_matrix(int64_t rows, int64_t columns, const std::vector<int64_t>& block, double seed = 1) {
  const at::Tensor codes = at::arange(rows * columns, at::kLong).mul(37).remainder(253);
  const at::Tensor magnitudes = codes.remainder(127), signs = codes.ge(127).to(at::kLong) * 128;
  ScaledMatrix matrix;
  matrix.stored = (magnitudes + signs).to(at::kByte).view({rows, columns}).view(at::kFloat8_e4m3fn);
  const int64_t block_rows = (rows + block[0] - 1) / block[0], block_columns = (columns + block[1] - 1) / block[1];
  matrix.scales = at::exp(at::sin(at::arange(block_rows * block_columns, at::kFloat) * 1.7 + seed) * 3 - 4)
                      .view({block_rows, block_columns});
  matrix.decoded = at::empty({rows, columns}, at::kFloat);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      matrix.decoded.mutable_data_ptr<float>()[i * columns + j] =
          static_cast<float>(matrix.stored.const_data_ptr<c10::Float8_e4m3fn>()[i * columns + j]) *
          matrix.scales.const_data_ptr<float>()[i / block[0] * block_columns + j / block[1]];
    }
  }
  return matrix;
}

TEST(BlockScales, AnyBoxOfAnyShapeIsDecoded) {
  struct Shape {
    int64_t rows, columns;
    std::vector<int64_t> block;
  };
  const TemporaryFolder folder;
  for (const Shape& shape : {Shape{1, 1, {128, 128}}, Shape{128, 256, {128, 128}}, Shape{129, 257, {128, 128}},
                             Shape{300, 127, {128, 128}}, Shape{17, 23, {3, 5}}, Shape{6, 11, {7, 1}}}) {
    const ScaledMatrix matrix = scaled_matrix(shape.rows, shape.columns, shape.block);
    write_scaled_tensors(folder.path() / "model.safetensors", {{"w", matrix.stored}, {"w_scale_inv", matrix.scales}});
    TensorStore store = TensorStore::open_folder(folder.path());
    store.set_block_scales(shape.block);
    const int64_t half = shape.rows / 2, third = shape.columns / 3;
    const std::vector<Box> boxes = {Box::whole({shape.rows, shape.columns}),
                                    {{half, 0}, {shape.rows - half, shape.columns}},
                                    {{0, third}, {shape.rows, shape.columns - third}},
                                    {{half, third}, {1, 1}},
                                    {{shape.rows - 1, 0}, {1, shape.columns}},
                                    {{half / 2, third}, {shape.rows - half, shape.columns - 2 * third}}};
    for (const Box& box : boxes) {
      const at::Tensor expected =
          matrix.decoded.narrow(0, box.offset[0], box.extent[0]).narrow(1, box.offset[1], box.extent[1]);
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
        const at::Tensor out = at::empty(box.extent, dtype);
        store.read("w", box, out);
        EXPECT_TRUE(at::equal(out, expected.to(dtype))) << shape.rows << " x " << shape.columns;
        const at::Tensor turned = at::empty({box.extent[1], box.extent[0]}, dtype);  // as a kept transpose has it
        store.read("w", box, turned.t());
        EXPECT_TRUE(at::equal(turned.t(), expected.to(dtype))) << shape.rows << " x " << shape.columns;
      }
    }
  }
}

TEST(BlockScales, MayBeOfOtherFloatTypesAndInOtherFiles) {
  const TemporaryFolder folder;
  const ScaledMatrix matrix = scaled_matrix(9, 10, {4, 4});
  for (const at::ScalarType dtype : {at::kBFloat16, at::kDouble}) {
    const at::Tensor scales = matrix.scales.to(dtype);
    write_scaled_tensors(folder.path() / "a.safetensors", {{"w", matrix.stored}});
    write_scaled_tensors(folder.path() / "b.safetensors", {{"w_scale_inv", scales}, {"bias", at::ones({3})}});
    folder.write("model.safetensors.index.json",
                 R"({"weight_map": {"w": "a.safetensors", "w_scale_inv": "b.safetensors", "bias": "b.safetensors"}})");
    TensorStore store = TensorStore::open_folder(folder.path());
    store.set_block_scales({4, 4});
    const at::Tensor out = at::empty({9, 10});
    store.read("w", Box::whole({9, 10}), out);
    const at::Tensor by_element =
        scales.to(at::kFloat).repeat_interleave(4, 0).repeat_interleave(4, 1).narrow(0, 0, 9).narrow(1, 0, 10);
    EXPECT_TRUE(at::equal(out, matrix.stored.to(at::kFloat) * by_element));
    const at::Tensor bias = at::empty({3});
    store.read("bias", Box::whole({3}), bias);
    EXPECT_TRUE(at::equal(bias, at::ones({3})));
  }
}

TEST(BlockScales, WhatDoesNotFitIsNamed) {
  const TemporaryFolder folder;
  const ScaledMatrix matrix = scaled_matrix(9, 10, {4, 4});
  const auto message = [&](const TensorMap& tensors) {
    write_scaled_tensors(folder.path() / "model.safetensors", tensors);
    TensorStore store = TensorStore::open_folder(folder.path());
    return message_of([&] { store.set_block_scales({4, 4}); });
  };
  const std::string file = (folder.path() / "model.safetensors").string();
  EXPECT_EQ(message({{"w", matrix.stored}, {"w_scale_inv", matrix.scales}}), "(no UserError)");
  EXPECT_TRUE(contains(message({{"w", matrix.stored}}), file + ": w is F8_E4M3, but its scales w_scale_inv are in no"));
  EXPECT_TRUE(
      contains(message({{"w", matrix.stored}, {"w_scale_inv", matrix.scales.narrow(1, 0, 2).contiguous()}}),
               file + ": w_scale_inv is F32 [3, 2], expected floats [3, 3]: one for each 4 x 4 block of [9, 10]"));
  EXPECT_TRUE(contains(message({{"w", matrix.stored}, {"w_scale_inv", at::ones({3, 3}, at::kInt)}}),
                       "w_scale_inv is I32 [3, 3], expected floats [3, 3]"));
  EXPECT_TRUE(contains(message({{"w", matrix.stored}, {"w_scale_inv", at::ones({9})}}), "w_scale_inv is F32 [9]"));
  EXPECT_TRUE(contains(message({{"w", matrix.stored.flatten()}, {"w_scale_inv", matrix.scales}}),
                       file + ": w is F8_E4M3 [90], and block scales belong to matrices"));
}

// ---- Hugging Face folders ----

// A folder whose projections are FP8 in blocks of 7 x 5, which divide nothing here.
struct QuantisedFolder {
  TemporaryFolder folder;
  ModelConfig config = tiny_llama();
  TensorMap stored, decoded;  // as in the file, and canonical float32 tensors
  Json json;

  QuantisedFolder() {
    const Groups groups = Groups::single();
    const auto model = unloaded_model(config, groups, at::kFloat);
    for (Parameter* parameter : model->parameters()) parameter->initialise(3);
    save_hf(folder.path() / "m", model_tensors(model->parameters()), family_for(config), config, groups,
            {.dtype = at::kBFloat16});
    double seed = 0;
    for (const auto& [name, tensor] : values_of(*model)) {
      if (!contains(name, "_proj")) {
        stored[name] = tensor.to(at::kBFloat16);
        decoded[name] = stored[name].to(at::kFloat);
        continue;
      }
      const ScaledMatrix matrix = scaled_matrix(tensor.size(0), tensor.size(1), {7, 5}, ++seed);
      stored[name] = matrix.stored;
      stored[name + "_scale_inv"] = matrix.scales;
      decoded[name] = matrix.decoded;
    }
    json = load_json(path() / "config.json");
    json["quantization_config"] = {
        {"quant_method", "fp8"}, {"fmt", "e4m3"}, {"activation_scheme", "dynamic"}, {"weight_block_size", {7, 5}}};
    write();
  }
  fs::path path() const { return folder.path() / "m"; }
  void write() const {
    write_scaled_tensors(path() / "model.safetensors", stored);
    folder.write("m/config.json", dump_json(json));
  }
};

// "" when the model holds the slices of these tensors, rounded once.
std::string wrong_parameter(const Model& model, const TensorMap& canonical) {
  for (const Parameter* parameter : model.parameters()) {
    for (const Piece& piece : parameter->placement().pieces) {
      const at::Tensor held = box_view(parameter->data(), piece.local);
      if (!at::equal(held, box_view(canonical.at(piece.name), piece.canonical).to(held.scalar_type())))
        return piece.name;
    }
  }
  return "";
}

TEST(BlockScales, FoldersLoadUnderAnyLayout) {
  const QuantisedFolder quantised;
  const HfModel read = read_hf_config(quantised.path());
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const Mesh::Sizes& sizes : {Mesh::Sizes{}, Mesh::Sizes{.tp = 2}, Mesh::Sizes{.tp = 2, .dp = 2}}) {
      const Mesh mesh(sizes);
      ThreadWorld(mesh.world_size()).run(mesh, [&](Groups& groups) {
        const auto model = unloaded_model(read.config, groups, dtype);
        load_hf(quantised.path(), model_tensors(model->parameters()), groups);
        EXPECT_EQ(wrong_parameter(*model, quantised.decoded), "");
      });
    }
  }
}

TEST(BlockScales, ExportsAreNotQuantised) {
  const QuantisedFolder quantised;
  const Groups groups = Groups::single();
  const auto model = unloaded_model(quantised.config, groups, at::kBFloat16);
  load_hf(quantised.path(), model_tensors(model->parameters()), groups);
  const fs::path out = quantised.folder.path() / "out";
  save_hf(out, model_tensors(model->parameters()), family_for(quantised.config), quantised.config, groups, {});
  EXPECT_FALSE(load_json(out / "config.json").contains("quantization_config"));
  const SafetensorsFile file(out / "model.safetensors");
  EXPECT_EQ(file.tensors().size(), quantised.decoded.size());
  for (const auto& [name, tensor] : file.tensors()) EXPECT_EQ(tensor.dtype, SafetensorsDtype::kBf16) << name;
}

TEST(BlockScales, ConversionDecodes) {
  const QuantisedFolder quantised;
  const StoredModel stored = open_stored_hf(quantised.path());
  EXPECT_EQ(stored.state.tensors.size(), quantised.decoded.size());
  for (const CheckpointTensor& tensor : stored.state.tensors) {
    const std::string& name = tensor.placement->pieces.at(0).name;
    EXPECT_EQ(tensor.local.scalar_type(), at::kBFloat16) << name;
    EXPECT_TRUE(at::equal(values_of(tensor.local), quantised.decoded.at(name).to(at::kBFloat16))) << name;
  }
}

TEST(BlockScales, LoadingNamesWhatIsMissing) {
  QuantisedFolder quantised;
  const Groups groups = Groups::single();
  const auto model = unloaded_model(quantised.config, groups, at::kFloat);
  const auto message = [&] {
    quantised.write();
    return message_of([&] { load_hf(quantised.path(), model_tensors(model->parameters()), groups); });
  };
  quantised.json["quantization_config"]["weight_block_size"] = {7, 6};
  EXPECT_TRUE(contains(message(), "one for each 7 x 6 block"));
  quantised.json["quantization_config"]["weight_block_size"] = {7};
  EXPECT_TRUE(contains(message(), "weight_block_size is [7]"));
  quantised.json.erase("quantization_config");  // then nothing says what the scales are
  EXPECT_TRUE(contains(message(), "14 unexpected: model.layers.0.mlp.down_proj.weight_scale_inv"));
  for (const Parameter* parameter : model->parameters()) EXPECT_TRUE(parameter->data().eq(-99).all().item<bool>());
}

// DeepSeek-V3's files have a layer after the last one, for predicting further tokens.
TEST(BlockScales, PredictionLayersArePassedOver) {
  QuantisedFolder quantised;
  const Groups groups = Groups::single();
  const ScaledMatrix matrix = scaled_matrix(48, 24, {7, 5});
  quantised.stored["model.layers.2.eh_proj.weight"] = matrix.stored;
  quantised.stored["model.layers.2.eh_proj.weight_scale_inv"] = matrix.scales;
  quantised.write();
  const auto model = unloaded_model(quantised.config, groups, at::kFloat);
  const auto load = [&] { load_hf(quantised.path(), model_tensors(model->parameters()), groups); };
  EXPECT_TRUE(contains(message_of(load), "2 unexpected: model.layers.2.eh_proj.weight"));
  quantised.json["num_nextn_predict_layers"] = 1;
  quantised.write();
  load();
  EXPECT_EQ(wrong_parameter(*model, quantised.decoded), "");
  EXPECT_EQ(open_stored_hf(quantised.path()).state.tensors.size(), quantised.decoded.size());
}

}  // namespace
}  // namespace megalith
