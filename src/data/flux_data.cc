// See flux_data.h.
#include "data/flux_data.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <mutex>

#include "core/error.h"
#include "core/philox.h"
#include "data/flux_folder.h"

namespace megalith {
namespace {

constexpr const char* kDefaultFluxSplit = "969, 30, 1";
constexpr int64_t kPixelsPerLatent = 8;

// Samples by their number. Reading is safe from several threads.
class FluxSamples {
 public:
  virtual ~FluxSamples() = default;
  virtual int64_t num_samples() const = 0;
  virtual FluxSample read(int64_t number) const = 0;
  virtual std::pair<at::Tensor, at::Tensor> empty() const = 0;
  virtual std::array<double, 2> latent_scale() const = 0;  // and shift
  virtual std::string name() const = 0;
};

class PreparedFlux final : public FluxSamples {
 public:
  explicit PreparedFlux(const std::filesystem::path& folder) : folder_(folder), empty_(folder_.empty()) {}

  int64_t num_samples() const override { return folder_.num_samples(); }
  FluxSample read(int64_t number) const override { return folder_.read(number); }
  std::pair<at::Tensor, at::Tensor> empty() const override { return empty_; }
  std::array<double, 2> latent_scale() const override {
    return {folder_.index().latent_scale, folder_.index().latent_shift};
  }
  std::string name() const override { return folder_.folder().string(); }
  const FluxIndex& index() const { return folder_.index(); }

 private:
  FluxFolder folder_;
  std::pair<at::Tensor, at::Tensor> empty_;
};

// Standard normal numbers: what scaled latents are about.
at::Tensor drawn(std::string_view what, at::IntArrayRef shape, uint32_t seed, uint64_t stream) {
  at::Tensor values = at::empty(shape, at::kFloat);
  fill_normal(make_philox_key(seed, what), 0, values.mutable_data_ptr<float>(), static_cast<uint64_t>(values.numel()),
              stream);
  return values;
}

// A sample of mock data by its number; sample −1 is the empty caption's.
FluxSample mock_sample(const FluxSampleShape& shape, bool is_resampled, uint32_t seed, int64_t number) {
  const int64_t side = shape.image_size / kPixelsPerLatent;
  const std::array<int64_t, 3> of_picture = {shape.latent_channels, side, side};
  const auto stream = static_cast<uint64_t>(number) + 1;
  FluxSample sample;
  sample.latents = drawn("mock latents", of_picture, seed, stream);
  if (is_resampled) sample.latent_log_vars = drawn("mock log_vars", of_picture, seed, stream);
  sample.text_states = drawn("mock text", {shape.text_length, shape.context_dim}, seed, stream).to(at::kBFloat16);
  sample.pooled_text = drawn("mock pooled", {shape.vec_in_dim}, seed, stream).to(at::kBFloat16);
  return sample;
}

class MockFlux final : public FluxSamples {
 public:
  MockFlux(const FluxSampleShape& shape, bool is_resampled, uint32_t seed)
      : shape_(shape), is_resampled_(is_resampled), seed_(seed) {}

  int64_t num_samples() const override { return 10'000; }
  FluxSample read(int64_t number) const override { return mock_sample(shape_, is_resampled_, seed_, number); }
  std::pair<at::Tensor, at::Tensor> empty() const override {
    const FluxSample sample = read(-1);
    return {sample.text_states, sample.pooled_text};
  }
  std::array<double, 2> latent_scale() const override { return {1, 0}; }
  std::string name() const override { return "mock data"; }

 private:
  FluxSampleShape shape_;
  bool is_resampled_;
  uint32_t seed_;
};

// Training goes through a permutation of a pass after the other, drawn by the number of the pass; the others in order,
// and from the beginning again.
class FluxBatchSource final : public BatchSource {
 public:
  FluxBatchSource(std::shared_ptr<const FluxSamples> samples, ElementRange range, Split split)
      : samples_(std::move(samples)),
        range_(range),
        is_shuffled_(split == Split::kTrain),
        name_(fmt::format("the {} split of {}", split_name(split), samples_->name())),
        sampler_(DataloaderType::kCyclic, range.size(), /*data_sharding=*/false, name_) {}

