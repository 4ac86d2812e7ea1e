// Hugging Face folders in and out, on real models. tests/oracle loads exports with transformers.
#include "checkpoint/hf.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "checkpoint/convert.h"
#include "comm/thread_world.h"
#include "core/error.h"
#include "core/json.h"
#include "support/module_tools.h"
#include "support/temporary_folder.h"
#include "tensor_files/safetensors_writer.h"
#include "tiny_llama.h"
#include "toy_state.h"

namespace megalith {
namespace {

using namespace test;  // NOLINT: helpers
namespace fs = std::filesystem;

ModelConfig tiny_config(bool is_tied, bool has_qkv_bias = false) {
  ModelConfig config = tiny_llama();
  config.add_qkv_bias = has_qkv_bias;
  config.untie_embeddings_and_output_weights = !is_tied;
  config.bos_token_id = 1;
  config.eos_token_ids = {2, 3};
  return config;
}

// Values that every dtype here holds exactly.
void fill(const Model& model) {
  TensorMap values;
  for (const Parameter* parameter : model.parameters()) {
    for (const Piece& piece : parameter->placement().pieces)
      values[piece.name] = canonical_value("model", piece.name, piece.shape);
  }
  for (Parameter* parameter : model.parameters()) parameter->data().zero_();
  load(model, values);
}

// "" when every parameter holds the canonical values, and zeros where it is padded.
std::string first_difference(const Model& model) {
  for (const Parameter* parameter : model.parameters()) {
    const at::Tensor expected = expected_local(parameter->placement(), "model", parameter->data().scalar_type());
    if (!at::equal(parameter->data(), expected)) return parameter->name();
  }
  return "";
}

void save(const fs::path& folder, const ModelConfig& config, const Groups& groups,
          const HfExport& settings = {.dtype = at::kFloat}) {
  const auto model = unloaded_model(config, groups);
  fill(*model);
  save_hf(folder, model_tensors(model->parameters()), family_for(config), config, groups, settings);
}

// Every block is told, and the last line says that all bytes are written.
TEST(Hf, AnExportTellsHowFarItIs) {
  const TemporaryFolder folder;
  std::vector<std::string> lines;
  Logger log({.write = [&](std::string_view line) { lines.emplace_back(line); }});
  save(folder.path() / "m", tiny_llama(), Groups::single(),
       {.dtype = at::kFloat, .log = &log, .progress = {.line_every_s = 0}});
  ASSERT_GT(lines.size(), 2u);
  const std::string start = fmt::format("exporting to {}: ", (folder.path() / "m").string());
  for (const std::string& line : lines) EXPECT_TRUE(line.starts_with(start)) << line;
  EXPECT_NE(lines.front().find(", ETA "), std::string::npos) << lines.front();
  EXPECT_EQ(lines.front().find("(100 %)"), std::string::npos) << lines.front();
  EXPECT_NE(lines.back().find("(100 %)"), std::string::npos) << lines.back();
}

TEST(Hf, ExportComesBackBitEqual) {
  const Groups groups = Groups::single();
  for (const bool is_tied : {false, true}) {
    for (const bool has_bias : {false, true}) {
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
        const TemporaryFolder folder;
        const ModelConfig config = tiny_config(is_tied, has_bias);
        save(folder.path() / "m", config, groups, {.dtype = dtype, .block_bytes = 100});
        const HfModel read = read_hf_config(folder.path() / "m");
        EXPECT_EQ(read.config.num_query_groups, 2);
        for (const at::ScalarType wanted : {at::kFloat, at::kBFloat16}) {
          const auto model = unloaded_model(read.config, groups, wanted);
          load_hf(folder.path() / "m", model_tensors(model->parameters()), groups);
          EXPECT_EQ(first_difference(*model), "") << is_tied << has_bias;
        }
      }
    }
  }
}

TEST(Hf, FilesAreTransformers) {
  const TemporaryFolder folder;
  save(folder.path() / "m", tiny_config(/*is_tied=*/true), Groups::single(), {.dtype = at::kBFloat16});
  const SafetensorsFile file(folder.path() / "m" / "model.safetensors");
  EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"format", "pt"}}));
  EXPECT_EQ(file.find("lm_head.weight"), nullptr);  // a tied copy is not written
  EXPECT_EQ(file.find("model.embed_tokens.weight")->shape, (std::vector<int64_t>{37, 24}));  // without padding
  EXPECT_EQ(file.find("model.layers.1.self_attn.k_proj.weight")->shape, (std::vector<int64_t>{12, 24}));
  EXPECT_EQ(file.find("model.norm.weight")->dtype, SafetensorsDtype::kBf16);
  EXPECT_EQ(file.tensors().size(), 2u + 2 * 9);
  EXPECT_EQ(load_json(folder.path() / "m" / "config.json")["torch_dtype"], "bfloat16");
  const Json generation = load_json(folder.path() / "m" / "generation_config.json");
  EXPECT_EQ(generation["bos_token_id"], 1);
  EXPECT_EQ(generation["eos_token_id"], (Json{2, 3}));
}

