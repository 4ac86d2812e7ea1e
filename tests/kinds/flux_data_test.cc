// Pictures with captions: every form of a source, preparing with a small encoder, and the batches that come out.
#include "kinds/flow/flux_data.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/base64.h"
#include "core/error.h"
#include "core/file.h"
#include "core/philox.h"
#include "image/pixels.h"
#include "image/png.h"
#include "kinds/flow/flux_folder.h"
#include "kinds/flow/flux_prepare.h"
#include "kinds/flow/picture_rows.h"
#include "kinds/flow/picture_source.h"
#include "kinds/flow/tar_reader.h"
#include "support/temporary_folder.h"

namespace megalith {
namespace {

namespace fs = std::filesystem;
using test::TemporaryFolder;

constexpr int64_t kSize = 16;
constexpr int64_t kTextLength = 3, kContext = 4, kVector = 5;

Logger& quiet_log() {
  static Logger log(LoggerSettings{.level = LogLevel::kSilent});
  return log;
}

std::string png_of(int64_t width, int64_t height, uint8_t shade) {
  Picture picture = make_picture(width, height, "test");
  for (size_t i = 0; i < picture.rgb.size(); ++i) picture.rgb[i] = static_cast<uint8_t>(shade + i % 7);
  return encode_png(picture);
}

void put(const fs::path& path, const std::string& content) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << content;
}

std::vector<CaptionedPicture> all_of(const PictureSourceOptions& options) {
  const auto source = open_picture_source(options);
  std::vector<CaptionedPicture> pictures;
  while (auto next = source->next()) pictures.push_back(std::move(*next));
  return pictures;
}

std::string tar_member(const std::string& name, const std::string& content, char type = '0') {
  std::string block(512, '\0');
  name.copy(block.data(), 100);
  fmt::format("{:07o}", 0644).copy(block.data() + 100, 7);
  fmt::format("{:011o}", content.size()).copy(block.data() + 124, 11);
  block[156] = type;
  std::string("ustar\00000", 8).copy(block.data() + 257, 8);
  block.replace(148, 8, "        ");
  int64_t sum = 0;
  for (const char c : block) sum += static_cast<uint8_t>(c);
  fmt::format("{:06o}", sum).copy(block.data() + 148, 6);
  block[154] = '\0';
  return block + content + std::string((512 - content.size() % 512) % 512, '\0');
}

// The mean of each 8 × 8 patch, the same in two channels; captions by their length.
class SmallEncoder final : public FluxSampleEncoder {
 public:
  Texts encode_texts(std::span<const std::string> captions) override {
    const auto b = std::ssize(captions);
    Texts texts{at::zeros({b, kTextLength, kContext}, at::kBFloat16), at::zeros({b, kVector}, at::kBFloat16)};
    for (int64_t i = 0; i < b; ++i) {
      texts.states[i].fill_(static_cast<double>(captions[static_cast<size_t>(i)].size()));
      texts.pooled[i].fill_(static_cast<double>(captions[static_cast<size_t>(i)].size()) / 2);
    }
    return texts;
  }
  Latents encode_pictures(const at::Tensor& pixels) override {
    num_pictures += pixels.size(0);
    if (num_pictures > fails_after) throw UserError("the power is gone");
    const at::Tensor mean = at::avg_pool2d(pixels, {8, 8}).narrow(1, 0, 2);
    return {mean, at::full_like(mean, -2)};
  }
  double latent_scale() const override { return 0.5; }
  double latent_shift() const override { return 0.25; }
  std::string identity() const override { return name; }

