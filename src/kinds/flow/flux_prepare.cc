#include "kinds/flow/flux_prepare.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/error.h"
#include "core/file.h"
#include "core/folder.h"
#include "core/number_of.h"
#include "core/philox.h"
#include "core/strings.h"
#include "data/builder_lock.h"
#include "data/ordered_map.h"
#include "data/prepare_state.h"
#include "image/pixels.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

constexpr size_t kBytesAhead = size_t{256} << 20;  // of waiting pictures

// Everything the folder's bytes depend on.
OrderedJson flux_job(const FluxPrepareOptions& options, const PictureSource& source, const FluxSampleEncoder& encoder) {
  return {{"input", options.input},
          {"identity", source.identity()},
          {"image_key", options.image_key.value_or("")},
          {"caption_key", options.caption_key.value_or("")},
          {"image_size", options.image_size},
          {"center_crop", options.center_crop},
          {"resize_filter", static_cast<int>(options.resize_filter)},
          {"vae_latent_mode", name_of(options.vae_latent_mode)},
          {"samples_per_shard", options.samples_per_shard},
          {"max_samples", options.max_samples.value_or(-1)},
          {"seed", options.seed},
          {"encoders", encoder.identity()}};
}

struct FluxRow {
  CaptionedPicture given;
  std::optional<Picture> picture;
  std::string fault;  // of a picture that cannot be decoded
};

void decode(FluxRow& row) {
  if (!row.given.fault.empty()) return;
  try {
    row.picture = decode_picture(row.given.bytes, row.given.where);
  } catch (const UserError& error) {
    row.fault = error.message();
  }
}

class FluxPreparation {
 public:
  FluxPreparation(const FluxPrepareOptions& options, PictureSource& source, FluxSampleEncoder& encoder, Logger& log)
      : options_(options), folder_(options.output), source_(source), encoder_(encoder), log_(log) {
    index_.image_size = options.image_size;
    index_.vae_latent_mode = options.vae_latent_mode;
    index_.latent_scale = encoder.latent_scale();
    index_.latent_shift = encoder.latent_shift();
    index_.encoders = encoder.identity();
    report_.kind = source.kind();
    job_ = dump_json(flux_job(options, source, encoder));
  }

  FluxPrepareReport run() {
    make_directories(folder_);
    const BuilderLock lock(folder_ / ".prepare.lock", [&] {
      log_.note("another process prepares pictures in {}: waiting for it", folder_.string());
    });
    if (fs::exists(folder_ / kFluxIndexFile)) {
      if (!options_.overwrite) {
        throw UserError(fmt::format("{} holds prepared pictures", folder_.string()), "give --overwrite");
      }
      clear();
    }
    take_up();
    write_empty();
    Progress progress(log_, "prepare flux", source_.total().value_or(0), "pictures");
    progress.set(report_.rows);
    const int64_t num_threads = std::clamp<int64_t>(std::thread::hardware_concurrency(), 1, 8);
    OrderedMap<FluxRow> map(num_threads, kBytesAhead, decode, [&](const FluxRow& row) {
      if (is_full()) return;
      ++report_.rows;
      add(row);
      progress.advance();
    });
    while (!is_full()) {
      std::optional<CaptionedPicture> next = source_.next();
      if (!next) break;
      const size_t num_bytes = next->bytes.size();
      map.give({.given = std::move(*next)}, num_bytes);
    }
    map.finish();
    encode();
    write_shard();
    progress.finish();
    finish();
    return report_;
  }

 private:
  bool is_full() const { return options_.max_samples && num_taken() >= *options_.max_samples; }
  int64_t num_taken() const { return report_.samples + std::ssize(captions_) + std::ssize(pixels_); }

  void clear() {
    fs::remove(folder_ / kFluxIndexFile);  // first: a half-removed folder is never read
    for (const std::string& name : names_in(folder_)) {
      if ((name.starts_with("shard-") && name.ends_with(".safetensors")) || name == kFluxStateFile ||
          name == kFluxEmptyFile || name.ends_with(".safetensors.unfinished")) {
        fs::remove(folder_ / name);
      }
    }
  }

  // Resumes an interrupted run of this very job.
  void take_up() {
    const fs::path path = folder_ / kFluxStateFile;
    const std::optional<Json> state = load_work_state(path, job_, log_);
    if (!state) return clear();
    const std::string where = path.string();
    for (const auto& [key, count] : counts()) *count = json_get<int64_t>(*state, key, where);
    for (const auto& [key, value] : get_member(*state, "examples", where).items()) {
      report_.examples[key] = json_as<std::string>(value, where);
    }
    index_ = FluxIndex::from_json(get_member(*state, "index", where), where);
    log_.info("going on with {}: {} pictures are done", folder_.string(), report_.samples);
    source_.skip(report_.rows);
  }

  void store() {
    OrderedJson state = {{"examples", report_.examples}, {"index", index_.to_json()}};
    for (const auto& [key, count] : counts()) state[key] = *count;
    store_work_state(folder_ / kFluxStateFile, job_, state);
  }

