// Sizes from outside that no model has: each ends in a message for people or in a model that can be counted, before
// anything is allocated.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

#include "comm/groups.h"
#include "core/error.h"
#include "kinds/kinds.h"
#include "models/model_bounds.h"
#include "support/source_dir.h"
#include "support/temporary_folder.h"
#include "train/report.h"
#include "train/setup.h"

namespace megalith {
namespace {

using SizesJson = nlohmann::json;

SizesJson small_llama() {
  return SizesJson::parse(R"({
    "model_type": "llama", "vocab_size": 131, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "hidden_act": "silu",
    "max_position_embeddings": 128, "initializer_range": 0.02, "rms_norm_eps": 1e-05, "tie_word_embeddings": false,
    "rope_theta": 500000.0, "bos_token_id": 1, "eos_token_id": [2, 3], "attention_dropout": 0.0,
    "rope_scaling": {"factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                     "original_max_position_embeddings": 64, "rope_type": "llama3"}})");
}

SizesJson small_deepseek(const char* version) {
  SizesJson config = small_llama();
  config.update(SizesJson::parse(R"({
    "first_k_dense_replace": 1, "kv_lora_rank": 24, "q_lora_rank": 32, "moe_intermediate_size": 32, "n_group": 4,
    "topk_group": 2, "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 4, "num_key_value_heads": 4,
    "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8, "routed_scaling_factor": 1.5,
    "num_nextn_predict_layers": 1,
    "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.7, "mscale_all_dim": 0.7,
                     "original_max_position_embeddings": 64, "type": "yarn"}})"));
  config["model_type"] = version;
  const bool is_v3 = std::string_view(version) == "deepseek_v3";
  config["scoring_func"] = is_v3 ? "sigmoid" : "softmax";
  config["topk_method"] = is_v3 ? "noaux_tc" : "group_limited_greedy";
  if (is_v3) config["norm_topk_prob"] = true;
  return config;
}

std::vector<SizesJson> small_configs() {
  SizesJson mistral = small_llama(), qwen = small_llama(), qwen3 = small_llama(), mixtral = small_llama();
  mistral["model_type"] = "mistral";
  mistral["sliding_window"] = 32;
  qwen["model_type"] = "qwen2";
  qwen3["model_type"] = "qwen3";
  mixtral["model_type"] = "mixtral";
  mixtral["num_local_experts"] = 4;
  mixtral["num_experts_per_tok"] = 2;
  const SizesJson gpt2 = SizesJson::parse(R"({
    "model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_inner": 96, "n_layer": 2, "n_positions": 128, "vocab_size": 131,
    "activation_function": "gelu_new", "attn_pdrop": 0.1, "embd_pdrop": 0.1, "resid_pdrop": 0.1,
    "layer_norm_epsilon": 1e-05, "bos_token_id": 130, "eos_token_id": 130, "initializer_range": 0.02})");
  return {small_llama(), mistral, qwen, qwen3, mixtral, small_deepseek("deepseek_v2"), small_deepseek("deepseek_v3"),
          gpt2};
}

// Draws a damaged number: the edges of the types and of the bounds, powers of two in between, fractions.
SizesJson extreme_number(std::mt19937_64& random) {
  const SizesJson edges[] = {0,
                             1,
                             -1,
                             2,
                             7,
                             1 << 16,
                             (int64_t{1} << 31) - 1,
                             int64_t{1} << 31,
                             int64_t{1} << 32,
                             (int64_t{1} << 53) + 1,
                             INT64_MAX,
                             INT64_MAX - 1,
                             INT64_MIN,
                             -(int64_t{1} << 31),
                             UINT64_MAX,
                             uint64_t{1} << 63,
                             kMostLayers,
                             kMostWidth,
                             kMostFfnWidth,
                             kMostHeads,
                             kMostVocabulary,
                             kMostPositions,
                             kMostExperts,
                             kMostWidth + 1,
                             1e30,
                             1e308,
                             -1e308,
                             5e-324,
                             0.5,
                             4096.0};
  const size_t choice = random() % (std::size(edges) + 12);
  if (choice < std::size(edges)) return edges[choice];
  return (int64_t{1} << (random() % 63)) + static_cast<int64_t>(random() % 3) - 1;
}

// Paths of all numbers.
void collect_numbers(const SizesJson& value, const SizesJson::json_pointer& at,
                     std::vector<SizesJson::json_pointer>& found) {
  if (value.is_number()) found.push_back(at);
  if (value.is_object()) {
    for (const auto& [key, member] : value.items()) collect_numbers(member, at / key, found);
  }
  if (value.is_array()) {
    for (size_t i = 0; i < value.size(); ++i) collect_numbers(value[i], at / i, found);
  }
}

int64_t peak_resident_bytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;
}

