// Checkpoints of BERT, T5 and two encoders through the trainer, from every way of sharding to every other.
#include <gtest/gtest.h>

#include "train/checkpoint_layouts.h"

namespace megalith {
namespace {

using namespace test;

// An encoder of the original kind, whose options differ from those of the decoders of these tests.
std::vector<std::string> encoder(std::vector<std::string> more) {
  std::vector<std::string> words = {"--num_layers=2",
                                    "--hidden_size=16",
                                    "--num_attention_heads=2",
                                    "--vocab_size=96",
                                    "--swiglu=false",
                                    "--normalization=LayerNorm",
                                    "--position_embedding_type=learned_absolute",
                                    "--disable_bias_linear=false",
                                    "--hidden_dropout=0.1"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

const std::string kZero = "--use_distributed_optimizer", kFsdp = "--use_torch_fsdp2", kSequence = "--sequence_parallel";

void expect_all_go_on(const std::vector<std::string>& model, const std::vector<DataLayout>& layouts) {
  expect_every_layout_goes_on_from_every_other(model, layouts, "--fp32", 1e-5, "--mock_data");
}

TEST(SentenceCheckpoints, OfABert) {
  expect_all_go_on(encoder({"--model_type=bert"}), {{"one rank", 1, 1, {}},
                                                    {"tp2 dp2, zero", 2, 2, {kZero, kSequence}},
                                                    {"cp2 pp2", 1, 1, {}, 2, 2},
                                                    {"fsdp dp2", 1, 2, {kFsdp}}});
}

// Both stacks on one stage, or a stage for each.
TEST(SentenceCheckpoints, OfAT5) {
  expect_all_go_on(encoder({"--model_type=t5", "--decoder_seq_length=8"}),
                   {{"one rank", 1, 1, {}},
                    {"pp2 dp2, zero", 1, 2, {kZero, "--pipeline_model_parallel_split_rank=1"}, 1, 2},
                    {"tp2", 2, 1, {kSequence}},
                    {"fsdp dp2", 1, 2, {kFsdp}}});
}

// Sets of four samples on every layout: the loss is of a set.
TEST(SentenceCheckpoints, OfTwoEncoders) {
  expect_all_go_on(encoder({"--model_type=biencoder", "--task=ict", "--biencoder_projection_dim=8"}),
                   {{"one rank", 1, 1, {"--micro_batch_size=4"}},
                    {"zero dp4", 1, 4, {kZero}},
                    {"fsdp dp2", 1, 2, {kFsdp, "--micro_batch_size=2"}}});
}

}  // namespace
}  // namespace megalith