  std::array<std::pair<const char*, int64_t*>, 5> counts() {
    return {{{"rows", &report_.rows},
             {"samples", &report_.samples},
             {"too_small", &report_.too_small},
             {"no_caption", &report_.no_caption},
             {"not_readable", &report_.not_readable}}};
  }

  void write_empty() {
    const std::vector<std::string> empty = {""};
    const FluxSampleEncoder::Texts texts = encoder_.encode_texts(empty);
    index_.text_length = texts.states.size(1);
    index_.context_dim = texts.states.size(2);
    index_.vec_in_dim = texts.pooled.size(1);
    write_flux_empty(folder_ / kFluxEmptyFile, on_host(texts.states[0]), on_host(texts.pooled[0]));
  }

  void add(const FluxRow& row) {
    const CaptionedPicture& given = row.given;
    if (!given.fault.empty()) {
      const std::string example = fmt::format("{}: {}", given.where, given.fault);
      if (given.lacks_caption) return leave_out(report_.no_caption, "no caption", example);
      return leave_out(report_.not_readable, "not readable", example);
    }
    if (!row.picture) return leave_out(report_.not_readable, "not readable", row.fault);
    const Picture& picture = *row.picture;
    const std::optional<Picture> fitted = fitted_picture(picture, options_, num_taken());
    if (!fitted) {
      return leave_out(report_.too_small, "too small",
                       fmt::format("{} has {} × {} pixels", given.where, picture.width, picture.height));
    }
    pixels_.push_back(to_pixels(*fitted));
    waiting_.push_back(given.caption);
    if (std::ssize(pixels_) == options_.encode_batch_size) encode();
    // Only between batches is everything in the shard, so that the state names the finished rows.
    if (std::ssize(captions_) + std::ssize(pixels_) >= options_.samples_per_shard) {
      encode();
      write_shard();
    }
  }

  void leave_out(int64_t& count, const std::string& why, const std::string& example) {
    ++count;
    report_.examples.try_emplace(why, example);
  }

  static at::Tensor on_host(const at::Tensor& tensor) { return tensor.detach().to(at::kCPU).contiguous(); }

  // Encodes waiting pictures into the shard.
  void encode() {
    if (pixels_.empty()) return;
    const auto encoded = encoder_.encode_pictures(at::stack(pixels_));
    const auto texts = encoder_.encode_texts(waiting_);
    FluxSample samples{on_host(encoded.mean).to(at::kFloat), on_host(encoded.log_var).to(at::kFloat),
                       on_host(texts.states), on_host(texts.pooled)};
    if (options_.vae_latent_mode == VaeLatentMode::kPresampled) {
      samples.latents = presampled(samples.latents, samples.latent_log_vars, report_.samples + std::ssize(captions_));
      samples.latent_log_vars = at::Tensor();
    }
    encoded_.push_back(std::move(samples));
    captions_.insert(captions_.end(), waiting_.begin(), waiting_.end());
    pixels_.clear();
    waiting_.clear();
  }

  // One draw from each posterior, scaled: element i of sample n is normal number i of stream n.
  at::Tensor presampled(const at::Tensor& means, const at::Tensor& log_vars, int64_t first) const {
    const at::Tensor noise = at::empty(means.sizes(), at::kFloat);
    const int64_t count = means.numel() / means.size(0);
    const uint64_t key = make_philox_key(static_cast<uint64_t>(options_.seed), "flux posterior");
    for (int64_t row = 0; row < means.size(0); ++row) {
      fill_normal(key, 0, noise.mutable_data_ptr<float>() + row * count, static_cast<uint64_t>(count),
                  static_cast<uint64_t>(first + row));
    }
    return (means + (log_vars / 2).exp() * noise - index_.latent_shift) * index_.latent_scale;
  }

  void write_shard() {
    if (captions_.empty()) return;
    const auto all = [&](at::Tensor FluxSample::*member) {
      std::vector<at::Tensor> parts;
      for (const FluxSample& sample : encoded_) parts.push_back(sample.*member);
      return parts.front().defined() ? at::cat(parts) : at::Tensor();
    };
    const FluxSample samples{all(&FluxSample::latents), all(&FluxSample::latent_log_vars),
                             all(&FluxSample::text_states), all(&FluxSample::pooled_text)};
    for (size_t i = 0; i < 3; ++i) index_.latent_shape[i] = samples.latents.size(static_cast<int64_t>(i) + 1);
    const std::string name = flux_shard_name(std::ssize(index_.shards));
    write_flux_shard(folder_ / name, samples, captions_);
    index_.shards.push_back({name, std::ssize(captions_), file_bytes(folder_ / name)});
    report_.samples += std::ssize(captions_);
    captions_.clear();
    encoded_.clear();
    store();
  }

  void finish() {
    if (report_.samples == 0) {
      clear();
      std::string found;
      for (const auto& [why, example] : report_.examples) found += fmt::format("\n  {}: {}", why, example);
      throw UserError(fmt::format("no picture is left of {} in {} ({}){}", report_.rows, join(options_.input, ", "),
                                  report_.kind, found),
                      "see what is wrong with them; --image_size says how large they must be");
    }
    for (const FluxShard& shard : index_.shards) report_.bytes += shard.bytes;
    write_file_atomic(folder_ / kFluxIndexFile, dump_json_pretty(index_.to_json()));
    fs::remove(folder_ / kFluxStateFile);
  }