TEST(Hf, ShardsAreFilledInModelOrder) {
  const TemporaryFolder folder;
  const Groups groups = Groups::single();
  const ModelConfig config = tiny_config(/*is_tied=*/false);
  save(folder.path(), config, groups, {.dtype = at::kFloat, .max_shard_bytes = 6000});
  const Json index = load_json(folder.path() / "model.safetensors.index.json");
  std::map<std::string, int64_t> bytes;
  int64_t total = 0;
  for (const auto& [name, file] : index["weight_map"].items()) {
    const SafetensorsFile shard(folder.path() / file.get<std::string>());
    ASSERT_NE(shard.find(name), nullptr) << name;
    bytes[file.get<std::string>()] += shard.find(name)->num_bytes;
    total += shard.find(name)->num_bytes;
  }
  EXPECT_EQ(index["metadata"]["total_size"], total);
  EXPECT_EQ(index["weight_map"]["model.embed_tokens.weight"],
            fmt::format("model-00001-of-{:05d}.safetensors", bytes.size()));
  EXPECT_EQ(index["weight_map"]["lm_head.weight"], fmt::format("model-{0:05d}-of-{0:05d}.safetensors", bytes.size()));
  EXPECT_GT(bytes.size(), 3u);
  for (const auto& [file, size] : bytes) EXPECT_LE(size, 6000) << file;
  EXPECT_FALSE(fs::exists(folder.path() / "model.safetensors"));
  const auto model = unloaded_model(config, groups);
  load_hf(folder.path(), model_tensors(model->parameters()), groups);
  EXPECT_EQ(first_difference(*model), "");
}

TEST(Hf, EveryLayoutWritesTheSameBytesAndReadsThem) {
  const TemporaryFolder folder;
  const ModelConfig config = tiny_config(/*is_tied=*/true, /*has_qkv_bias=*/true);
  save(folder.path() / "one", config, Groups::single());
  for (const Mesh::Sizes& sizes : {Mesh::Sizes{.tp = 2}, Mesh::Sizes{.dp = 3}, Mesh::Sizes{.tp = 2, .dp = 2}}) {
    const Mesh mesh(sizes);
    const fs::path path = folder.path() / mesh.describe(0);
    ThreadWorld(mesh.world_size()).run(mesh, [&](Groups& groups) {
      save(path, config, groups);
      const auto model = unloaded_model(config, groups);
      load_hf(path, model_tensors(model->parameters()), groups);
      EXPECT_EQ(first_difference(*model), "");
    });
    EXPECT_EQ(read_file(path / "model.safetensors"), read_file(folder.path() / "one" / "model.safetensors"));
  }
}