  Batch read(const DataPosition& position) override {
    const std::vector<SampleRow> rows = rows_at(position);
    std::vector<at::Tensor> latents, log_vars, states, pooled;
    const at::Tensor places = at::empty({std::ssize(rows)}, at::kLong);
    for (size_t i = 0; i < rows.size(); ++i) {
      const FluxSample sample = samples_->read(range_.begin + rows[i].sample);
      latents.push_back(sample.latents);
      if (sample.latent_log_vars.defined()) log_vars.push_back(sample.latent_log_vars);
      states.push_back(sample.text_states);
      pooled.push_back(sample.pooled_text);
      places.mutable_data_ptr<int64_t>()[i] = rows[i].in_order;
    }
    Batch batch;
    batch.set(BatchField::of_rows(field::kLatents, at::stack(latents)));
    batch.set(BatchField::of_rows(field::kTextStates, at::stack(states)));
    batch.set(BatchField::of_rows(field::kPooledText, at::stack(pooled)));
    const auto [empty_states, empty_pooled] = samples_->empty();
    const std::array<double, 2> scale_and_shift = samples_->latent_scale();
    const auto of_all = [&](std::string_view name, const at::Tensor& tensor) {
      batch.set({.name = std::string(name), .tensor = tensor, .row_dim = {}, .sequence_dim = {}});
    };
    of_all(field::kEmptyTextStates, empty_states);
    of_all(field::kEmptyPooledText, empty_pooled);
    if (!log_vars.empty()) {
      batch.set(BatchField::of_rows(field::kLatentLogVars, at::stack(log_vars)));
      of_all(field::kLatentScale, at::tensor({scale_and_shift[0], scale_and_shift[1]}, at::kDouble));
    }
    batch.set(BatchField::of_rows(field::kSampleIndex, places));
    return batch;
  }
  int64_t num_samples() const override { return range_.size(); }
  std::string name() const override { return name_; }

 private:
  std::vector<SampleRow> rows_at(const DataPosition& position) {
    if (is_shuffled_) {
      const std::lock_guard lock(sampler_mutex_);
      return sampler_.rows(position);
    }
    std::vector<SampleRow> rows;
    for (int64_t row = 0; row < position.micro_batch_size; ++row) {
      const int64_t place = position.consumed_samples + position.dp_rank * position.micro_batch_size + row;
      rows.push_back({place % range_.size(), place});
    }
    return rows;
  }

