// Rectified flow: the model sees x = (1 - t) picture + t noise and predicts noise - picture.
//
// Drawn for each row by its sample_index: t, the noise, the sample of an autoencoder's distribution, and whether the
// caption is dropped. Validation rows have fixed t: eight values, (i + .5) / 8, in turn; their captions stay.
// Source: Liu et al. 2022, arXiv:2209.03003; Esser et al. 2024, arXiv:2403.03206, section 3.1 (how t is drawn).
#pragma once

#include "kinds/task_setup.h"
#include "train/task.h"

namespace megalith {

// Fields added to rows by draw(): b rows of n tokens with c numbers each.
namespace field {
inline constexpr std::string_view kNoisyImage = "noisy_image";    // (b, n, c) fp32
inline constexpr std::string_view kFlowTarget = "flow_target";    // (b, n, c) fp32: noise - picture
inline constexpr std::string_view kTimesteps = "timesteps";       // (b) fp32
inline constexpr std::string_view kImageSides = "image_sides";    // (2) int64: rows and columns of tokens
}  // namespace field

class FlowMatching : public Task {
 public:
  FlowMatching(const TaskOptions& options, const TaskSetup& setup);

  std::string_view name() const override { return "flow_matching"; }
  std::vector<UserError> check(const ModelConfig& model, const DataOptions& data) const override;
  DataSets open_data(const DataOptions& options, const DataSetup& setup, Logger& log) const override;
  // Rows without latents, such as a check's, get made-up ones.
  void draw(Batch& rows) const override;
  // Over rows.
  std::vector<std::string> loss_names() const override { return {"mse loss"}; }
  std::vector<double> count_weights(const Batch& part) const override;
  ModelInput make_input(const Batch& part, at::Device device, std::span<const Unit> units) const override;
  HeadOutput evaluated_output() const override { return HeadOutput::kLoss; }
  std::vector<std::string> evaluated_names() const override { return {"mse loss"}; }
  at::Tensor evaluate(const Batch& part, const ModelOutput& output) const override;
  std::vector<std::string> measured_names() const override { return {"timestep"}; }
  SampleKind sample_kind() const override { return SampleKind::kPicture; }

 private:
  // A row's share of noise, before the shift (flow_shift), and after.
  double drawn_timestep(uint64_t sample) const;
  double shifted(double t, int64_t tokens) const;
  // (b, c, h, w): clean latents.
  at::Tensor pictures_of(const Batch& rows) const;
  void drop_captions(Batch& rows) const;

  TaskOptions options_;
  FluxSampleShape shape_;
  bool has_guidance_;
  uint64_t timestep_key_, noise_key_, posterior_key_, text_key_, pooled_key_;
};

}  // namespace megalith
