// Terms that a rank brings to the meeting: its options and what it reads, but nothing about its own machine.
#include "kinds/kinds.h"
#include "verify/run_terms.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "support/temporary_folder.h"

namespace megalith {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;
using test::TemporaryFolder;

std::string digest_with(const Words& more, const EnvironmentMap& environment = {}, const char* commit = "0123") {
  ConfigInputs inputs;
  inputs.arguments = {"--num_layers=2", "--hidden_size=16",     "--num_attention_heads=2",
                      "--seq_length=8", "--vocab_size=32",      "--max_position_embeddings=8",
                      "--mock_data",    "--global_batch_size=4"};
  inputs.arguments.insert(inputs.arguments.end(), more.begin(), more.end());
  inputs.environment = environment;
  const auto resolved = resolve_config(all_kinds(), inputs, /*world_size=*/4);
  return digest_of(run_terms(*resolved, at::kCPU, {{"commit", commit}}, environment));
}

TEST(RunTerms, AnotherValueOfAnyOptionThatMattersIsAnotherDigest) {
  const std::string usual = digest_with({});
  EXPECT_EQ(digest_with({}), usual);
  for (const char* word :
       {"--lr=0.5", "--seed=3", "--seq_length=4", "--hidden_dropout=0.5", "--clip_grad=0.5", "--num_layers=4",
        "--tensor_model_parallel_size=2", "--train_iters=7", "--save_interval=3", "--exit_interval=3", "--bf16",
        "--log_interval=7", "--save=folder", "--deterministic_mode", "--use_distributed_optimizer"}) {
    EXPECT_NE(digest_with({word}), usual) << word;
  }
  EXPECT_NE(digest_with({}, {{"NCCL_ALGO", "Ring"}}), usual);
  EXPECT_NE(digest_with({}, {{"MEGALITH_LR", "0.5"}}), usual);
  EXPECT_NE(digest_with({}, {}, "4567"), usual);
}

TEST(RunTerms, OneRankWritesAFileWhereItLikesAndAllKnowThatItDoes) {
  for (const char* option : {"--record_file", "--metrics_file", "--tensorboard_dir"}) {
    const std::string here = digest_with({fmt::format("{}=here", option)});
    EXPECT_EQ(digest_with({fmt::format("{}=there", option)}), here) << option;
    EXPECT_NE(digest_with({}), here) << option;
  }
}

TEST(RunTerms, WhatIsOneRanksOwnIsNotCompared) {
  const std::string usual = digest_with({});
  for (const char* word : {"--device=cpu", "--num_threads=3", "--num_workers=1", "--data_cache_path=elsewhere",
                           "--quiet", "--log_file=own.txt", "--store_secret_file=own"}) {
    EXPECT_EQ(digest_with({word}), usual) << word;
  }
  EXPECT_EQ(digest_with({}, {{"CUDA_VISIBLE_DEVICES", "1"}, {"GLOO_SOCKET_IFNAME", "eth1"}, {"RANK", "1"}}), usual);
  EXPECT_EQ(digest_with({"--seed=1234"}), usual);  // said, or left at the same default
}

void write_tokens(const TemporaryFolder& folder, const std::string& idx, const std::string& bin) {
  folder.write("tokens.idx", idx);
  folder.write("tokens.bin", bin);
}

TEST(RunTerms, ContentsCountWhereverTheyAre) {
  const TemporaryFolder one, other;
  write_tokens(one, "index", "tokens");
  write_tokens(other, "index", "tokens");
  const std::string digest = contents_digest(one.path() / "tokens");
  EXPECT_EQ(contents_digest(other.path() / "tokens"), digest);
  write_tokens(other, "inde2", "tokens");
  EXPECT_NE(contents_digest(other.path() / "tokens"), digest);
  write_tokens(other, "index", "token2");
  EXPECT_NE(contents_digest(other.path() / "tokens"), digest);

  EXPECT_NE(contents_digest(one.path()), contents_digest(other.path()));
  write_tokens(other, "index", "tokens");
  EXPECT_EQ(contents_digest(one.path()), contents_digest(other.path()));
  other.write(".cache", "of a machine");
  fs::create_directory(other.path() / "within");
  EXPECT_EQ(contents_digest(one.path()), contents_digest(other.path()));
  other.write("more.json", "{}");
  EXPECT_NE(contents_digest(one.path()), contents_digest(other.path()));
  EXPECT_EQ(contents_digest("/dev/null"), "");
  EXPECT_EQ(contents_digest(one.path() / "missing"), "");
}

TEST(RunTerms, OfALargeFileTheSizeAndPiecesCount) {
  const TemporaryFolder folder;
  std::string text(1 << 20, 'x');
  const fs::path file = folder.write("large.bin", text);
  const std::string digest = contents_digest(file);
  for (const size_t at : {size_t{0}, text.size() - 1}) {
    std::string changed = text;
    changed[at] = 'y';
    folder.write("large.bin", changed);
    EXPECT_NE(contents_digest(file), digest) << at;
  }
  folder.write("large.bin", text + "x");
  EXPECT_NE(contents_digest(file), digest);
  folder.write("large.bin", "");
  EXPECT_NE(contents_digest(file), "");
}

TEST(RunTerms, OfAnOptionThatNamesFilesTheContentsAreCompared) {
  const TemporaryFolder one, other;
  write_tokens(one, "index", "tokens");
  write_tokens(other, "index", "tokens");
  const auto term_of = [](const Words& words) {
    ConfigInputs inputs;
    Resolved resolved(all_kinds());
    inputs.arguments = {"--data_path"};
    inputs.arguments.insert(inputs.arguments.end(), words.begin(), words.end());
    try_resolve(*resolved.options, inputs);
    resolved.derived.data = resolved.config.data;
    const std::vector<Term> terms = run_terms(resolved, at::kCPU, {}, {});
    return *std::find_if(terms.begin(), terms.end(), [](const Term& term) { return term.name == "data_path"; });
  };
  const Words here = {"0.3", one.path() / "tokens"}, there = {"0.3", other.path() / "tokens"};
  EXPECT_EQ(term_of(here).value, term_of(there).value);
  EXPECT_NE(term_of(here).shown, term_of(there).shown);
  EXPECT_NE(term_of(here).shown.find(" of " + here[1]), std::string::npos) << term_of(here).shown;
  EXPECT_NE(term_of({"0.4", here[1]}).value, term_of(here).value);
  write_tokens(other, "index", "token2");
  EXPECT_NE(term_of(here).value, term_of(there).value);
}

}  // namespace
}  // namespace megalith