TEST(Hf, StagesOfAPipelineShareOneFolder) {
  const TemporaryFolder folder;
  const ModelConfig config = tiny_config(/*is_tied=*/true);
  save(folder.path() / "one", config, Groups::single());
  ThreadWorld(2).run(Mesh({.pp = 2}), [&](Groups& groups) {
    const bool is_first = groups.pp->is_first();
    ModelPart part = ModelPart::whole(model_units(config));
    part.range = is_first ? UnitRange{0, 2} : UnitRange{2, 2};  // embedding and layer, layer and head
    const auto stage = family_for(config).build(config, {.groups = &groups, .dtype = at::kFloat}, part);
    load_hf(folder.path() / "one", model_tensors(stage->parameters()), groups);
    EXPECT_EQ(first_difference(*stage), "");
    save_hf(folder.path() / "two", model_tensors(stage->parameters()), family_for(config), config, groups,
            {.dtype = at::kFloat});
  });
  EXPECT_EQ(read_file(folder.path() / "two" / "model.safetensors"),
            read_file(folder.path() / "one" / "model.safetensors"));
}

// Writes model.safetensors from a map.
void write_model(const fs::path& folder, const TensorMap& tensors) {
  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, tensor] : tensors)
    entries.push_back({name, safetensors_dtype_of(tensor.scalar_type()), tensor.sizes().vec()});
  SafetensorsWriter writer(folder / "model.safetensors", make_safetensors_layout(std::move(entries)));
  for (const auto& [name, tensor] : tensors)
    writer.write(name, 0, {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()});
  writer.finish();
}

TensorMap canonical_tensors(const ModelConfig& config) {
  const Groups groups = Groups::single();
  const auto model = unloaded_model(config, groups);
  fill(*model);
  return values_of(*model);
}

TEST(Hf, TiedHeadMayBeOnDiskAndOldBuffersArePassedOver) {
  const Groups groups = Groups::single();
  const ModelConfig config = tiny_config(/*is_tied=*/true);
  const TemporaryFolder folder;
  TensorMap tensors = canonical_tensors(config);
  tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone();
  tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = at::ones({3});
  write_model(folder.path(), tensors);
  const auto model = unloaded_model(config, groups);
  load_hf(folder.path(), model_tensors(model->parameters()), groups);
  EXPECT_EQ(first_difference(*model), "");

  tensors.erase("model.embed_tokens.weight");  // only the head stays, as some exporters leave it
  write_model(folder.path(), tensors);
  load_hf(folder.path(), model_tensors(model->parameters()), groups);
  EXPECT_EQ(first_difference(*model), "");
}

TEST(Hf, EverythingThatDoesNotFitIsNamedAndNothingIsChanged) {
  const Groups groups = Groups::single();
  const ModelConfig config = tiny_config(/*is_tied=*/false);
  const TemporaryFolder folder;
  TensorMap tensors = canonical_tensors(config);
  tensors.erase("model.layers.0.self_attn.k_proj.weight");
  tensors.erase("lm_head.weight");
  tensors["model.norm.weight"] = at::ones({23});
  tensors["model.layers.1.mlp.up_proj.weight"] = at::ones({24, 20});
  tensors["model.layers.2.mlp.up_proj.weight"] = at::ones({20, 24});
  write_model(folder.path(), tensors);
  const auto model = unloaded_model(config, groups);
  const std::string message = message_of([&] { load_hf(folder.path(), model_tensors(model->parameters()), groups); });
  EXPECT_TRUE(contains(message, "2 missing: model.layers.0.self_attn.k_proj.weight, lm_head.weight"));
  EXPECT_TRUE(contains(message,
                       "2 misshaped: model.layers.1.mlp.up_proj.weight is [24, 20], expected [20, 24], "
                       "model.norm.weight is [23], expected [24]"));
  EXPECT_TRUE(contains(message, "1 unexpected: model.layers.2.mlp.up_proj.weight"));
  for (const Parameter* parameter : model->parameters()) EXPECT_TRUE(parameter->data().eq(-99).all().item<bool>());
}

