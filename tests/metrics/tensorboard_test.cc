// Event files: checksums as published, frames and messages that a decoder of our own reads back, Megatron's tags.
#include "metrics/tensorboard.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>

#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "metrics/protobuf_reader.h"
#include "metrics/tfrecord.h"

namespace megalith {
namespace {

using test::Field;
using test::fields_of;
using test::Reader;

struct Event {
  double wall_time_s = 0;
  int64_t step = 0;
  std::string file_version;
  std::map<std::string, float> scalars;
};

Event parse_event(std::string_view message) {
  Event event;
  for (const Field& field : fields_of(message)) {
    if (field.number == 1) event.wall_time_s = std::bit_cast<double>(field.value);
    if (field.number == 2) event.step = static_cast<int64_t>(field.value);
    if (field.number == 3) event.file_version = field.bytes;
    if (field.number != 5) continue;
    for (const Field& value : fields_of(field.bytes)) {
      std::string tag;
      float number = 0;
      for (const Field& part : fields_of(value.bytes)) {
        if (part.number == 1) tag = part.bytes;
        if (part.number == 2) number = std::bit_cast<float>(static_cast<uint32_t>(part.value));
      }
      EXPECT_TRUE(event.scalars.emplace(tag, number).second) << tag << " is there twice";
    }
  }
  return event;
}

std::vector<Event> read_events(const std::filesystem::path& path) {
  const std::string bytes = read_file(path);
  std::vector<Event> events;
  for (Reader reader(bytes); !reader.is_done();) {
    const std::string_view length = reader.take(8);
    EXPECT_EQ(reader.fixed(4), masked_crc32c(length));
    const std::string_view message = reader.take(Reader(length).fixed(8));
    EXPECT_EQ(reader.fixed(4), masked_crc32c(message));
    events.push_back(parse_event(message));
  }
  return events;
}

class EventFile : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::remove_all(folder_);
    options_.tensorboard_dir = folder_ / "events";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  const std::filesystem::path folder_ = std::filesystem::path(testing::TempDir()) / "tensorboard_test";
  std::string logged_;
  Logger log_{{.write = [this](std::string_view text) { logged_ += text; }}};
  LogOptions options_;
};

StepRecord event_step(int64_t iteration) {
  StepRecord record;
  record.iteration = iteration;
  record.consumed_samples = 320 * iteration;
  record.global_batch_size = 320;
  record.losses = {{"lm loss", 0.1}, {"load_balancing_loss", 2.5}};
  record.grad_norm = 1.0 / 3;
  record.learning_rate = 3e-5;
  record.next_learning_rate = 4e-5;
  record.loss_scale = 65536;
  record.elapsed_ms = 250;
  record.tokens = 10000;
  record.num_devices = 2;
  record.flops = 1e12;
  record.memory_reserved_bytes = 3000;
  record.memory_allocated_bytes = 1000;
  record.memory_peak_bytes = 2000;
  return record;
}

// RFC 3720, B.4, and the record writer of TensorFlow.
TEST(Crc32c, EqualsPublishedValues) {
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(masked_crc32c("123456789"), ((0xe3069283u >> 15) | (0xe3069283u << 17)) + 0xa282ead8u);
}

TEST(Tfrecord, MessagesAreTheBytesOfProtobuf) {
  // Bytes from tensorboard.compat.proto, 300 as a varint of two bytes.
  const std::string event = scalar_event(1.0, 300, {{"ab", 0.5}});
  const std::string expected("\x09\0\0\0\0\0\0\xf0\x3f\x10\xac\x02\x2a\x0b\x0a\x09\x0a\x02\x61\x62\x15\0\0\0\x3f", 25);
  EXPECT_EQ(event, expected);
  EXPECT_EQ(tfrecord(event).size(), event.size() + 16);
}

TEST_F(EventFile, HasMegatronsTagsOverIterationsAndSamples) {
  options_.log_world_size_to_tensorboard = options_.log_validation_ppl_to_tensorboard = true;
  TensorboardSink sink(options_, log_);
  EXPECT_EQ(sink.path().parent_path(), folder_ / "events");
  EXPECT_TRUE(sink.path().filename().string().starts_with("events.out.tfevents."));
  ASSERT_EQ(read_events(sink.path()).size(), 1u) << "the version is there at once";
  sink.on_step(event_step(1));
  ASSERT_EQ(read_events(sink.path()).size(), 3u) << "a step is in the file when on_step returns";
  StepRecord with_norm = event_step(200);
  with_norm.params_norm = 12.5;
  sink.on_step(with_norm);
  sink.on_validation({.iteration = 200, .consumed_samples = 64000, .when = "", .losses = {{"lm loss", 2}}});
  sink.on_validation(
      {.iteration = 200, .consumed_samples = 64000, .set = "test", .when = "", .losses = {{"lm loss", 30}}});

  const std::vector<Event> events = read_events(sink.path());
  ASSERT_EQ(events.size(), 9u);
  EXPECT_EQ(events[0].file_version, "brain.Event:2");
  EXPECT_GT(events[0].wall_time_s, 1.7e9);
  EXPECT_EQ(events[3].step, 200);
  const std::map<std::string, float> over_iterations = {{"learning-rate", 4e-5f},
                                                        {"batch-size", 320},
                                                        {"lm loss", 0.1f},
                                                        {"load_balancing_loss", 2.5f},
                                                        {"loss-scale", 65536},
                                                        {"world-size", 2},
                                                        {"grad-norm", static_cast<float>(1.0 / 3)},
                                                        {"params-norm", 12.5f},
                                                        {"iteration-time", 0.25f},
                                                        {"throughput", 2},
                                                        {"token_throughput(tokens/sec/gpu)", 20000},
                                                        {"mem-reserved-bytes", 3000},
                                                        {"mem-allocated-bytes", 1000},
                                                        {"mem-max-allocated-bytes", 2000}};
  EXPECT_EQ(events[3].scalars, over_iterations);
  EXPECT_EQ(events[4].step, 64000);
  const std::map<std::string, float> over_samples = {{"learning-rate vs samples", 4e-5f},
                                                     {"batch-size vs samples", 320},
                                                     {"lm loss vs samples", 0.1f},
                                                     {"load_balancing_loss vs samples", 2.5f},
                                                     {"loss-scale vs samples", 65536},
                                                     {"world-size vs samples", 2},
                                                     {"grad-norm vs samples", static_cast<float>(1.0 / 3)},
                                                     {"params-norm vs samples", 12.5f}};
  EXPECT_EQ(events[4].scalars, over_samples);
  EXPECT_EQ(events[5].scalars,
            (std::map<std::string, float>{{"lm loss validation", 2}, {"lm loss validation ppl", std::exp(2.0f)}}));
  EXPECT_EQ(events[6].step, 64000);
  EXPECT_TRUE(events[6].scalars.contains("lm loss validation vs samples"));
  EXPECT_FLOAT_EQ(events[7].scalars.at("lm loss test ppl"), std::exp(20.0f)) << "capped as Megatron's is";
}

TEST_F(EventFile, SwitchesAndIntervalLeaveOut) {
  options_.tensorboard_log_interval = 10;
  options_.log_timers_to_tensorboard = options_.log_memory_to_tensorboard = false;
  options_.log_loss_scale_to_tensorboard = false;
  TensorboardSink sink(options_, log_);
  for (int64_t i = 1; i <= 20; ++i) sink.on_step(event_step(i));
  const std::vector<Event> events = read_events(sink.path());
  ASSERT_EQ(events.size(), 5u);
  EXPECT_EQ(events[1].step, 10);
  EXPECT_EQ(events[3].step, 20);
  for (const char* tag : {"iteration-time", "throughput", "mem-reserved-bytes", "loss-scale", "world-size", "num-zeros",
                          "params-norm", "skipped-train-samples"}) {
    EXPECT_FALSE(events[1].scalars.contains(tag)) << tag;
  }
  EXPECT_TRUE(events[1].scalars.contains("grad-norm"));
}

TEST_F(EventFile, ALossThatIsNoNumberStaysOne) {
  TensorboardSink sink(options_, log_);
  StepRecord record = event_step(1);
  record.losses[0].second = std::numeric_limits<double>::quiet_NaN();
  sink.on_step(record);
  EXPECT_TRUE(std::isnan(read_events(sink.path())[1].scalars.at("lm loss")));
}

TEST_F(EventFile, EveryRunHasItsOwn) {
  TensorboardSink one(options_, log_), other(options_, log_);  // in the same second of the same process
  EXPECT_NE(one.path(), other.path());
}

TEST_F(EventFile, AFolderThatCannotBeWrittenIsAUserError) {
  std::filesystem::create_directories(folder_);
  options_.tensorboard_dir = folder_ / "a file";
  write_file_atomic(folder_ / "a file", "x");
  EXPECT_THROW(TensorboardSink(options_, log_), UserError);
}

}  // namespace
}  // namespace megalith