  const FluxPrepareOptions& options_;
  const fs::path folder_;
  PictureSource& source_;
  FluxSampleEncoder& encoder_;
  Logger& log_;
  FluxIndex index_;
  FluxPrepareReport report_;
  std::string job_;
  std::vector<at::Tensor> pixels_;  // of pictures not yet encoded, with their captions
  std::vector<std::string> waiting_;
  std::vector<std::string> captions_;  // of the shard, with its encoded data
  std::vector<FluxSample> encoded_;
};

}  // namespace

void FluxPrepareOptions::visit(OptionVisitor& v) {
  v.group("Preparing");
  v.field("input", input,
          "Pictures with captions: a folder of pictures with .txt files, or whose names are the captions; JSON lines "
          "with paths and captions; Parquet as Hugging Face has image sets; tar archives of WebDataset.");
  v.field("output", output, "The folder to write: train takes it as data_path.");
  v.field("image_key", image_key, "The key or column of rows that holds the picture. Default: image, or a usual one.");
  v.field("caption_key", caption_key,
          "The key or column of rows that holds the caption. Default: caption, text, or a usual one.");
  v.field("image_size", image_size,
          "The pictures' short side becomes as long, and a square of it is cut out; smaller pictures are left out and "
          "counted. A multiple of 16.")
      .unit("pixels")
      .within(16, 8192);
  v.field("center_crop", center_crop, "Cut the middle out. Without it the place is drawn for each picture.");
  v.choice("resize_filter", resize_filter, {"lanczos", "bicubic", "bilinear"},
           "How pictures are made smaller. lanczos: as diffusers does for this autoencoder. bicubic: as torchtitan "
           "does.");
  v.choice("vae_latent_mode", vae_latent_mode, {"presampled", "resample"},
           "presampled: the latents are drawn once. resample: their mean and variance are kept, so that training draws "
           "anew at each use; twice the bytes.");
  v.field("samples_per_shard", samples_per_shard, "Pictures of one file; as many are held in memory.").at_least(1);
  v.field("encode_batch_size", encode_batch_size, "Pictures that the encoders take at once.").at_least(1);
  v.field("max_samples", max_samples, "Stop after as many pictures. Default: all.").unit("pictures").at_least(1);
  v.field("seed", seed, "Places that are cut and latents that are drawn depend on it.");
  v.field("overwrite", overwrite, "Replace prepared pictures that are there.");
}

std::vector<UserError> check_flux_prepare(const FluxPrepareOptions& options) {
  std::vector<UserError> errors;
  if (options.image_size % 16 != 0) {
    const int64_t below = options.image_size / 16 * 16;
    errors.emplace_back(
        fmt::format("image_size {} is no multiple of 16, the pixels of FLUX's tokens", options.image_size),
        fmt::format("give {} or {}", below, below + 16));
  }
  if (options.output.empty()) {
    errors.emplace_back("no output is given", "name the folder to write with --output");
  } else {
    std::error_code code;
    if (fs::exists(options.output, code) && !fs::is_directory(options.output, code)) {
      errors.emplace_back(fmt::format("the output {} is a file", options.output), "name a folder");
    } else if (!options.overwrite && fs::exists(fs::path(options.output) / kFluxIndexFile, code)) {
      errors.emplace_back(fmt::format("{} holds prepared pictures", options.output),
                          "give another output, or --overwrite");
    }
  }
  return errors;
}

std::optional<Picture> fitted_picture(const Picture& picture, const FluxPrepareOptions& options, int64_t sample) {
  if (std::min(picture.width, picture.height) < options.image_size) return std::nullopt;
  const uint64_t key = make_philox_key(static_cast<uint64_t>(options.seed), "flux crop");
  const CropPlace place{options.center_crop, uniform_at(key, 0, static_cast<uint64_t>(sample))};
  return resize_and_crop(picture, options.image_size, place, options.resize_filter);
}

FluxPrepareReport prepare_flux(const FluxPrepareOptions& options, PictureSource& source, FluxSampleEncoder& encoder,
                               Logger& log) {
  return FluxPreparation(options, source, encoder, log).run();
}

std::string describe(const FluxPrepareReport& report, const FluxPrepareOptions& options) {
  std::string text =
      fmt::format("{}: {} of {} × {} pixels ({}) from {}: {}\n", options.output,
                  number_of(report.samples, "picture", "pictures"), options.image_size, options.image_size,
                  format_bytes(report.bytes), number_of(report.rows, "row", "rows"), report.kind);
  const auto line = [&](int64_t count, const std::string& why) {
    if (count > 0) text += fmt::format("  {} left out, {}; the first: {}\n", count, why, report.examples.at(why));
  };
  line(report.too_small, "too small");
  line(report.no_caption, "no caption");
  line(report.not_readable, "not readable");
  return text + fmt::format("train with --data_path {}\n", options.output);
}

}  // namespace megalith
