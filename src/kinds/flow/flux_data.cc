#include "kinds/flow/flux_data.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include <functional>

#include "core/error.h"
#include "core/philox.h"
#include "data/throw_errors.h"
#include "kinds/flow/flux_folder.h"

namespace megalith {
namespace {

constexpr int64_t kPixelsPerLatent = 8;

// Samples by their number.
struct FluxSamples {
  std::string name;
  int64_t num_samples = 0;
  std::function<FluxSample(int64_t number)> read;  // thread-safe
  std::pair<at::Tensor, at::Tensor> empty;
  std::array<double, 2> latent_scale = {1, 0};  // and shift
};

FluxSamples prepared_samples(const std::shared_ptr<const FluxFolder>& folder) {
  return {.name = folder->folder().string(),
          .num_samples = folder->num_samples(),
          .read = [folder](int64_t number) { return folder->read(number); },
          .empty = folder->empty(),
          .latent_scale = {folder->index().latent_scale, folder->index().latent_shift}};
}

// Standard normal numbers, the approximate distribution of scaled latents.
at::Tensor drawn(std::string_view what, at::IntArrayRef shape, uint32_t seed, uint64_t stream) {
  at::Tensor values = at::empty(shape, at::kFloat);
  fill_normal(make_philox_key(seed, what), 0, values.mutable_data_ptr<float>(), static_cast<uint64_t>(values.numel()),
              stream);
  return values;
}

// A mock sample by its number; −1 is the empty caption's.
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

FluxSamples mock_samples(const FluxSampleShape& shape, bool is_resampled, uint32_t seed) {
  const FluxSample empty = mock_sample(shape, is_resampled, seed, -1);
  return {.name = "mock data",
          .num_samples = 10'000,
          .read = [=](int64_t number) { return mock_sample(shape, is_resampled, seed, number); },
          .empty = {empty.text_states, empty.pooled_text}};
}

void set_pictures(Batch& batch, const std::vector<FluxSample>& samples) {
  const auto set = [&](std::string_view name, at::Tensor FluxSample::*member) {
    std::vector<at::Tensor> tensors;
    for (const FluxSample& sample : samples) tensors.push_back(sample.*member);
    if (tensors.front().defined()) batch.set(BatchField::of_rows(name, at::stack(tensors)));
  };
  set(field::kLatents, &FluxSample::latents);
  set(field::kTextStates, &FluxSample::text_states);
  set(field::kPooledText, &FluxSample::pooled_text);
  set(field::kLatentLogVars, &FluxSample::latent_log_vars);
}

class FluxRows final : public RowReader {
 public:
  FluxRows(FluxSamples samples, ElementRange range, std::string name)
      : samples_(std::move(samples)), range_(range), name_(std::move(name)) {}

  int64_t num_rows() const override { return range_.size(); }
  std::string name() const override { return name_; }
  Batch read(std::span<const int64_t> rows) const override {
    std::vector<FluxSample> samples;
    for (const int64_t row : rows) samples.push_back(samples_.read(range_.begin + row));
    Batch batch;
    set_pictures(batch, samples);
    const auto of_all = [&](std::string_view name, const at::Tensor& tensor) {
      batch.set({.name = std::string(name), .tensor = tensor, .row_dim = {}, .sequence_dim = {}});
    };
    of_all(field::kEmptyTextStates, samples_.empty.first);
    of_all(field::kEmptyPooledText, samples_.empty.second);
    if (batch.has(field::kLatentLogVars)) {
      of_all(field::kLatentScale, at::tensor({samples_.latent_scale[0], samples_.latent_scale[1]}, at::kDouble));
    }
    return batch;
  }

