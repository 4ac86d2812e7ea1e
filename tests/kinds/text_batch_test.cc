// Sequences that are continued together give the tokens and likelihoods that each gives by itself.
#include "kinds/text/text_batch.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "comm/thread_world.h"
#include "core/error.h"
#include "models/tiny_models.h"

namespace megalith {
namespace {

using test::tiny_config, test::tiny_context;

using Ids = std::vector<int64_t>;

std::unique_ptr<Model> model_of(const ModelConfig& config, const LayerContext& context) {
  const Groups alone = Groups::single();
  const auto whole = test::build_model(config, tiny_context(alone));
  auto model = test::build_model(config, context);
  test::load(*model, test::golden_weights(*whole, context.dtype));
  return model;
}

Ids prompt_of(int64_t seed, int64_t length) {
  Ids ids;
  for (int64_t i = 0; i < length; ++i) ids.push_back((seed * 7 + i * i * 5 + i * 3) % 37);
  return ids;
}

GenerationRequest request_of(int64_t seed, int64_t length, int64_t max_new_tokens) {
  GenerationRequest request{.prompt_ids = prompt_of(seed, length), .max_new_tokens = max_new_tokens};
  request.num_logprobs = 2;
  // Every other sequence is sampled.
  if (seed % 2 == 0) request.sampling.temperature = 0;
  request.sampling.sampling_seed = seed;
  return request;
}

struct Written {
  Ids ids;
  std::vector<double> logprobs;
  std::vector<GeneratedToken> prompt;
};

// Sequence i joins once i * `apart` steps are over and there is room.
std::vector<Written> write_together(Model& model, const std::vector<GenerationRequest>& requests,
                                    const TextBatch::Limits& limits, const Groups& groups, size_t apart = 1) {
  PipelinedModel pipelined(model, groups, at::kCPU);
  TextBatch batch(pipelined, limits, at::kCPU);
  std::vector<Written> written(requests.size());
  size_t next = 0;
  for (size_t step = 0; next < requests.size() || !batch.is_empty(); ++step) {
    while (next < requests.size() && next * apart <= step && batch.has_room()) {
      written[next].prompt = batch.add(static_cast<int64_t>(next), requests[next]);
      ++next;
    }
    for (const GeneratedToken& token : batch.step()) {
      Written& of = written[static_cast<size_t>(token.key)];
      of.ids.push_back(token.id);
      of.logprobs.push_back(token.logprob.value());
      EXPECT_EQ(token.likeliest.size(), 2u);
    }
  }
  return written;
}

std::vector<GenerationRequest> some_requests() {
  // Longer and shorter ones; the third ends first, so that the rows close up.
  return {request_of(1, 5, 9), request_of(2, 11, 12), request_of(3, 3, 2), request_of(4, 1, 7), request_of(6, 17, 4),
          request_of(5, 2, 10)};
}

// near: of log-probabilities
void expect_as_alone(Model& model, const TextBatch::Limits& limits, const Groups& groups,
                     const std::vector<GenerationRequest>& requests = some_requests(), double near = 1e-5,
                     size_t apart = 1) {
  const std::vector<Written> together = write_together(model, requests, limits, groups, apart);
  for (size_t i = 0; i < requests.size(); ++i) {
    const Written alone =
        write_together(model, {requests[i]}, {.most_rows = 1, .row_multiple = limits.row_multiple}, groups)[0];
    EXPECT_EQ(together[i].ids, alone.ids) << "sequence " << i;
    ASSERT_EQ(together[i].logprobs.size(), alone.logprobs.size());
    for (size_t k = 0; k < alone.logprobs.size(); ++k) {
      EXPECT_NEAR(together[i].logprobs[k], alone.logprobs[k], near) << "sequence " << i << ", token " << k;
    }
  }
}

ModelConfig windowed(ModelConfig config) {
  config.window_size = {3, 0};
  config.window_attn_skip_freq = "2";
  config.softmax_type = SoftmaxType::kLearnable;
  return config;
}

ModelConfig with_experts(ModelConfig config) {
  config.num_experts = 4;
  config.moe_ffn_hidden_size = 12;
  config.moe_router_topk = 2;
  return config;
}

ModelConfig latent(ModelConfig config) {
  config.group_query_attention = false;
  config.multi_latent_attention = config.qk_layernorm = true;
  config.kv_channels.reset();
  config.kv_lora_rank = 12;
  config.qk_head_dim = 4;
  config.qk_pos_emb_head_dim = 2;
  config.v_head_dim = 3;
  return config;
}

ModelConfig in_chunks(ModelConfig config) {
  config.attention_chunk_size = 4;
  config.no_rope_freq = "2";
  return config;
}

ModelConfig convolved(ModelConfig config) {
  config.layer_types = {"conv", "full_attention"};
  config.conv_kernel_size = 4;
  return config;
}

ModelConfig with_positions(ModelConfig config) {
  config.position_embedding_type = PositionEmbedding::kLearnedAbsolute;
  return config;
}

TEST(TextBatch, WritesTogetherWhatEachWritesAlone) {
  const Groups groups = Groups::single();
  for (const ModelConfig& config :
       {tiny_config(), windowed(tiny_config()), with_experts(tiny_config()), latent(tiny_config()),
        in_chunks(tiny_config()), convolved(tiny_config()), with_positions(tiny_config())}) {
    const auto model = model_of(config, tiny_context(groups));
    expect_as_alone(*model, {.most_rows = 4}, groups);
  }
  const auto fused = model_of(windowed(tiny_config()), tiny_context(groups, at::kFloat, Kernels::kFused));
  for (int64_t rows : {2, 8}) expect_as_alone(*fused, {.most_rows = rows}, groups);
}

TEST(TextBatch, CompanyChangesNoBitIn16Bits) {
  const Groups groups = Groups::single();
  const auto model = model_of(windowed(tiny_config()), tiny_context(groups, at::kBFloat16, Kernels::kFused));
  expect_as_alone(*model, {.most_rows = 8}, groups, some_requests(), /*near=*/0);
}

TEST(TextBatch, PromptsOfOneLengthAreReadTogether) {
  const Groups groups = Groups::single();
  ModelConfig config = windowed(tiny_config());
  config.max_position_embeddings = 128;
  const auto model = model_of(config, tiny_context(groups));
  std::vector<GenerationRequest> requests;
  for (int64_t seed : {7, 8, 9}) requests.push_back(request_of(seed, 70, 5 + seed % 2));
  requests.push_back(request_of(4, 66, 7));
  requests.push_back(request_of(2, 3, 7));
  for (int64_t rows : {2, 5}) expect_as_alone(*model, {.most_rows = rows}, groups, requests, 1e-5, /*apart=*/0);
}

TEST(TextBatch, RanksThatSplitTokensWriteTheSame) {
  std::vector<std::vector<Written>> by_rank(2);
  ThreadWorld(2).run(Mesh({.tp = 2}), [&](Groups& groups) {
    LayerContext context = tiny_context(groups);
    context.is_sequence_parallel = true;
    const auto model = model_of(tiny_config(), context);
    by_rank[static_cast<size_t>(groups.rank)] =
        write_together(*model, some_requests(), {.most_rows = 4, .row_multiple = 2}, groups);
  });
  const Groups alone = Groups::single();
  const auto model = model_of(tiny_config(), tiny_context(alone));
  const std::vector<Written> expected = write_together(*model, some_requests(), {.most_rows = 1}, alone);
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(by_rank[0][i].ids, expected[i].ids);
    EXPECT_EQ(by_rank[1][i].ids, expected[i].ids);
  }
}

TEST(TextBatch, ReadsACommonBeginningOnce) {
  const Groups groups = Groups::single();
  for (const auto& [rows, config] :
       {std::pair(1, tiny_config()), std::pair(4, tiny_config()), std::pair(4, convolved(tiny_config()))}) {
    const auto model = model_of(config, tiny_context(groups));
    PipelinedModel pipelined(*model, groups, at::kCPU);
    TextBatch batch(pipelined, {.most_rows = rows, .most_past_tokens = 40}, at::kCPU);
    GenerationRequest turn = request_of(2, 12, 6);
    for (int turns = 0; turns < 3; ++turns) {  // a conversation: each turn begins with the last one and its answer
      const Written expected = write_together(*model, {turn}, {}, groups)[0];
      batch.add(turns, turn);
      Ids ids;
      while (!batch.is_empty()) ids.push_back(batch.step().front().id);
      EXPECT_EQ(ids, expected.ids);
      turn.prompt_ids.insert(turn.prompt_ids.end(), ids.begin(), ids.end());
      turn.prompt_ids.push_back(turns);
    }
    // All but the last token that was written, which no forward pass has read.
    EXPECT_EQ(batch.num_prompt_tokens_reused(), (12 + 5) + (12 + 7 + 5));
    batch.add(7, request_of(9, 12, 1));  // nothing in common
    EXPECT_EQ(batch.num_prompt_tokens_reused(), (12 + 5) + (12 + 7 + 5));
  }
}

TEST(TextBatch, ARowThatWasLeftIsTakenByTheNext) {
  const Groups groups = Groups::single();
  const auto model = model_of(tiny_config(), tiny_context(groups));
  PipelinedModel pipelined(*model, groups, at::kCPU);
  TextBatch batch(pipelined, {.most_rows = 2}, at::kCPU);
  batch.add(1, request_of(2, 9, 20));
  batch.add(2, request_of(4, 4, 20));
  for (int i = 0; i < 3; ++i) batch.step();
  batch.remove(2);
  const GenerationRequest next = request_of(6, 5, 6);  // shorter than the first, and with the key of the second
  batch.add(2, next);
  Ids ids;
  while (ids.size() < 6) ids.push_back(batch.step().back().id);
  EXPECT_EQ(ids, write_together(*model, {next}, {}, groups)[0].ids);
}

TEST(TextBatch, GivesTheLikelihoodOfAPrompt) {
  const Groups groups = Groups::single();
  ModelConfig config = tiny_config();
  config.max_position_embeddings = 512;
  const auto model = model_of(config, tiny_context(groups));
  PipelinedModel pipelined(*model, groups, at::kCPU);
  GenerationRequest request{.prompt_ids = prompt_of(3, 300), .max_new_tokens = 0, .num_logprobs = 1};
  request.has_prompt_logprobs = true;  // in pieces
  TextBatch batch(pipelined, {.most_past_tokens = 1000}, at::kCPU);
  const std::vector<GeneratedToken> found = batch.add(0, request);
  EXPECT_TRUE(batch.is_empty());
  ASSERT_EQ(found.size(), 299u);
  ModelInput input{.tokens = at::tensor(request.prompt_ids, at::kLong).unsqueeze(0)};
  input.context.b = 1;
  input.context.s = 300;
  input.context.is_training = false;
  const at::Tensor logits = [&] {
    at::NoGradGuard no_grad;
    return pipelined.forward(input, HeadOutput::kLogits).logits[0];
  }();
  const at::Tensor expected = at::log_softmax(logits, 1);
  for (int64_t i = 0; i < 299; ++i) {
    const GeneratedToken& token = found[static_cast<size_t>(i)];
    EXPECT_EQ(token.id, request.prompt_ids[static_cast<size_t>(i + 1)]);
    EXPECT_NEAR(*token.logprob, expected[i][token.id].item<double>(), 1e-5);
    EXPECT_EQ(token.likeliest[0].id, expected[i].argmax().item<int64_t>());
  }
}

TEST(TextBatch, EndsWhereItIsTold) {
  const Groups groups = Groups::single();
  const auto model = model_of(tiny_config(), tiny_context(groups));
  PipelinedModel pipelined(*model, groups, at::kCPU);
  TextBatch batch(pipelined, {.most_rows = 3}, at::kCPU);
  GenerationRequest request = request_of(2, 4, 20);
  const Ids all = write_together(*model, {request}, {}, groups)[0].ids;
  request.stop_ids = {all[3]};
  const auto first = static_cast<size_t>(std::find(all.begin(), all.end(), all[3]) - all.begin());
  batch.add(5, request);
  batch.add(6, request_of(4, 9, 20));
  Ids ids;
  for (bool is_last = false; !is_last;) {
    const GeneratedToken token = batch.step().front();
    ids.push_back(token.id);
    is_last = token.is_last;
    EXPECT_EQ(token.is_stop, is_last);
  }
  EXPECT_EQ(ids, Ids(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(first) + 1));
  EXPECT_EQ(batch.step().size(), 1u);
  batch.remove(6);
  EXPECT_TRUE(batch.is_empty());
  batch.remove(6);

  GenerationRequest banned = request_of(2, 4, 3);
  for (const int64_t id : all) banned.logit_bias[id] = -100;
  const Written other = write_together(*model, {banned}, {}, groups)[0];
  for (const int64_t id : other.ids) {
    EXPECT_EQ(std::count(all.begin(), all.end(), id), 0);
  }
  GenerationRequest various = request_of(2, 4, 12);
  various.frequency_penalty = 50;  // nothing twice
  Ids once = write_together(*model, {various}, {}, groups)[0].ids;
  std::sort(once.begin(), once.end());
  EXPECT_EQ(std::adjacent_find(once.begin(), once.end()), once.end());
  request.prompt_ids = {99};
  EXPECT_THROW(batch.add(1, request), UserError);
}

}  // namespace
}  // namespace megalith