enum class SizesOutcome { kRefused, kCounted, kOnlyEstimated };

// As `train --dry_run` goes about it.
SizesOutcome dry_run_of(const std::filesystem::path& folder) {
  ConfigInputs inputs;
  inputs.arguments = {"--load_hf", folder.string(), "--mock_data", "--dry_run"};
  inputs.config_root = test::source_dir() / "configs";
  std::unique_ptr<Resolved> resolved;
  try {
    resolved = resolve_config(all_kinds(), inputs, 1);
  } catch (const UserError&) {
    return SizesOutcome::kRefused;
  }
  ModelConfig config = resolved->config.model;
  config.vocab_size = resolved->derived.vocab_size;
  const double elements = count_matrix_elements(config);
  EXPECT_TRUE(elements > 0 && elements <= static_cast<double>(kMostParameters)) << elements;
  // Descriptions of many parts take a while to make: above a 256th of the most the estimate is enough.
  const int64_t parts = config.num_layers * (config.num_attention_heads + config.num_experts.value_or(0));
  if (parts > kMostLayerParts / 256) return SizesOutcome::kOnlyEstimated;
  const Groups groups = Groups::single();
  const BuiltModel built = build_model(*resolved, groups, at::kMeta);
  const ModelNumbers numbers = count_model(built, *resolved);
  EXPECT_GE(static_cast<double>(numbers.parameters), 0.999 * elements);
  EXPECT_LE(static_cast<double>(numbers.parameters), 2 * static_cast<double>(kMostParameters));
  EXPECT_TRUE(std::isfinite(numbers.flops_per_step) && numbers.flops_per_step > 0);
  EXPECT_NE(startup_report(*resolved, numbers, nullptr, "none").find(" parameters: embedding "), std::string::npos);
  return SizesOutcome::kCounted;
}

TEST(HostileSizes, EveryDamagedConfigIsRefusedOrCounted) {
  const test::TemporaryFolder folder;
  std::mt19937_64 random(20);
  std::map<SizesOutcome, int> outcomes;
  const int64_t peak_before = peak_resident_bytes();
  for (const SizesJson& original : small_configs()) {
    folder.write("config.json", original.dump());
    ASSERT_EQ(dry_run_of(folder.path()), SizesOutcome::kCounted) << original.at("model_type");
    std::vector<SizesJson::json_pointer> numbers;
    collect_numbers(original, SizesJson::json_pointer(), numbers);
    for (int trial = 0; trial < 200; ++trial) {
      SizesJson damaged = original;
      // First every number by itself, a few times; then several together.
      const size_t count = trial < 120 ? 1 : 1 + random() % 4;
      for (size_t i = 0; i < count; ++i) {
        const size_t which = trial < 120 ? static_cast<size_t>(trial) % numbers.size() : random() % numbers.size();
        damaged[numbers[which]] = extreme_number(random);
      }
      folder.write("config.json", damaged.dump());
      try {
        ++outcomes[dry_run_of(folder.path())];
      } catch (const std::exception& error) {
        ADD_FAILURE() << damaged.dump() << "\n" << error.what();
      }
    }
  }
  // The check must not refuse everything, and must look at more than sizes.
  EXPECT_GT(outcomes[SizesOutcome::kRefused], 320);
  EXPECT_GT(outcomes[SizesOutcome::kCounted], 120);
  // Weights would be terabytes in many of these; descriptions of their parts are megabytes.
  EXPECT_LT(peak_resident_bytes() - peak_before, int64_t{1} << 30);
}