 private:
  FluxSamples samples_;
  ElementRange range_;
  std::string name_;
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

// An option's single folder; nothing if not given.
std::optional<std::string> only_folder(const std::vector<std::string>& paths, std::string_view option,
                                       std::vector<UserError>& errors) {
  if (paths.size() > 1) {
    errors.emplace_back(fmt::format("{} names {} folders of prepared pictures", option, paths.size()),
                        "name one; 'megalith prepare flux' makes one folder of several inputs");
  }
  return paths.empty() ? std::nullopt : std::optional(paths[0]);
}

// By the options data_path, train_data_path, valid_data_path and test_data_path; null if not given.
using FluxSources = std::array<std::optional<FluxSamples>, 4>;

FluxSources open_folders(const DataOptions& options, const FluxSampleShape& shape, std::vector<UserError>& errors) {
  const std::array<std::optional<std::string>, 4> folders = {
      only_folder(options.data_path, "data_path", errors),
      only_folder(options.train_data_path, "train_data_path", errors),
      only_folder(options.valid_data_path, "valid_data_path", errors),
      only_folder(options.test_data_path, "test_data_path", errors)};
  FluxSources samples;
  if (!errors.empty()) return samples;
  std::shared_ptr<const FluxFolder> first;
  for (size_t i = 0; i < folders.size(); ++i) {
    if (!folders[i]) continue;
    try {
      const auto prepared = std::make_shared<const FluxFolder>(*folders[i]);
      check_index(prepared->index(), *folders[i], options.flux, shape, errors);
      if (first != nullptr && first->index().encoders != prepared->index().encoders) {
        errors.emplace_back(fmt::format("{} was prepared with {}, and {} with {}", first->folder().string(),
                                        first->index().encoders, *folders[i], prepared->index().encoders),
                            "prepare both with the same encoders");
      }
      if (first == nullptr) first = prepared;
      samples[i] = prepared_samples(prepared);
    } catch (const UserErrors& several) {
      errors.insert(errors.end(), several.errors().begin(), several.errors().end());
    } catch (const UserError& error) {
      errors.push_back(error);
    }
  }
  return samples;
}

}  // namespace

FluxSampleShape flux_sample_shape(const ModelConfig& model, const FluxDataOptions& data) {
  return {.latent_channels = model.in_channels / 4,
          .context_dim = model.context_dim,
          .vec_in_dim = model.vec_in_dim,
          .image_size = data.image_size,
          .text_length = data.text_length};
}

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
  throw_errors(check_data_options(given));
  const DataOptions options = with_listed_paths(given);
  if (!options.has_paths()) throw_errors(check_flux_data(given, shape));
  std::vector<UserError> errors;
  FluxSources samples = open_folders(options, shape, errors);
  throw_errors(std::move(errors));
  const bool is_split = options.mock_data || samples[0];
  if (options.mock_data) {
    samples[0] = mock_samples(shape, options.flux.vae_latent_mode == VaeLatentModeAsked::kResample, setup.seed);
  }
  const std::string split_text = options.split.value_or(kDefaultSplit);
  return make_splits(setup, [&](Split split, std::optional<int64_t> /*num_samples*/) -> std::unique_ptr<BatchSource> {
    const auto i = static_cast<size_t>(split);
    const std::optional<FluxSamples>& source = is_split ? samples[0] : samples[i + 1];
    if (!source) return nullptr;
    const int64_t n = source->num_samples;
    const ElementRange range =
        is_split ? split_ranges(parse_split(split_text), n)[i].value_or(ElementRange{}) : ElementRange{0, n};
    const bool is_training = split == Split::kTrain;
    if (range.size() == 0 && is_training) {
      throw UserError(
          fmt::format("the split {} of {} leaves no picture for training, of {}", split_text, source->name, n),
          "give another --split, or prepare more pictures");
    }
    if (range.size() == 0) {
      log.note("the pictures are too few for a {} split of {}: there is none", split_name(split), split_text);
      return nullptr;
    }
    const std::string name = fmt::format("the {} split of {}", split_name(split), source->name);
    return std::make_unique<BatchSource>(
        std::make_shared<FluxRows>(*source, range, name),
        Order(is_training ? RowOrder::kShuffled : RowOrder::kRepeated, range.size(), name));
  });
}

void add_mock_pictures(Batch& rows, const FluxSampleShape& shape) {
  const at::Tensor numbers = rows.at(field::kSampleIndex).contiguous();
  std::vector<FluxSample> samples;
  for (int64_t row = 0; row < numbers.size(0); ++row) {
    samples.push_back(mock_sample(shape, /*is_resampled=*/false, 0, numbers.const_data_ptr<int64_t>()[row]));
  }
  set_pictures(rows, samples);
}

}  // namespace megalith