  std::string name = "small";
  int64_t num_pictures = 0, fails_after = INT64_MAX;
};

FluxPrepareOptions options_for(const fs::path& input, const fs::path& output) {
  FluxPrepareOptions options;
  options.input = {input.string()};
  options.output = output.string();
  options.image_size = kSize;
  options.samples_per_shard = 4;
  options.encode_batch_size = 3;
  return options;
}

FluxPrepareReport prepare(const FluxPrepareOptions& options, SmallEncoder& encoder) {
  const auto source = open_picture_source(options.source());
  return prepare_flux(options, *source, encoder, quiet_log());
}

// Ten good pictures, and one each that is too small, damaged, of another kind, and without a caption.
void write_pictures(const fs::path& folder) {
  for (int i = 0; i < 10; ++i) {
    put(folder / fmt::format("p{}.png", i), png_of(20 + i, 30 - i, static_cast<uint8_t>(i * 20)));
    put(folder / fmt::format("p{}.txt", i), std::string(static_cast<size_t>(i + 1), 'x') + "\n");
  }
  put(folder / "p3b.png", png_of(15, 40, 0));
  put(folder / "p3b.txt", "small");
  put(folder / "p4b.png", png_of(40, 40, 0).substr(0, 100));
  put(folder / "p4b.txt", "cut");
  put(folder / "p5b.gif", "GIF89a");
  put(folder / "p5b.txt", "kind");
  put(folder / "p6b.png", png_of(40, 40, 0));
}

DataOptions data_options(const std::string& folder) {
  DataOptions options;
  options.data_path = {folder};
  options.split = "8,2,0";
  options.flux.image_size = kSize;
  options.flux.text_length = kTextLength;
  return options;
}

constexpr FluxSampleShape kSmallShape{.latent_channels = 2, .context_dim = kContext, .vec_in_dim = kVector};

DataSetup all_splits() {
  DataSetup setup;
  setup.num_samples = {100, 100, 100};
  return setup;
}

std::string refusal_of_data(const DataOptions& options, const FluxSampleShape& shape = kSmallShape) {
  try {
    open_flux_data(options, shape, all_splits(), quiet_log());
  } catch (const UserError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(PictureSource, TextFilesBesidePicturesAreCaptions) {
  const TemporaryFolder folder;
  put(folder.path() / "b/two.png", "2");
  put(folder.path() / "b/two.txt", "  second\n");
  put(folder.path() / "a.jpg", "1");
  put(folder.path() / ".hidden.jpg", "0");
  const auto pictures = all_of({.input = {folder.path().string()}, .image_key = {}, .caption_key = {}});
  ASSERT_EQ(pictures.size(), 2u);
  EXPECT_TRUE(pictures[0].lacks_caption);
  EXPECT_EQ(pictures[0].fault, "its caption a.txt does not exist");
  EXPECT_EQ(pictures[1].caption, "second");
  EXPECT_EQ(pictures[1].bytes, "2");
}

TEST(PictureSource, WithoutTextFilesNamesAreCaptions) {
  const TemporaryFolder folder;
  put(folder.path() / "a_red_barn.webp", "1");
  put(folder.path() / "README.md", "text");
  const auto source = open_picture_source({.input = {folder.path().string()}, .image_key = {}, .caption_key = {}});
  EXPECT_EQ(source->kind(), "a folder of pictures whose names are captions");
  EXPECT_EQ(source->next()->caption, "a red barn");
}

TEST(PictureSource, JsonLinesNamePicturesAndCaptions) {
  const TemporaryFolder folder;
  put(folder.path() / "pictures/a.png", "1");
  put(folder.path() / "rows.jsonl",
      R"({"file_name": "pictures/a.png", "text": "one"})"
      "\n\n"
      R"({"file_name": "pictures/b.png", "text": "two"})"
      "\n"
      R"({"image": {"bytes": "AAEC", "path": null}, "prompt": "three"})"
      "\n{\n"
      R"({"file_name": "pictures/a.png"})"
      "\n"
      R"({"text": "a"})");
  const std::string lines = (folder.path() / "rows.jsonl").string();
  const auto pictures = all_of({.input = {lines}, .image_key = {}, .caption_key = {}});
  ASSERT_EQ(pictures.size(), 6u);
  EXPECT_EQ(pictures[0].bytes, "1");
  EXPECT_EQ(pictures[0].caption, "one");
  EXPECT_NE(pictures[1].fault.find("pictures/b.png"), std::string::npos) << pictures[1].fault;
  EXPECT_EQ(pictures[2].bytes, std::string("\0\1\2", 3));
  EXPECT_NE(pictures[3].fault, "");
  EXPECT_TRUE(pictures[4].lacks_caption);
  EXPECT_NE(pictures[4].fault.find("file_name"), std::string::npos) << pictures[4].fault;
  EXPECT_NE(pictures[5].fault.find("no picture"), std::string::npos) << pictures[5].fault;
  EXPECT_EQ(pictures[1].where.rfind(":3 (pictures/b.png)"), pictures[1].where.size() - 19) << pictures[1].where;
}

TEST(PictureSource, TarMembersOfOneNameAreASample) {
  const TemporaryFolder folder;
  const std::string long_name = "folder/" + std::string(120, 'n');
  const std::string record = fmt::format("{} path={}.jpg\n", long_name.size() + 14, long_name);
  put(folder.path() / "a.tar", tar_member("x/", "", '5') + tar_member("x/0001.jpg", "one") +
                                   tar_member("x/0001.txt", "first") + tar_member("x/0001.json", "{}") +
                                   tar_member("x/0002.json", R"({"caption": "second"})") +
                                   tar_member("x/0002.png", "two") +
                                   tar_member("h", record, 'x') + tar_member("short.jpg", "three") +
                                   tar_member("x/0004.txt", "fourth") + std::string(1024, '\0'));
  const auto pictures = all_of({.input = {folder.path().string()}, .image_key = {}, .caption_key = {}});
  ASSERT_EQ(pictures.size(), 4u);
  EXPECT_EQ(pictures[0].bytes + pictures[0].caption, "onefirst");
  EXPECT_EQ(pictures[1].bytes + pictures[1].caption, "twosecond");
  EXPECT_EQ(pictures[2].bytes, "three");
  EXPECT_TRUE(pictures[2].lacks_caption);
  EXPECT_NE(pictures[2].where.find(long_name), std::string::npos) << pictures[2].where;
  EXPECT_EQ(pictures[3].fault, "it has no picture");
}

TEST(PictureSource, DamagedArchivesAreRefused) {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "a.tar";
  const std::string good = tar_member("a.jpg", std::string(1000, 'j')) + tar_member("a.txt", "text");
  const auto refusal = [&](const std::string& content) -> std::string {
    put(path, content);
    try {
      all_of({.input = {path.string()}, .image_key = {}, .caption_key = {}});
    } catch (const UserError& error) {
      return error.message();
    }
    return "accepted";
  };
  EXPECT_EQ(refusal(good), "accepted");
  EXPECT_NE(refusal(good.substr(0, 700)).find("it ends within a file"), std::string::npos);
  EXPECT_NE(refusal(good.substr(0, 1700)).find("it ends within a header"), std::string::npos);
  std::string changed = good;
  changed[1536 + 3] ^= 1;  // the second header's name
  EXPECT_NE(refusal(changed).find("the checksum of a header does not match (byte 2048)"), std::string::npos)
      << refusal(changed);
}

TEST(PictureSource, InputsThatAreNoPicturesAreAllNamed) {
  const TemporaryFolder folder;
  put(folder.path() / "one.png", png_of(4, 4, 0));
  put(folder.path() / "text", "hello");
  fs::create_directories(folder.path() / "empty");
  try {
    open_picture_source({.input = {(folder.path() / "one.png").string(), (folder.path() / "text").string(),
                                   (folder.path() / "empty").string(), (folder.path() / "nowhere").string()},
                         .image_key = {},
                         .caption_key = {}});
    FAIL() << "accepted";
  } catch (const UserErrors& errors) {
    ASSERT_EQ(errors.errors().size(), 4u);
    EXPECT_NE(errors.errors()[0].message().find("is one picture"), std::string::npos);
    EXPECT_NE(errors.errors()[1].message().find("holds no pictures that are known"), std::string::npos);
    EXPECT_NE(errors.errors()[2].message().find("holds no pictures, JSON lines"), std::string::npos);
    EXPECT_NE(errors.errors()[3].message().find("does not exist"), std::string::npos);
  }
}

TEST(PictureRows, Base64IsReadOrRefused) {
  EXPECT_EQ(decode_base64(""), "");
  EXPECT_EQ(decode_base64("TQ=="), "M");
  EXPECT_EQ(decode_base64("TWE="), "Ma");
  EXPECT_EQ(decode_base64("TWFu"), "Man");
  EXPECT_EQ(decode_base64("+/8A"), std::string("\xfb\xff\0", 3));
  EXPECT_EQ(decode_base64("T"), std::nullopt);
  EXPECT_EQ(decode_base64("TW!u"), std::nullopt);
}

TEST(PrepareFlux, CountsWhatItLeavesOutAndWritesTheRest) {
  const TemporaryFolder folder;
  write_pictures(folder.path() / "in");
  FluxPrepareOptions options = options_for(folder.path() / "in", folder.path() / "out");
  options.center_crop = true;
  SmallEncoder encoder;
  const FluxPrepareReport report = prepare(options, encoder);
  EXPECT_EQ(report.rows, 14);
  EXPECT_EQ(report.samples, 10);
  EXPECT_EQ(report.too_small, 1);
  EXPECT_EQ(report.no_caption, 1);
  EXPECT_EQ(report.not_readable, 2);
  const FluxFolder prepared(folder.path() / "out");
  EXPECT_EQ(prepared.num_samples(), 10);
  EXPECT_EQ(prepared.index().shards.size(), 3u);
  EXPECT_EQ(prepared.caption(7), "xxxxxxxx");
  EXPECT_EQ(prepared.empty().first.sum().item<double>(), 0);
  // Sample 5 is p5.png: its latents are the encoder's, drawn with normal numbers of stream 5.
  const FluxSample sample = prepared.read(5);
  const auto picture = fitted_picture(decode_picture(png_of(25, 25, 100), "p5"), options, 5);
  const at::Tensor mean = SmallEncoder().encode_pictures(to_pixels(*picture).unsqueeze(0)).mean[0];
  at::Tensor noise = at::empty_like(mean);
  fill_normal(make_philox_key(1234, "flux posterior"), 0, noise.mutable_data_ptr<float>(), 8, 5);
  const at::Tensor expected = (mean + at::exp(at::full({}, -1.0f)) * noise - 0.25) * 0.5;
  EXPECT_LT((sample.latents - expected).abs().max().item<double>(), 1e-6);
  EXPECT_EQ(sample.text_states[0][0].item<double>(), 6);
  EXPECT_FALSE(sample.latent_log_vars.defined());
}

TEST(PrepareFlux, GoesOnWhereItStoppedWithTheSameBytes) {
  const TemporaryFolder folder;
  write_pictures(folder.path() / "in");
  for (const VaeLatentMode mode : {VaeLatentMode::kPresampled, VaeLatentMode::kResample}) {
    const fs::path output = folder.path() / fmt::format("whole {}", name_of(mode));
    FluxPrepareOptions whole = options_for(folder.path() / "in", output);
    whole.vae_latent_mode = mode;
    FluxPrepareOptions parts = whole;
    parts.output = (folder.path() / fmt::format("parts {}", name_of(mode))).string();
    SmallEncoder encoder;
    prepare(whole, encoder);
    SmallEncoder first;
    first.fails_after = 7;
    EXPECT_THROW(prepare(parts, first), UserError);
    EXPECT_THROW(FluxFolder(parts.output), UserError);
    SmallEncoder second;
    const FluxPrepareReport report = prepare(parts, second);
    EXPECT_EQ(second.num_pictures, 6);  // the first shard's four were done
    EXPECT_EQ(report.samples, 10);
    EXPECT_EQ(report.too_small, 1);
    for (const char* name : {"shard-00000.safetensors", "shard-00001.safetensors", "shard-00002.safetensors",
                             "empty.safetensors", "index.json"}) {
      EXPECT_EQ(read_file(fs::path(parts.output) / name), read_file(fs::path(whole.output) / name)) << name;
    }
    EXPECT_FALSE(fs::exists(fs::path(parts.output) / "prepare.json"));
    EXPECT_THROW(prepare(parts, second), UserError) << "finished data are not replaced";
    parts.overwrite = true;
    EXPECT_EQ(prepare(parts, second).samples, 10);
  }
}

TEST(PrepareFlux, OtherEncodersBeginAnew) {
  const TemporaryFolder folder;
  write_pictures(folder.path() / "in");
  const FluxPrepareOptions options = options_for(folder.path() / "in", folder.path() / "out");
  SmallEncoder first;
  first.fails_after = 7;
  EXPECT_THROW(prepare(options, first), UserError);
  SmallEncoder second;
  second.name = "other";
  EXPECT_EQ(prepare(options, second).samples, 10);
  EXPECT_EQ(second.num_pictures, 10);
  EXPECT_EQ(FluxFolder(options.output).index().encoders, "other");
}

TEST(PrepareFlux, NothingLeftIsAnErrorThatSaysWhy) {
  const TemporaryFolder folder;
  write_pictures(folder.path() / "in");
  FluxPrepareOptions options = options_for(folder.path() / "in", folder.path() / "out");
  options.image_size = 64;
  SmallEncoder encoder;
  try {
    prepare(options, encoder);
    FAIL() << "accepted";
  } catch (const UserError& error) {
    EXPECT_NE(error.message().find("no picture is left of 14"), std::string::npos) << error.message();
    EXPECT_NE(error.message().find("too small: "), std::string::npos) << error.message();
  }
  EXPECT_FALSE(fs::exists(fs::path(options.output) / "index.json"));
}

// Sample numbers, told by the captions' lengths.
std::vector<int64_t> samples_of(const Batch& batch) {
  std::vector<int64_t> samples;
  for (int64_t row = 0; row < batch.num_rows(); ++row) {
    samples.push_back(static_cast<int64_t>(batch.at(field::kTextStates)[row][0][0].item<double>()) - 1);
  }
  return samples;
}

class FluxData : public ::testing::Test {
 protected:
  void SetUp() override {
    write_pictures(folder_.path() / "in");
    SmallEncoder encoder;
    prepare(options_for(folder_.path() / "in", path("out")), encoder);
  }
  fs::path path(const std::string& name) const { return folder_.path() / name; }
  TemporaryFolder folder_;
};

TEST_F(FluxData, OrderKnowsNoLayout) {
  const DataSets sets = open_flux_data(data_options(path("out").string()), kSmallShape, all_splits(), quiet_log());
  ASSERT_TRUE(sets.train && sets.valid && !sets.test);
  EXPECT_EQ(sets.train->num_samples(), 8);
  EXPECT_EQ(sets.valid->num_samples(), 2);
  std::vector<int64_t> single;
  for (int64_t i = 0; i < 24; ++i) single.push_back(samples_of(sets.train->read({.consumed_samples = i}))[0]);
  for (int64_t pass = 0; pass < 3; ++pass) {
    std::vector<int64_t> sorted(single.begin() + pass * 8, single.begin() + pass * 8 + 8);
    std::sort(sorted.begin(), sorted.end());
    EXPECT_EQ(sorted, (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7})) << "pass " << pass;
  }
  std::vector<bool> is_read(24, false);
  for (int64_t begin = 0; begin < 24; begin += 6) {
    for (int64_t rank = 0; rank < 2; ++rank) {
      const Batch batch = sets.train->read(
          {.consumed_samples = begin, .micro_batch_size = 3, .dp_rank = rank, .dp_size = 2});
      EXPECT_EQ(batch.at(field::kLatents).sizes(), (std::vector<int64_t>{3, 2, 2, 2}));
      EXPECT_EQ(batch.rows(1, 2).at(field::kEmptyTextStates).sizes(), (std::vector<int64_t>{kTextLength, kContext}));
      const std::vector<int64_t> samples = samples_of(batch);
      for (int64_t row = 0; row < 3; ++row) {
        const auto place = batch.at(field::kSampleIndex)[row].item<int64_t>();
        ASSERT_TRUE(place >= begin && place < begin + 6) << place;
        EXPECT_EQ(samples[static_cast<size_t>(row)], single[static_cast<size_t>(place)]) << "place " << place;
        is_read[static_cast<size_t>(place)] = true;
      }
    }
  }
  EXPECT_EQ(is_read, std::vector<bool>(24, true));
  // Validation is in order, and begins again.
  const Batch valid = sets.valid->read({.consumed_samples = 0, .micro_batch_size = 3});
  EXPECT_EQ(samples_of(valid), (std::vector<int64_t>{8, 9, 8}));
}

TEST_F(FluxData, DataOfOtherThingsThanTheRunAsksForAreRefused) {
  DataOptions options = data_options(path("out").string());
  EXPECT_EQ(refusal_of_data(options), "accepted");
  options.flux.image_size = 32;
  options.flux.text_length = 7;
  options.flux.vae_latent_mode = VaeLatentModeAsked::kResample;
  const std::string all = refusal_of_data(options, {.latent_channels = 16, .context_dim = 9, .vec_in_dim = 8});
  for (const char* word : {"image_size 16, and the run has 32", "text_length 3, and the run has 7",
                           "context_dim 4, and the run has 9", "vec_in_dim 5, and the run has 8",
                           "latent channels 2, and the run has 16", "vae_latent_mode presampled, and the run asks"}) {
    EXPECT_NE(all.find(word), std::string::npos) << word << " in " << all;
  }
  FluxPrepareOptions other = options_for(path("in"), path("other"));
  SmallEncoder encoder;
  encoder.name = "another";
  prepare(other, encoder);
  DataOptions both = data_options("");
  both.data_path.clear();
  both.split.reset();
  both.train_data_path = {path("out").string()};
  both.valid_data_path = {path("other").string()};
  EXPECT_NE(refusal_of_data(both).find("prepared with small, and"), std::string::npos) << refusal_of_data(both);
}

TEST_F(FluxData, DamageIsNamed) {
  const DataOptions options = data_options(path("out").string());
  const fs::path shard = path("out") / "shard-00001.safetensors";
  const std::string good = read_file(shard);
  put(shard, good.substr(0, good.size() - 1));
  std::string refusal = refusal_of_data(options);
  EXPECT_NE(refusal.find("shard-00001.safetensors has"), std::string::npos) << refusal;
  fs::remove(shard);
  EXPECT_NE(refusal_of_data(options).find("shard-00001.safetensors"), std::string::npos);
  std::string changed = good;
  changed[changed.size() - 3] ^= 1;  // the last tensor's last sample
  put(shard, changed);
  const FluxFolder folder(path("out"));
  EXPECT_NO_THROW(folder.read(4));
  EXPECT_THROW(folder.read(7), UserError);
  put(shard, good);
  const std::string index = read_file(path("out") / "index.json");
  put(path("out") / "index.json", index.substr(0, index.size() / 2));
  EXPECT_NE(refusal_of_data(options).find("index.json"), std::string::npos);
  fs::remove(path("out") / "index.json");
  refusal = refusal_of_data(options);
  EXPECT_NE(refusal.find("its preparation was stopped"), std::string::npos) << refusal;
}

TEST(FluxMock, NumbersAreAFunctionOfTheSample) {
  DataOptions options;
  options.mock_data = true;
  options.flux.image_size = 32;
  options.flux.text_length = kTextLength;
  FluxSampleShape shape = kSmallShape;
  shape.image_size = options.flux.image_size;
  shape.text_length = options.flux.text_length;
  const DataSets sets = open_flux_data(options, shape, all_splits(), quiet_log());
  const Batch two = sets.train->read({.consumed_samples = 4, .micro_batch_size = 2});
  EXPECT_EQ(two.at(field::kLatents).sizes(), (std::vector<int64_t>{2, 2, 4, 4}));
  EXPECT_EQ(two.at(field::kTextStates).sizes(), (std::vector<int64_t>{2, kTextLength, kContext}));
  EXPECT_EQ(two.at(field::kPooledText).sizes(), (std::vector<int64_t>{2, kVector}));
  EXPECT_FALSE(two.has(field::kLatentLogVars));
  const Batch second = sets.train->read({.consumed_samples = 5});
  EXPECT_TRUE(two.at(field::kLatents)[1].equal(second.at(field::kLatents)[0]));
  EXPECT_FALSE(two.at(field::kLatents)[0].equal(two.at(field::kLatents)[1]));
}

}  // namespace
}  // namespace megalith
