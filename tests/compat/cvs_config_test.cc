// CVS's files are read as its page prints them; what is missing in them is told at once, in their own words.
#include "compat/cvs_config.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "compat/cvs_case.h"
#include "core/file.h"
#include "support/error_of.h"
#include "support/source_dir.h"

namespace megalith {
namespace {

using test::error_of;

constexpr const char* kCvsFiles[] = {"mi3xx_megatron_llama_single.json", "mi35x_megatron_llama_single.json",
                                     "mi3xx_megatron_llama_distributed.json"};

CvsConfig shipped(const std::string& name, std::vector<std::string> settings = {}) {
  const std::filesystem::path file = test::source_dir() / "configs" / "cvs" / name;
  CvsConfig config = parse_cvs_config(read_file(file), name, "ada");
  set_cvs_values(config, settings, "ada");
  return config;
}

// A file of one case; `more` is put before the closing bracket of its result_dict.
std::string small_file(const std::string& config, const std::string& more) {
  return "{\"config\": {\"Nnodes\": \"1\", \"training_iterations\": \"30\", \"mock_data\": \"True\"" + config +
         "},\n \"model_params\": {\"single_node\": {\"llama3.1-8b\": {\"mi300X\": {\"tokenizer_model\": \"t\",\n"
         "  \"model_size\": \"8\", \"batch_size\": \"128\", \"micro_batch_size\": \"2\", \"precision\": \"TE_FP8\",\n"
         "  \"sequence_length\": \"8192\", \"tensor_parallelism\": \"1\", \"pipeline_parallelism\": \"1\",\n"
         "  \"recompute\": \"0\", \"fsdp\": \"0\", \"result_dict\": {\"tokens_per_gpu\": \"6500.0\"" +
         more + "}}}}}}";
}

TEST(CvsConfig, TheShippedFilesHaveTwelveCases) {
  std::vector<std::string> names;
  for (const char* file : kCvsFiles) {
    const CvsConfig config = shipped(file);
    EXPECT_TRUE(config.warnings.empty()) << config.warnings.front();
    for (const CvsEntry& entry : config.entries) names.push_back(entry.name());
  }
  EXPECT_EQ(names.size(), 12u);
  EXPECT_EQ(names.front(), "single_node/llama3_1_70b/mi300x");
}

TEST(CvsConfig, TheLoginNameIsPutIn) {
  const CvsConfig config = shipped("mi3xx_megatron_llama_distributed.json");
  EXPECT_EQ(*config.config.find("log_dir"), "/home/ada/LOG_DIR");
  EXPECT_EQ(config.volume_dict.size(), 5u);
  EXPECT_NE(std::find(config.volume_dict.begin(), config.volume_dict.end(),
                      std::pair<std::string, std::string>("/home/ada", "/home/ada")),
            config.volume_dict.end());
  EXPECT_EQ(config.device_list, (std::vector<std::string>{"/dev/dri", "/dev/kfd", "/dev/infiniband/rdma_cm"}));
}

TEST(CvsConfig, NamesMatchWithoutRegardToCaseAndSeparators) {
  const CvsConfig config = parse_cvs_config(small_file("", ""), "f.json", "ada");
  EXPECT_EQ(*config.config.find("nnodes"), "1");
  const CvsCase of = resolve_cvs_case(config, {.name = "single_node/llama3.1-8b/MI300X"});
  EXPECT_EQ(of.name(), "single_node/llama3_1_8b/mi300x");
  EXPECT_EQ(of.batch_size, 128);
  EXPECT_TRUE(of.is_fp8);
}

TEST(CvsConfig, ACommaThatNothingFollowsIsAWarning) {
  const CvsConfig config = parse_cvs_config(small_file("", ",\n"), "f.json", "ada");
  ASSERT_EQ(config.warnings.size(), 1u);
  EXPECT_NE(config.warnings[0].find("f.json:5:"), std::string::npos) << config.warnings[0];
  EXPECT_EQ(config.entries.size(), 1u);
}

TEST(CvsConfig, WhatIsNotJsonIsToldWithLineAndColumn) {
  const std::string error =
      error_of([] { parse_cvs_config("{\"config\": {},\n \"model_params\" 5}", "f.json", "ada"); });
  EXPECT_NE(error.find("f.json:2:17: not valid JSON"), std::string::npos) << error;
}

TEST(CvsConfig, AKeyThatNothingReadsIsAWarningWithTheNearest) {
  const CvsConfig config = parse_cvs_config(small_file(", \"shm_siez\": \"1G\", \"_note\": 5", ""), "f.json", "ada");
  ASSERT_EQ(config.warnings.size(), 1u);
  EXPECT_NE(config.warnings[0].find("shm_siez; did you mean shm_size?"), std::string::npos) << config.warnings[0];
}

TEST(CvsConfig, ValuesThatAreNoTextsAreErrors) {
  const std::string error = error_of([] { parse_cvs_config(small_file(", \"shm_size\": [1]", ""), "f.json", "ada"); });
  EXPECT_NE(error.find("config.shm_size is [1], expected a text"), std::string::npos) << error;
}

TEST(CvsCases, WhatIsUnresolvedIsToldAtOnceWithTheExamplesOfTheFile) {
  const CvsConfig config = shipped("mi3xx_megatron_llama_distributed.json");
  const std::string error = error_of([&] { resolve_cvs_case(config, {.name = "multi_node/llama3_1_8b/mi300x"}); });
  EXPECT_NE(error.find("nnodes, training_iterations, throughput_per_gpu, tokens_per_gpu still have <changeme>"),
            std::string::npos)
      << error;
  EXPECT_NE(error.find("--set nnodes=4 training_iterations=30 throughput_per_gpu=610.0 tokens_per_gpu=12000.0"),
            std::string::npos)
      << error;
  // Starting a run needs more of the file than judging one.
  const std::string launch =
      error_of([&] { resolve_cvs_case(config, {.name = "multi_node/llama3_1_8b/mi300x", .is_launch = true}); });
  EXPECT_NE(launch.find("master_address, nic_type, nccl_ib_hca_list"), std::string::npos) << launch;
}

TEST(CvsCases, TheCaseFollowsFromDeviceAndModel) {
  const CvsConfig config = shipped("mi3xx_megatron_llama_single.json", {"nnodes=1", "training_iterations=30"});
  const auto chosen = [&](const std::string& device, int64_t layers, int64_t hidden) {
    return resolve_cvs_case(config, {.facts = {.device = device, .num_layers = layers, .hidden_size = hidden}}).name();
  };
  EXPECT_EQ(chosen("AMD Instinct MI300X, 192 GiB", 32, 4096), "single_node/llama3_1_8b/mi300x");
  EXPECT_EQ(chosen("AMD Instinct MI325X", 80, 8192), "single_node/llama3_1_70b/mi325");
  for (const auto& [device, layers] :
       {std::pair("CPU AMD EPYC", 32), std::pair("AMD Instinct MI300X", 12), std::pair("AMD Instinct MI355X", 32)}) {
    const std::string error = error_of([&] { chosen(device, layers, 4096); });
    EXPECT_NE(error.find("--case: single_node/llama3_1_70b/mi300x, "), std::string::npos) << device << ": " << error;
  }
}

TEST(CvsCases, FourNamesMeanBf16) {
  for (const char* name : {"TE_BF16", "TE_FP16", "TE_F16", "bf16"}) {
    const CvsConfig config = shipped("mi3xx_megatron_llama_single.json",
                                     {"nnodes=1", "training_iterations=30", std::string("precision=") + name});
    const CvsCase of = resolve_cvs_case(config, {.name = "single_node/llama3_1_8b/mi300x"});
    EXPECT_FALSE(of.is_fp8);
    EXPECT_NE(of.notes.at(0).find("is bf16"), std::string::npos);
  }
}

TEST(CvsCases, OnlyHybridFp8AndBf16AreStarted) {
  const std::vector<std::string> settings = {"nnodes=1", "training_iterations=30", "precision=MXFP4"};
  const CvsConfig config = shipped("mi3xx_megatron_llama_single.json", settings);
  CvsCaseRequest request{.name = "single_node/llama3_1_8b/mi300x"};
  EXPECT_FALSE(resolve_cvs_case(config, request).is_fp8) << "a log is judged";
  request.is_launch = true;
  const std::string error = error_of([&] { resolve_cvs_case(config, request); });
  EXPECT_NE(error.find("with precision MXFP4 is not started here"), std::string::npos) << error;
}

TEST(CvsCases, TheBatchIsScaledWhenItIsAsked) {
  const CvsConfig config = shipped("mi3xx_megatron_llama_distributed.json",
                                   {"nnodes=8", "training_iterations=30", "throughput_per_gpu=1", "tokens_per_gpu=1"});
  CvsCaseRequest request{.name = "multi_node/llama3_1_70b/mi325"};
  EXPECT_EQ(resolve_cvs_case(config, request).batch_size, 256);
  request.scale_batch = true;
  EXPECT_EQ(resolve_cvs_case(config, request).batch_size, 512);
}

struct WrongCase {
  const char* what;
  std::vector<std::string> settings;
  const char* part;
};

TEST(CvsCases, WrongValuesAreErrorsThatNameTheKey) {
  const WrongCase wrong[] = {
      {"precision", {"precision=FP4"}, "precision is FP4"},
      {"NIC", {"nic_type=intel"}, "nic_type is intel"},
      {"iterations", {"training_iterations=many"}, "training_iterations is \"many\", expected a whole number"},
      {"size", {"batch_size=4e18"}, "batch_size is \"4e18\", expected a whole number from 1 to 1000000000"},
      {"switch", {"fsdp=maybe"}, "fsdp is \"maybe\", expected True or False"},
      {"bound", {"tokens_per_gpu=-5"}, "result_dict.tokens_per_gpu is \"-5\", expected a number above 0"},
      {"one node together", {"distributed_training=True"}, "distributed_training is True, and nnodes is 1"},
  };
  for (const WrongCase& one : wrong) {
    std::vector<std::string> settings = {"nnodes=1", "training_iterations=30"};
    settings.insert(settings.end(), one.settings.begin(), one.settings.end());
    const CvsConfig config = shipped("mi3xx_megatron_llama_single.json", settings);
    const std::string error = error_of([&] { resolve_cvs_case(config, {.name = "single_node/llama3_1_8b/mi300x"}); });
    EXPECT_NE(error.find(one.part), std::string::npos) << one.what << ": " << error;
  }
}

TEST(CvsCases, WordsOfSetAreNamesOfTheFile) {
  CvsConfig config = shipped("mi3xx_megatron_llama_single.json");
  const std::vector<std::string> words = {"trainig_iterations=3", "nnodes"};
  const std::string error = error_of([&] { set_cvs_values(config, words, "ada"); });
  EXPECT_NE(error.find("did you mean training_iterations?"), std::string::npos) << error;
  EXPECT_NE(error.find("--set nnodes: expected NAME=VALUE"), std::string::npos) << error;
}

}  // namespace
}  // namespace megalith
