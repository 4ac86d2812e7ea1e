// Draws for a picture: its share of noise, the noise, the sample of its latents, and captions that are dropped.
#include "kinds/flow/flow_matching.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "kinds/flow/flux_batches.h"
#include "models/flux_latents.h"

namespace megalith {
namespace {

constexpr FluxSampleShape kShape{
    .latent_channels = 2, .context_dim = 6, .vec_in_dim = 5, .image_size = 48, .text_length = 3};

FlowMatching task_of(const TaskOptions& options = {}) {
  return {options, {.seed = 3, .flux_shape = kShape, .has_guidance = true}};
}

// Rows first, first + 1, … of latents 6 x 4, unlike one another.
Batch picture_rows(int64_t b, int64_t first) {
  const at::Tensor numbers = at::arange(first, first + b, at::kLong);
  const auto values = [&](std::vector<int64_t> shape, double step) {
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    shape.insert(shape.begin(), b);
    return (numbers.to(at::kFloat).unsqueeze(1) + step * at::arange(count, at::kFloat).unsqueeze(0)).sin().view(shape);
  };
  Batch rows;
  rows.set(BatchField::of_rows(field::kSampleIndex, numbers));
  rows.set(BatchField::of_rows(field::kLatents, values({2, 6, 4}, 0.3)));
  rows.set(BatchField::of_rows(field::kTextStates, values({3, 6}, 0.7)));
  rows.set(BatchField::of_rows(field::kPooledText, values({5}, 0.9)));
  return rows;
}

at::Tensor timesteps_of(const TaskOptions& options, int64_t b) {
  Batch rows = picture_rows(b, 0);
  task_of(options).draw(rows);
  return rows.at(field::kTimesteps).to(at::kDouble);
}

TEST(FlowMatching, MixesPictureAndNoiseByTheShareAndTellsTheWayBetween) {
  Batch rows = picture_rows(5, 40);
  task_of().draw(rows);
  const at::Tensor x = pack_latents(rows.at(field::kLatents)), target = rows.at(field::kFlowTarget);
  const at::Tensor t = rows.at(field::kTimesteps).view({5, 1, 1});
  // noise = target + x, and the model sees x + t (noise - x).
  EXPECT_TRUE(at::allclose(rows.at(field::kNoisyImage), x + t * target, 0, 1e-6));
  EXPECT_TRUE(((t >= 0) & (t < 1)).all().item<bool>());
  const at::Tensor sides = rows.at(field::kImageSides);
  EXPECT_EQ(sides[0].item<int64_t>(), 3);
  EXPECT_EQ(sides[1].item<int64_t>(), 2);
}

TEST(FlowMatching, ARowIsTheSameInEveryBatch) {
  const TaskOptions options{.cfg_dropout_prob = {0.5}};
  Batch many = picture_rows(6, 10), few = picture_rows(2, 13);
  task_of(options).draw(many);
  task_of(options).draw(few);
  for (const std::string_view name : {field::kNoisyImage, field::kFlowTarget, field::kTimesteps, field::kTextStates}) {
    EXPECT_TRUE(at::equal(many.at(name).narrow(0, 3, 2), few.at(name))) << name;
  }
  const at::Tensor noise = many.at(field::kFlowTarget) + pack_latents(many.at(field::kLatents));
  EXPECT_FALSE(at::allclose(noise[0], noise[1])) << "rows with one noise";
}

TEST(FlowMatching, SharesFollowTheirStrategies) {
  constexpr int64_t kRows = 4000;
  const auto near = [](double value, double expected, double deviation) {
    EXPECT_NEAR(value, expected, 5 * deviation / std::sqrt(double{kRows}));
  };
  near(timesteps_of({}, kRows).mean().item<double>(), 0.5, 0.29);
  const TaskOptions normal{
      .timestep_sampling_strategy = TimestepSampling::kLogitNormal, .logit_mean = 0.5, .logit_std = 2};
  const at::Tensor logits = timesteps_of(normal, kRows).logit();
  near(logits.mean().item<double>(), 0.5, 2);
  near(logits.std().item<double>(), 2, 2);
  // With a scale of 1 the mean of 1 - u - (cos² - 1 + u) over u is 1 - 1/2 - (1/2 - 1 + 1/2).
  const TaskOptions mode{.timestep_sampling_strategy = TimestepSampling::kMode, .mode_scale = 1};
  near(timesteps_of(mode, kRows).mean().item<double>(), 0.5, 0.29);
  EXPECT_FALSE(at::allclose(timesteps_of(mode, 50), timesteps_of({}, 50)));
  const TaskOptions fixed{.timestep_sampling_strategy = TimestepSampling::kFixed, .fixed_timestep = 0.25};
  EXPECT_TRUE((timesteps_of(fixed, 50) == 0.25).all().item<bool>());
}

TEST(FlowMatching, AShiftMovesSharesTowardsNoise) {
  const at::Tensor t = timesteps_of({}, 50);
  const at::Tensor by_three = timesteps_of({.flow_shift = 3}, 50);
  EXPECT_TRUE(at::allclose(by_three, 3 * t / (1 + 2 * t), 0, 1e-6));
  // 3 x 2 tokens are on the line through .5 at 256 and 1.15 at 4096.
  const double s = std::exp(0.5 + (1.15 - 0.5) / 3840 * (6 - 256));
  EXPECT_TRUE(at::allclose(timesteps_of({.flow_shift = 0}, 50), s * t / (1 + (s - 1) * t), 0, 1e-6));
}

TEST(FlowMatching, LatentsAreSampledFromTheirDistribution) {
  constexpr int64_t kRows = 200;
  Batch rows = picture_rows(kRows, 0);
  rows.set(BatchField::of_rows(field::kLatentLogVars, at::full({kRows, 2, 6, 4}, std::log(4.0), at::kFloat)));
  const at::Tensor scale_and_shift = at::tensor({0.5, 0.1}, at::kDouble);
  rows.set({.name = std::string(field::kLatentScale), .tensor = scale_and_shift, .row_dim = {}, .sequence_dim = {}});
  Batch again = rows.rows(0, kRows);
  const FlowMatching task = task_of({.timestep_sampling_strategy = TimestepSampling::kFixed, .fixed_timestep = 0});
  task.draw(rows);
  task.draw(again);
  // Without noise the model sees the sample, (mean + 2 normal - shift) scale.
  const at::Tensor seen = unpack_latents(rows.at(field::kNoisyImage), 6, 4);
  const at::Tensor normal = (seen / 0.5 + 0.1 - rows.at(field::kLatents)) / 2;
  EXPECT_NEAR(normal.mean().item<double>(), 0, 5 / std::sqrt(48.0 * kRows));
  EXPECT_NEAR(normal.std().item<double>(), 1, 5 / std::sqrt(2 * 48.0 * kRows));
  EXPECT_TRUE(at::equal(rows.at(field::kNoisyImage), again.at(field::kNoisyImage)));
}

TEST(FlowMatching, CaptionsAreDroppedForEachEncoder) {
  constexpr int64_t kRows = 2000;
  const at::Tensor before_text = picture_rows(kRows, 0).at(field::kTextStates).clone();
  Batch rows = picture_rows(kRows, 0);
  const auto shared = [&](std::string_view name, const at::Tensor& tensor) {
    rows.set({.name = std::string(name), .tensor = tensor, .row_dim = {}, .sequence_dim = {}});
  };
  shared(field::kEmptyTextStates, at::full({3, 6}, 7.0f));
  shared(field::kEmptyPooledText, at::full({5}, 8.0f));
  task_of({.cfg_dropout_prob = {0.3, 0.6}}).draw(rows);
  const at::Tensor no_text = (rows.at(field::kTextStates) == 7).all(2).all(1);
  const at::Tensor no_pooled = (rows.at(field::kPooledText) == 8).all(1);
  const auto share = [](const at::Tensor& which) { return which.to(at::kDouble).mean().item<double>(); };
  const double deviation = 5 * 0.5 / std::sqrt(double{kRows});
  EXPECT_NEAR(share(no_text), 0.3, deviation);
  EXPECT_NEAR(share(no_pooled), 0.6, deviation);
  EXPECT_NEAR(share(no_text & no_pooled), 0.18, deviation) << "drawn apart";
  const at::Tensor kept = no_text.logical_not().nonzero().squeeze(1);
  EXPECT_TRUE(at::equal(rows.at(field::kTextStates).index_select(0, kept), before_text.index_select(0, kept)));
}

TEST(FlowMatching, GivenSharesAreNotDrawnAndCaptionsStay) {
  Batch rows = picture_rows(8, 0);
  const at::Tensor text = rows.at(field::kTextStates).clone();
  const at::Tensor given = (at::arange(8, at::kFloat) + 0.5) / 8;
  rows.set(BatchField::of_rows(field::kFixedTimesteps, given));
  task_of({.flow_shift = 3, .cfg_dropout_prob = {0.9}}).draw(rows);
  EXPECT_TRUE(at::equal(rows.at(field::kTimesteps), given));
  EXPECT_TRUE(at::equal(rows.at(field::kTextStates), text));
}

TEST(FlowMatching, AModelGetsWhatItsUnitsRead) {
  Batch rows = picture_rows(2, 0);
  const FlowMatching task = task_of({.guidance_scale = 4});
  task.draw(rows);
  const std::vector<Unit> first = {{.kind = "embedding", .letter = UnitLetter::kEmbedding},
                                   {.kind = "layer", .letter = UnitLetter::kLayer}};
  const std::vector<Unit> last = {{.kind = "head", .letter = UnitLetter::kHead}};
  const ModelInput begins = task.make_input(rows, at::kCPU, first), ends = task.make_input(rows, at::kCPU, last);
  EXPECT_EQ(begins.context.b, 2);
  EXPECT_EQ(begins.context.s, 6);
  EXPECT_EQ(begins.context.encoder_s, 3);
  EXPECT_TRUE((begins.more.at("guidance") == 4).all().item<bool>());
  EXPECT_TRUE(at::equal(begins.more.at("image_positions"), image_positions(3, 2)));
  EXPECT_EQ(begins.more.find("target"), nullptr);
  EXPECT_TRUE(at::equal(ends.more.at("target"), rows.at(field::kFlowTarget)));
  EXPECT_EQ(ends.more.find("image"), nullptr);
  // Tokens of text and picture are numbered over all samples.
  EXPECT_TRUE(at::equal(begins.context.row_ids[1], at::arange(9, 18, at::kLong)));
  EXPECT_EQ(task.count_weights(rows), std::vector<double>{2});
}

TEST(FlowMatching, RefusesWhatIsOfTexts) {
  EXPECT_THROW(task_of({.cfg_dropout_prob = {0.1, 0.2, 0.3}}), UserError);
  ModelConfig text;
  DataOptions data;
  data.eod_mask_loss = true;
  const std::vector<UserError> errors = task_of().check(text, data);
  ASSERT_EQ(errors.size(), 2U);
  EXPECT_NE(errors[0].message().find("needs model_type diffusion_model"), std::string::npos);
}

}  // namespace
}  // namespace megalith