std::string refusal_of(const std::vector<std::string>& more) {
  ConfigInputs inputs;
  inputs.arguments = {"--num_layers=2",          "--hidden_size=32",     "--num_attention_heads=4",
                      "--vocab_size=100",        "--mock_data",          "--max_position_embeddings=64",
                      "--normalization=RMSNorm", "--disable_bias_linear"};
  inputs.arguments.insert(inputs.arguments.end(), more.begin(), more.end());
  inputs.config_root = test::source_dir() / "configs";
  try {
    resolve_config(all_kinds(), inputs, 1);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(HostileSizes, OptionsHaveTheSameBounds) {
  for (const char* name : {"num_layers",
                           "hidden_size",
                           "ffn_hidden_size",
                           "num_attention_heads",
                           "kv_channels",
                           "num_query_groups",
                           "vocab_size",
                           "make_vocab_size_divisible_by",
                           "max_position_embeddings",
                           "num_experts",
                           "moe_ffn_hidden_size",
                           "moe_router_topk",
                           "moe_shared_expert_intermediate_size",
                           "num_shared_experts",
                           "kv_lora_rank",
                           "q_lora_rank",
                           "qk_head_dim",
                           "qk_pos_emb_head_dim",
                           "v_head_dim",
                           "mtp_num_layers",
                           "seq_length",
                           "micro_batch_size",
                           "tensor_model_parallel_size",
                           "pipeline_model_parallel_size",
                           "context_parallel_size",
                           "expert_model_parallel_size"}) {
    for (const int64_t value : {INT64_MAX, int64_t{1} << 62, (int64_t{1} << 30) + 1}) {
      const std::string refusal = refusal_of({fmt::format("--{}={}", name, value)});
      EXPECT_NE(refusal.find(fmt::format("--{} is '{}'", name, value)), std::string::npos) << refusal;
      EXPECT_NE(refusal.find("at most"), std::string::npos) << refusal;
    }
  }
  EXPECT_EQ(refusal_of({}), "");
}

TEST(HostileSizes, ProductsHaveBoundsOfTheirOwn) {
  const auto expect = [](const std::vector<std::string>& more, const std::string& part) {
    EXPECT_NE(refusal_of(more).find(part), std::string::npos) << refusal_of(more);
  };
  expect({"--num_layers=4096", "--hidden_size=1048576", "--ffn_hidden_size=4194304"}, "give 5.4e+16 parameters");
  expect({"--num_layers=4096", "--hidden_size=4096", "--num_attention_heads=4096"},
         "num_layers 4096 times num_attention_heads 4096 is 16777216, expected at most 262144");
  expect({"--num_layers=4096", "--num_experts=65536"},
         "num_layers 4096 times num_experts 65536 is 268435456, expected at most 262144");
  expect({"--num_experts=8", "--num_shared_experts=65536", "--moe_ffn_hidden_size=4194304"},
         "num_shared_experts 65536 times moe_ffn_hidden_size 4194304 is 274877906944, expected at most 4194304");
}

TEST(HostileSizes, WeightsBeyondTheMemoryAreRefusedBeforeTheyAreAllocated) {
  ConfigInputs inputs;
  inputs.arguments = {"--num_layers=1000",
                      "--hidden_size=65536",
                      "--ffn_hidden_size=1048576",
                      "--num_attention_heads=64",
                      "--vocab_size=100",
                      "--max_position_embeddings=64",
                      "--mock_data"};
  inputs.config_root = test::source_dir() / "configs";
  const auto resolved = resolve_config(all_kinds(), inputs, 1);
  const Groups groups = Groups::single();
  try {
    build_model(*resolved, groups, at::kCPU);
    ADD_FAILURE() << "600 TB were allocated";
  } catch (const UserError& error) {
    EXPECT_TRUE(error.message().starts_with("the weights of a rank take ")) << error.message();
  }
  // On the meta device, which stores nothing, it is a model like any other.
  EXPECT_GT(build_model(*resolved, groups, at::kMeta).num_parameters(), int64_t{150'000'000'000'000});
}

}  // namespace
}  // namespace megalith