// A damaged header may turn F32 into a type of the same width: the bits would then be taken for whole numbers.
TEST(Hf, WholeNumbersAreNoWeights) {
  const Groups groups = Groups::single();
  const ModelConfig config = tiny_config(/*is_tied=*/true);
  const std::string tensor = "model.layers.1.mlp.up_proj.weight";
  for (const auto& [dtype, damages] : {std::pair(at::kFloat, std::vector<std::string>{"I32", "U32"}),
                                       std::pair(at::kBFloat16, std::vector<std::string>{"I16", "U16"})}) {
    const std::string written = dtype == at::kFloat ? "F32" : "BF16";
    for (const std::string& damage : damages) {
      const TemporaryFolder folder;
      save(folder.path() / "m", config, groups, {.dtype = dtype});
      const fs::path file = folder.path() / "m" / "model.safetensors";
      std::string content = read_file(file);
      const size_t at = content.find(fmt::format("\"dtype\":\"{}\"", written), content.find('"' + tensor + '"'));
      ASSERT_NE(at, std::string::npos);
      // The header keeps its length: blanks between JSON's words mean nothing.
      std::string entry = fmt::format("\"dtype\":\"{}\"", damage);
      entry.resize(fmt::format("\"dtype\":\"{}\"", written).size(), ' ');
      content.replace(at, entry.size(), entry);
      write_file_atomic(file, content);
      const auto model = unloaded_model(config, groups);
      const std::string message =
          message_of([&] { load_hf(folder.path() / "m", model_tensors(model->parameters()), groups); });
      EXPECT_TRUE(contains(message, fmt::format("{}: {} is of type {}, expected one of BF16, F16, F32, F64",
                                                file.string(), tensor, damage)));
      EXPECT_TRUE(contains(message_of([&] { open_stored_hf(folder.path() / "m"); }), "is of type " + damage));
    }
  }
}

TEST(Hf, TokenizerFilesComeAlong) {
  const TemporaryFolder folder;
  const Groups groups = Groups::single();
  const ModelConfig config = tiny_config(/*is_tied=*/true);
  folder.write("tokens/tokenizer.json", "{}");
  folder.write("tokens/merges.txt", "a b");
  folder.write("tokens/weights.bin", "no tokenizer");
  save(folder.path() / "m", config, groups, {.dtype = at::kFloat, .tokenizer = folder.path() / "tokens"});
  EXPECT_EQ(read_file(folder.path() / "m" / "merges.txt"), "a b");
  EXPECT_TRUE(fs::exists(folder.path() / "m" / "tokenizer.json"));
  EXPECT_FALSE(fs::exists(folder.path() / "m" / "weights.bin"));
  save(folder.path() / "n", config, groups,
       {.dtype = at::kFloat, .tokenizer = folder.path() / "tokens" / "merges.txt"});
  EXPECT_TRUE(fs::exists(folder.path() / "n" / "merges.txt"));
  fs::create_directory(folder.path() / "nothing");
  const std::string message = message_of([&] {
    save(folder.path() / "o", config, groups, {.dtype = at::kFloat, .tokenizer = folder.path() / "nothing"});
  });
  EXPECT_TRUE(contains(message, "holds no tokenizer file"));
  EXPECT_FALSE(fs::exists(folder.path() / "o"));  // all or nothing
}

TEST(Hf, AnExportReplacesAnExportAndNothingElse) {
  const TemporaryFolder folder;
  const Groups groups = Groups::single();
  save(folder.path() / "m", tiny_config(/*is_tied=*/false), groups, {.dtype = at::kFloat, .max_shard_bytes = 6000});
  folder.write("m/notes.txt", "keep me");
  save(folder.path() / "m", tiny_config(/*is_tied=*/true), groups);
  EXPECT_FALSE(fs::exists(folder.path() / "m" / "model.safetensors.index.json"));
  for (const auto& entry : fs::directory_iterator(folder.path() / "m")) {
    EXPECT_FALSE(contains(entry.path().string(), "-of-")) << entry.path();  // weights of the earlier one
  }
  EXPECT_EQ(read_file(folder.path() / "m" / "notes.txt"), "keep me");
  const auto model = unloaded_model(tiny_config(/*is_tied=*/true), groups);
  load_hf(folder.path() / "m", model_tensors(model->parameters()), groups);
  EXPECT_EQ(first_difference(*model), "");
  folder.write("mine/notes.txt", "keep me");
  EXPECT_TRUE(contains(message_of([&] { save(folder.path() / "mine", tiny_config(true), groups); }),
                       "exists and is not a Hugging Face model"));
  EXPECT_EQ(read_file(folder.path() / "mine" / "notes.txt"), "keep me");
}

}  // namespace
}  // namespace megalith