  std::shared_ptr<const FluxSamples> samples_;
  ElementRange range_;
  bool is_shuffled_;
  std::string name_;
  std::mutex sampler_mutex_;  // it keeps the permutation of its pass
  Sampler sampler_;
};

void check_index(const FluxIndex& index, const std::string& folder, const FluxDataOptions& options,
                 const FluxSampleShape& shape, std::vector<UserError>& errors) {
  const auto differs = [&](std::string_view what, int64_t found, int64_t asked, std::string remedy) {
    if (found == asked) return;
    errors.emplace_back(fmt::format("{} was prepared with {} {}, and the run has {}", folder, what, found, asked),
                        std::move(remedy));
  };
  const std::string again = "or prepare the pictures again";
  differs("image_size", index.image_size, options.image_size,
          fmt::format("set --image_size {}, {}", index.image_size, again));
  differs("text_length", index.text_length, options.text_length,
          fmt::format("set --text_length {}, {}", index.text_length, again));
  differs("context_dim", index.context_dim, shape.context_dim,
          "its captions are of another T5 encoder than the model's: prepare the pictures with the model's folder");
  differs("vec_in_dim", index.vec_in_dim, shape.vec_in_dim,
          "its captions are of another CLIP than the model's: prepare the pictures with the model's folder");
  differs("latent channels", index.latent_shape[0], shape.latent_channels,
          "its latents are of another autoencoder than the model's: prepare the pictures with the model's folder");
  const int64_t side = index.image_size / kPixelsPerLatent;
  if (index.latent_shape[1] != side || index.latent_shape[2] != side) {
    errors.emplace_back(fmt::format("{} has latents of {} × {} for pictures of {} pixels; FLUX takes {} × {}", folder,
                                    index.latent_shape[1], index.latent_shape[2], index.image_size, side, side),
                        "prepare the pictures with FLUX's autoencoder");
  }
  if (options.vae_latent_mode != VaeLatentModeAsked::kAuto) {
    const VaeLatentMode asked = options.vae_latent_mode == VaeLatentModeAsked::kPresampled
                                    ? VaeLatentMode::kPresampled
                                    : VaeLatentMode::kResample;
    if (index.vae_latent_mode != asked) {
      errors.emplace_back(fmt::format("{} was prepared with vae_latent_mode {}, and the run asks for {}", folder,
                                      name_of(index.vae_latent_mode), name_of(asked)),
                          fmt::format("leave vae_latent_mode out, or prepare the pictures with --vae_latent_mode {}",
                                      name_of(asked)));
    }
  }
}

// The one folder of an option; nothing when it is not given.
std::optional<std::string> only_folder(const std::vector<std::string>& paths, std::string_view option,
                                       std::vector<UserError>& errors) {
  if (paths.size() > 1) {
    errors.emplace_back(fmt::format("{} names {} folders of prepared pictures", option, paths.size()),
                        "name one; 'megalith prepare flux' makes one folder of several inputs");
  }
  return paths.empty() ? std::nullopt : std::optional(paths[0]);
}

void throw_flux_errors(std::vector<UserError> errors) {
  if (errors.size() == 1) throw errors[0];
  if (!errors.empty()) throw UserErrors(std::move(errors));
}

// By the options data_path, train_data_path, valid_data_path and test_data_path; null where one is not given.
using FluxSources = std::array<std::shared_ptr<const FluxSamples>, 4>;

FluxSources open_folders(const DataOptions& options, const FluxSampleShape& shape, std::vector<UserError>& errors) {
  const std::array<std::optional<std::string>, 4> folders = {
      only_folder(options.data_path, "data_path", errors),
      only_folder(options.train_data_path, "train_data_path", errors),
      only_folder(options.valid_data_path, "valid_data_path", errors),
      only_folder(options.test_data_path, "test_data_path", errors)};
  FluxSources samples;
  if (!errors.empty()) return samples;
  const PreparedFlux* first = nullptr;
  for (size_t i = 0; i < folders.size(); ++i) {
    if (!folders[i]) continue;
    try {
      const auto prepared = std::make_shared<const PreparedFlux>(*folders[i]);
      check_index(prepared->index(), *folders[i], options.flux, shape, errors);
      if (first != nullptr && first->index().encoders != prepared->index().encoders) {
        errors.emplace_back(fmt::format("{} was prepared with {}, and {} with {}", first->name(),
                                        first->index().encoders, prepared->name(), prepared->index().encoders),
                            "prepare both with the same encoders");
      }
      if (first == nullptr) first = prepared.get();
      samples[i] = prepared;
    } catch (const UserErrors& several) {
      errors.insert(errors.end(), several.errors().begin(), several.errors().end());
    } catch (const UserError& error) {
      errors.push_back(error);
    }
  }
  return samples;
}

}  // namespace

std::vector<UserError> check_flux_data(const DataOptions& given, const FluxSampleShape& shape) {
  if (given.mock_data) return {};
  const DataOptions options = with_listed_paths(given);
  if (!options.has_paths()) {
    return {UserError("no pictures are named",
                      "give --data_path FOLDER as 'megalith prepare flux' writes it, or --mock_data")};
  }
  std::vector<UserError> errors;
  (void)open_folders(options, shape, errors);
  return errors;
}

DataSets open_flux_data(const DataOptions& given, const FluxSampleShape& shape, const DataSetup& setup, Logger& log) {
  throw_flux_errors(check_data_options(given));
  const DataOptions options = with_listed_paths(given);
  if (!options.has_paths()) throw_flux_errors(check_flux_data(given, shape));
  std::vector<UserError> errors;
  FluxSources samples = open_folders(options, shape, errors);
  throw_flux_errors(std::move(errors));
  const bool is_split = options.mock_data || samples[0] != nullptr;
  if (options.mock_data) {
    samples[0] = std::make_shared<const MockFlux>(
        shape, options.flux.vae_latent_mode == VaeLatentModeAsked::kResample, setup.seed);
  }
  const std::string split_text = options.split.value_or(kDefaultFluxSplit);
  DataSets sets;
  for (const Split split : kSplits) {
    const auto i = static_cast<size_t>(split);
    const auto& source = is_split ? samples[0] : samples[i + 1];
    if (setup.num_samples[i] == 0 || source == nullptr) continue;
    const int64_t n = source->num_samples();
    const ElementRange range =
        is_split ? split_ranges(parse_split(split_text), n)[i].value_or(ElementRange{}) : ElementRange{0, n};
    if (range.size() == 0 && split == Split::kTrain) {
      throw UserError(
          fmt::format("the split {} of {} leaves no picture for training, of {}", split_text, source->name(), n),
          "give another --split, or prepare more pictures");
    }
    if (range.size() == 0) {
      log.note("the pictures are too few for a {} split of {}: there is none", split_name(split), split_text);
      continue;
    }
    auto batches = std::make_unique<FluxBatchSource>(source, range, split);
    (split == Split::kTrain ? sets.train : split == Split::kValid ? sets.valid : sets.test) = std::move(batches);
  }
  return sets;
}

void add_mock_pictures(Batch& rows, const FluxSampleShape& shape) {
  const at::Tensor numbers = rows.at(field::kSampleIndex).contiguous();
  std::vector<at::Tensor> latents, states, pooled;
  for (int64_t row = 0; row < numbers.size(0); ++row) {
    const FluxSample sample = mock_sample(shape, /*is_resampled=*/false, 0, numbers.const_data_ptr<int64_t>()[row]);
    latents.push_back(sample.latents);
    states.push_back(sample.text_states);
    pooled.push_back(sample.pooled_text);
  }
  rows.set(BatchField::of_rows(field::kLatents, at::stack(latents)));
  rows.set(BatchField::of_rows(field::kTextStates, at::stack(states)));
  rows.set(BatchField::of_rows(field::kPooledText, at::stack(pooled)));
}

}  // namespace megalith
